"""Kernel of convolutions to few channels, at any dilation."""

from ctypes import Structure
from dataclasses import dataclass
from math import prod

import numpy as np

from ...network.layers import ONES, FloatArray, Triple
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, most_of, structure
from ..steps import IDENTITY, Conv, Geometry
from ..tensors import NUMBER_BYTES, TRANSLATED, VECTOR_BYTES, TensorView
from ..weight_layout import PackedWeight, Slots, WeightArray, slot_index
from .launch import (
    OVERFLOW,
    Addresses,
    Launch,
    activation_argument,
    address_if_any,
    concurrent_loops,
    most_shared,
    vectors,
)
from .spec import HALF, ConvKernel

_GROUPS = (1, 2, 3)
"""Groups of 8 outputs that convolve_narrow.cu has instances for."""

MOST_OUTPUTS = 8 * max(_GROUPS)
"""Most output channels, as stored: cuDNN computes 32 at least."""

_DEPTHS = (1, 3, 5)
"""Kernel extents along D that convolve_narrow.cu has instances for."""

_LEAST_TILES, _LONG_SUM = 1.1, 27 * 64
"""Fewest tiles of the blocks of convolve_narrow.cu for each multiprocessor, and products of a sum
for which any number of them does.
"""

_SHARED_STEP, _ADDING = 1.6, 1.5
"""Time of a step on a multiprocessor with two blocks, and of adding the sums of all splits, in
steps of a lone block.

Estimated: at 128^3, 32 to 8 channels, two blocks take 11.5 us for a step each (H200, 2026-11-29).
"""


def _groups(conv: Conv) -> int:
    """Return the groups of 8 outputs that a product computes."""
    return -(-conv.outputs // 8)


def _tiles(groups: int, depth: int) -> tuple[int, ...]:
    """Return the tiles of 16 columns that a block may have.

    Two would not fit: into registers with the sums of three groups, and into shared memory with the
    planes that a kernel of depth 5 reads.
    """
    return (2, 1) if groups < 3 and depth < 5 else (1,)


def _span(conv: Conv, tiles: int) -> int:
    """Return the columns that a block reads."""
    geometry = conv.geometry
    return 16 * tiles + (geometry.kernel[2] - 1) * geometry.dilation[2]


def _shared(conv: Conv, tiles: int) -> int:
    """Return the bytes of a block's shared memory: the weights and operands of a step.

    From a depth of STAGED on, the weights are those of two rows of taps.
    """
    tile, (deep, high, wide) = constants("convolve_narrow.cu"), conv.geometry.kernel
    kept = min(high, 2) if deep >= tile["STAGED"] else high
    weights = kept * wide * deep * 8 * _groups(conv) * 2
    rows = tile["WARPS"] - 1 + max(deep, tile["HIGHEST"])
    voxels = (tile["PLANES"] + deep - 1) * rows * _span(conv, tiles)
    banks = tile["BANKS"]
    unused = (banks + banks // 2 - voxels % banks) % banks
    return (weights + 2 * voxels + unused) * VECTOR_BYTES


@dataclass(frozen=True, slots=True)
class _Division:
    """Division of a convolution among blocks.

    tiles: of 16 columns of a block. blocks: along rows, across them, and of all planes and patches.
    splits: of the sum over the inputs, each for as many blocks. steps: of 16 channels, of a split.
    """

    tiles: int
    blocks: Triple
    splits: int
    steps: int

    @property
    def grid(self) -> Triple:
        """Blocks of a launch."""
        *plane, deep = self.blocks
        return plane[0], plane[1], deep * self.splits


def _division(conv: Conv, channels: int, batch: int, gpu: GpuProperties) -> _Division | None:
    """Return the division with as many tiles as fit and leave a block for each multiprocessor; None
    if not even one fits. channels: that the convolution reads.
    """

    def suits(tiles: int) -> bool:
        is_small = prod(_blocks(conv, batch, tiles)) < gpu.multiprocessors
        return _shared(conv, tiles) <= most_shared(gpu) and (tiles == 1 or not is_small)

    tiles = next(filter(suits, _tiles(_groups(conv), conv.geometry.kernel[0])), None)
    if tiles is None:
        return None
    blocks = _blocks(conv, batch, tiles)
    steps = -(-channels // constants("convolve_narrow.cu")["DEPTH"])
    resident = concurrent_loops(gpu, _shared(conv, tiles)) // prod(blocks)

    def duration(splits: int) -> float:
        is_alone = splits * prod(blocks) <= gpu.multiprocessors
        step = 1 if is_alone else _SHARED_STEP
        return -(-steps // splits) * step + (_ADDING if splits > 1 else 0)

    splits = min(range(1, max(1, min(steps, resident)) + 1), key=duration)
    each = -(-steps // splits)
    return _Division(tiles, blocks, -(-steps // each), each)


def _known_division(conv: Conv, gpu: GpuProperties) -> _Division:
    """Return the division of a convolution that the kernel computes."""
    division = _division(conv, conv.channels, conv.batch, gpu)
    assert division is not None
    return division


def pays_off(conv: Conv, channels: int, batch: int, gpu: GpuProperties) -> bool:
    """Guess whether the kernel is faster than a plan of cuDNN: with enough blocks for the GPU, or
    for a long sum, which is split. The search times both (`forms`).

    conv: without its inputs. channels: of these, as stored. On an H200, 2026-11-29, in blocks of
    two tiles, 16 to 16 channels took 27 us instead of 47 us at 64^3 (256 blocks), as long at 40^3
    (100 blocks), and 16 us instead of 12 us at 32^3 (32). From 160 to 336 channels at 16^3, where a
    plan has few blocks, it took 60 to 100 us: about 12 ns for each product of a sum, and so an
    estimated 25 us for 64 channels.
    """
    if conv.geometry.kernel[0] not in _DEPTHS:
        return False
    division = _division(conv, channels, batch, gpu)
    if division is None:
        return False
    is_long = channels * prod(conv.geometry.kernel) >= _LONG_SUM
    tiles = division.tiles * prod(division.blocks)
    return is_long or tiles >= _LEAST_TILES * gpu.multiprocessors


def _blocks(conv: Conv, batch: int, tiles: int) -> Triple:
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
        and geometry.kernel[1] <= max(tile["HIGHEST"], geometry.kernel[0])
        and (prod(geometry.kernel) > 1 or len(conv.views) > 1)
        and conv.outputs <= MOST_OUTPUTS
        and (conv.translated is not None or conv.outputs % 8 == 0)
        and conv.source.scale is None
        and vectors(conv.channels, conv.precision)
        <= most_of("convolve_narrow.cu", "ConvolveNarrow", "vectors")
        and _division(conv, conv.channels, conv.batch, gpu) is not None
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


def _launch(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    name, division = "convolve_narrow", _known_division(conv, gpu)
    kernel = _instance(_groups(conv), conv.geometry.kernel[0], division.tiles)
    block, shared = (constants(f"{name}.cu")["THREADS"], 1, 1), _shared(conv, division.tiles)
    values = _arguments(conv, at, division, partials)
    return Launch(name, kernel, division.grid, block, shared, values)


def _add_splits(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int) -> Launch:
    """Return the launch that adds the sums of all splits; partials: their address."""
    name, groups = "convolve_narrow", _groups(conv)
    threads = constants(f"{name}.cu")["THREADS"]
    blocks = -(-_voxels(conv) * 4 * groups // threads)
    values = _arguments(conv, at, _known_division(conv, gpu), partials)
    return Launch(name, f"add_splits<{groups}>", (blocks, 1, 1), (threads, 1, 1), 0, values)


def _partials(conv: Conv, gpu: GpuProperties) -> int:
    """Return the bytes of the sums of all splits; 0 if there is one."""
    splits = _known_division(conv, gpu).splits
    return splits * _voxels(conv) * 8 * _groups(conv) * 4 if splits > 1 else 0


def _voxels(conv: Conv) -> int:
    """Return the voxels of all patches of the output."""
    return conv.batch * prod(conv.output.extents)


def _arguments(conv: Conv, at: Addresses, division: _Division, partials: int | None) -> Structure:
    geometry = conv.geometry
    apart, _ = _apart(geometry)
    (first, end), output = conv.lanes or (0, conv.outputs), conv.output
    target, stride = None, conv.outputs
    if isinstance(output, TensorView):
        place, _ = output.lanes or (0, 0)
        target = at(output.tensor.name) + NUMBER_BYTES[conv.precision] * place
        stride = output.tensor.channels
    return structure("convolve_narrow.cu", "ConvolveNarrow")(
        **_vectors(conv, at),
        weights=at(conv.weight),
        bias=address_if_any(conv.bias, at),
        target=target,
        translated=at(TRANSLATED) if target is None else None,
        overflow=at(OVERFLOW) if target is None else None,
        source_extents=conv.source.extents,
        target_extents=conv.output.extents,
        kernel=geometry.kernel,
        dilation=geometry.dilation,
        before=geometry.before,
        outputs=stride,
        first=first,
        end=end,
        span=_span(conv, division.tiles),
        chunks=division.blocks[2] // (conv.batch * apart),
        partials=partials,
        splits=division.splits,
        steps=division.steps,
        voxels=_voxels(conv),
        activation=activation_argument(conv.activation, at),
    )


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
        (
            *(
                _instance(n, depth, m)
                for n in _GROUPS
                for depth in _DEPTHS
                for m in _tiles(n, depth)
            ),
            *(f"add_splits<{groups}>" for groups in _GROUPS),
        ),
        HALF,
        launch=_launch,
        partials=_partials,
        add=_add_splits,
        fits=_fits,
        pack=_pack,
        joins=True,
        forms=("plain",),
    ),
)
"""Candidates in order: the first that fits a convolution computes it."""
