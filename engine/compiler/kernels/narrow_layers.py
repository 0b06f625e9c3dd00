"""Kernel of convolutions to few channels, at any dilation."""

from math import prod

import numpy as np

from ...network.layers import ONES, FloatArray, Triple
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, most_of, structure
from ..steps import IDENTITY, Conv, Geometry
from ..tensors import TRANSLATED, VECTOR_BYTES, TensorView
from ..weight_layout import PackedWeight, Slots, WeightArray, slot_index
from .launch import (
    OVERFLOW,
    Addresses,
    Launch,
    activation_argument,
    address_if_any,
    most_shared,
    vectors,
)
from .spec import HALF, ConvKernel

MOST_OUTPUTS = 16
"""Most output channels, as stored, of convolve_narrow.cu."""

_DEPTHS = (1, 3)
"""Kernel extents along D that convolve_narrow.cu has instances for."""

_LEAST_BLOCKS = 0.6
"""Fewest blocks of convolve_narrow.cu for each multiprocessor."""

_TILES = (2, 1)
"""Tiles of 16 columns of a block of convolve_narrow.cu."""


def _groups(conv: Conv) -> int:
    """Return the groups of 8 outputs that a product computes."""
    return -(-conv.outputs // 8)


def _span(conv: Conv, tiles: int) -> int:
    """Return the columns that a block reads."""
    geometry = conv.geometry
    return 16 * tiles + (geometry.kernel[2] - 1) * geometry.dilation[2]


def _shared(conv: Conv, tiles: int) -> int:
    """Return the bytes of a block's shared memory: the weights and operands of a step."""
    tile, deep = constants("convolve_narrow.cu"), conv.geometry.kernel[0]
    weights = prod(conv.geometry.kernel) * 8 * _groups(conv) * 2
    operands = 2 * (tile["PLANES"] + deep - 1) * tile["ROWS"] * _span(conv, tiles)
    return (weights + operands) * VECTOR_BYTES


def _tiles(conv: Conv, gpu: GpuProperties) -> int | None:
    """Return the tiles of a block, as many as fit; None if none do."""
    width = conv.output.extents[2]
    offered = (n for n in _TILES if n == 1 or width > 16 * (n - 1))
    return next((n for n in offered if _shared(conv, n) <= most_shared(gpu)), None)


def fills(conv: Conv, batch: int, gpu: GpuProperties) -> bool:
    """Return whether a convolution has enough blocks for a GPU to be faster than a plan of cuDNN.

    conv: without its inputs. On an H200, 2026-11-29, 16 to 16 channels took 27 us instead of 47 us
    at 64^3 (256 blocks), as long at 40^3 (100 blocks), and 16 us instead of 12 us at 32^3 (32).
    """
    tiles = _tiles(conv, gpu)
    if tiles is None:
        return False
    return prod(_grid(conv, batch, tiles)) >= _LEAST_BLOCKS * gpu.multiprocessors


def _grid(conv: Conv, batch: int, tiles: int) -> Triple:
    """Return the blocks along rows, across them, and of all planes and patches."""
    geometry, tile = conv.geometry, constants("convolve_narrow.cu")
    depth, height, width = conv.output.extents
    apart, high = _apart(geometry)
    rows = high * -(-height // (high * tile["WARPS"]))
    planes = apart * -(-depth // (apart * tile["PLANES"]))
    return -(-width // (16 * tiles)), rows, batch * planes


def _apart(geometry: Geometry) -> tuple[int, int]:
    """Return how far the planes and the rows of a block are apart: as the taps, if several."""
    (apart, high, _), (deep, tall, _) = geometry.dilation, geometry.kernel
    return apart if deep > 1 else 1, high if tall > 1 else 1


def _fits(conv: Conv, gpu: GpuProperties, _in_blocks: bool) -> bool:
    geometry, tile = conv.geometry, constants("convolve_narrow.cu")
    plain = Geometry(
        geometry.kernel, ONES, geometry.before, geometry.after, dilation=geometry.dilation
    )
    is_bare = all(
        view.table is None and view.activation == IDENTITY and view.source.is_whole
        for view in conv.views
    )
    return (
        bool(conv.views)
        and is_bare
        and geometry == plain
        and geometry.kernel[0] in _DEPTHS
        and geometry.kernel[1] <= tile["HIGHEST"]
        and (prod(geometry.kernel) > 1 or len(conv.views) > 1)
        and conv.outputs <= MOST_OUTPUTS
        and (conv.translated is not None or conv.outputs % 8 == 0)
        and conv.source.scale is None
        and vectors(conv.channels, conv.precision)
        <= most_of("convolve_narrow.cu", "ConvolveNarrow", "vectors")
        and _tiles(conv, gpu) is not None
    )


def _pack(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[K, C, kD, kH, kW] -> [steps, kH, kW, kD, 8 GROUPS, 4, 4]: second operands of m16n8k16.

    Lane 4 n + t of a group gets channels 2 t and 2 t + 1 of the first 8 of a step, then of the last
    8, for output n.
    """
    outputs, _, *kernel = weight.shape
    rows, steps = 8 * -(-outputs // 8), -(-source // constants("convolve_narrow.cu")["DEPTH"])
    shape = steps, kernel[1], kernel[2], kernel[0], rows, 4, 4

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((rows, 16 * steps, *kernel), weight.dtype)
        filled[:outputs, slot_index(slots)] = weight
        split = filled.reshape(rows, steps, 2, 4, 2, *kernel)
        return split.transpose(1, 6, 7, 5, 0, 3, 2, 4).reshape(shape)

    return PackedWeight(weight, shape, packed)


def _launch(conv: Conv, at: Addresses, gpu: GpuProperties, _partials: int | None) -> Launch:
    name, geometry, tiles = "convolve_narrow", conv.geometry, _tiles(conv, gpu)
    assert tiles is not None
    grid = _grid(conv, conv.batch, tiles)
    tile = constants(f"{name}.cu")
    apart, _ = _apart(geometry)
    chunks = grid[2] // (conv.batch * apart)
    first, end = conv.lanes or (0, conv.outputs)
    is_tensor = isinstance(conv.output, TensorView)
    values = structure(f"{name}.cu", "ConvolveNarrow")(
        **_vectors(conv, at),
        weights=at(conv.weight),
        bias=address_if_any(conv.bias, at),
        target=at(conv.target.name) if is_tensor else None,
        translated=None if is_tensor else at(TRANSLATED),
        overflow=None if is_tensor else at(OVERFLOW),
        source_extents=conv.source.extents,
        target_extents=conv.output.extents,
        kernel=geometry.kernel,
        dilation=geometry.dilation,
        before=geometry.before,
        outputs=conv.outputs,
        first=first,
        end=end,
        span=_span(conv, tiles),
        chunks=chunks,
        activation=activation_argument(conv.activation, at),
    )
    kernel = _instance(_groups(conv), geometry.kernel[0], tiles)
    return Launch(name, kernel, grid, (tile["THREADS"], 1, 1), _shared(conv, tiles), values)


def _vectors(conv: Conv, at: Addresses) -> dict[str, object]:
    """Return the address and stride of each vector of the inputs."""
    most = most_of("convolve_narrow.cu", "ConvolveNarrow", "vectors")
    tensors = [view.source.tensor for view in conv.views]
    found = [
        (at(tensor.name) + VECTOR_BYTES * number, tensor.channels)
        for tensor in tensors
        for number in range(vectors(tensor.channels, tensor.precision))
    ]
    unused = most - len(found)
    addresses, strides = zip(*found, strict=True)
    return {
        "vectors": (*addresses, *[None] * unused),
        "strides": (*strides, *[0] * unused),
        "count": len(found),
    }


def _instance(groups: int, depth: int, tiles: int) -> str:
    return f"convolve_narrow<{groups}, {depth}, {tiles}>"


KERNELS = (
    ConvKernel(
        "convolve_narrow",
        tuple(_instance(n, depth, m) for n in (1, 2) for depth in _DEPTHS for m in _TILES),
        HALF,
        launch=_launch,
        fits=_fits,
        pack=_pack,
    ),
)
"""Candidates in order: the first that fits a convolution computes it."""
