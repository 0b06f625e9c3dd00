"""Kernels that compute a bare convolution between tensors in place of a cuDNN plan."""

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from ...network.layers import Triple, triple
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import Conv, ConvShape
from ..tensors import NUMBER_BYTES, VECTOR_BYTES
from .launch import WARP, Addresses, Launch, cpp, region_address
from .spec import ConvKernel

_OUTPUT_TILES = {32: 256, 64: 128, 128: 64}
"""Voxels of a block of convolve.cu, by its output channels."""

_SPLIT_TILES = {32: 128, 64: 128, 128: 64}
"""Voxels of a block of convolve_split_fp16.cu, by its output channels."""

_WINDOW_TAPS = (1, 3, 5, 7)
"""Kernel widths for which convolve_depthwise.cu reads the source in windows."""

_WINDOW_TILES = ((2, 8), (1, 4))
"""Rows and columns of a thread there; the second if the first leave multiprocessors idle."""

_MOST_ACROSS = 8
"""Most threads of a block of convolve_depthwise.cu along the channels."""

_MOST_WEIGHT_BYTES = 48 << 10
"""Most bytes of a block's weights in shared memory there; larger ones are read from the tensor."""


def _convolve_split_fp16(
    conv: Conv, at: Addresses, _gpu: GpuProperties, _partials: int | None
) -> Launch:
    shape, tile = conv.shape, constants("convolve_split_fp16.cu")
    width = _outputs(shape)
    voxels, piece = _SPLIT_TILES[width], tile["VECTORS"] * VECTOR_BYTES
    warps = voxels // tile["WARP_VOXELS"] * width // tile["WARP_OUTPUTS"]
    has_border = any(shape.before + shape.after)
    return Launch(
        source="convolve_split_fp16",
        kernel=_split_instance(width, has_border=has_border),
        grid=_tiles(shape, voxels, width),
        block=(warps * WARP, 1, 1),
        shared=tile["STAGES"] * (voxels + width) * piece,
        arguments=structure("convolve_split_fp16.cu", "ConvolveSplitFp16")(
            **_convolved(conv, shape, at), scale=conv.scale
        ),
    )


def _convolve(conv: Conv, at: Addresses, _gpu: GpuProperties, _partials: int | None) -> Launch:
    shape = conv.shape
    width = _outputs(shape)
    values = structure("convolve.cu", "Convolve")(
        **_convolved(conv, shape, at),
        dilation=shape.dilation,
        inputs=shape.summed_channels,
        outputs=shape.target_channels // shape.groups,
    )
    grid, threads = _tiles(shape, _OUTPUT_TILES[width], width), constants("convolve.cu")["THREADS"]
    kernel = _instance(width, is_gradient=shape.transposed)
    return Launch("convolve", kernel, grid, (threads, 1, 1), 0, values)


@dataclass(frozen=True, slots=True)
class _DepthwiseBlocks:
    """Division of a depthwise convolution among blocks.

    shape: of the convolution. channels, rows, run: of a thread, the latter two along H and W.
    """

    shape: ConvShape
    channels: int
    rows: int
    run: int

    @property
    def most(self) -> int:
        """Most threads of a block along the channels; 0 if their weights are too large for it."""
        return min(_MOST_ACROSS, _MOST_WEIGHT_BYTES // self._weight_bytes(1))

    @property
    def block(self) -> Triple:
        """Threads of a block: along the channels, and for tiles along H and D."""
        edge = constants("convolve_depthwise.cu")["TILES"]
        return -(-self._threads // self.grid[1]), edge, edge

    @property
    def grid(self) -> Triple:
        """Blocks along the voxels of the target and along the channels."""
        edge = constants("convolve_depthwise.cu")["TILES"]
        depth, height, width = self.shape.target_extents
        planes = self.shape.batch * -(-depth // edge) * -(-height // (self.rows * edge))
        return planes * -(-width // self.run), -(-self._threads // (self.most or _MOST_ACROSS)), 1

    @property
    def shared(self) -> int:
        """Bytes of the weights of a block."""
        return self._weight_bytes(self.block[0]) if self.most else 0

    @property
    def _threads(self) -> int:
        return self.shape.target_channels // self.channels

    def _weight_bytes(self, threads: int) -> int:
        """Return the bytes of the weights of threads, with an odd number of taps for each."""
        return threads * self.channels * (prod(self.shape.kernel) | 1) * NUMBER_BYTES["fp32"]


def _convolve_depthwise(
    conv: Conv, at: Addresses, gpu: GpuProperties, _partials: int | None
) -> Launch:
    shape = conv.shape
    blocks, kernel = _depthwise_blocks(shape, gpu)
    period, hop = _steps_of_taps(shape)
    values = structure("convolve_depthwise.cu", "ConvolveDepthwise")(
        **_convolved(conv, shape, at), dilation=shape.dilation, period=period, hop=hop
    )
    return Launch("convolve_depthwise", kernel, blocks.grid, blocks.block, blocks.shared, values)


def _depthwise_blocks(shape: ConvShape, gpu: GpuProperties) -> tuple[_DepthwiseBlocks, str]:
    """Return the blocks of a depthwise convolution, and the instance that they run."""
    tile, taps = constants("convolve_depthwise.cu"), shape.kernel[2]
    is_dense = not shape.transposed and {*shape.stride, *shape.dilation} == {1}
    large, small = (_DepthwiseBlocks(shape, tile["FEW"], *each) for each in _WINDOW_TILES)
    if is_dense and taps in _WINDOW_TAPS and large.most:
        blocks = large if prod(large.grid) >= gpu.multiprocessors else small
        return blocks, _window_instance(taps, blocks.rows, blocks.run)
    lanes = VECTOR_BYTES // NUMBER_BYTES[shape.precision]
    run = tile["APART"] * (shape.stride[2] if shape.transposed else 1)
    blocks = _DepthwiseBlocks(shape, lanes, 1, run)
    return blocks, _tap_instance(is_gradient=shape.transposed, is_staged=blocks.most > 0)


def _steps_of_taps(shape: ConvShape) -> tuple[Triple, Triple]:
    """Return the taps, and voxels of the source, from one that a target voxel takes to the next."""
    if not shape.transposed:
        return (1, 1, 1), shape.dilation
    common = triple(map(gcd, shape.stride, shape.dilation))
    period = triple(stride // by for stride, by in zip(shape.stride, common, strict=True))
    return period, triple(-step // by for step, by in zip(shape.dilation, common, strict=True))


def _window_instance(taps: int, rows: int, across: int) -> str:
    return f"convolve_depthwise_windows<{taps}, {rows}, {across}>"


def _tap_instance(*, is_gradient: bool, is_staged: bool) -> str:
    return f"convolve_depthwise<{cpp(is_gradient)}, {cpp(is_staged)}>"


def _instance(outputs: int, *, is_gradient: bool) -> str:
    return f"convolve<{_OUTPUT_TILES[outputs]}, {outputs}, {cpp(is_gradient)}>"


def _split_instance(outputs: int, *, has_border: bool) -> str:
    return f"convolve_split_fp16<{cpp(has_border)}, {_SPLIT_TILES[outputs]}, {outputs}>"


def _outputs(shape: ConvShape) -> int:
    """Return how many output channels a block computes."""
    outputs = shape.target_channels // shape.groups
    return next((width for width in _OUTPUT_TILES if outputs <= width), max(_OUTPUT_TILES))


def _tiles(shape: ConvShape, voxels: int, outputs: int) -> Triple:
    """Return the grid of blocks, each of which computes `outputs` channels of `voxels` voxels."""
    total = shape.batch * prod(shape.target_extents)
    columns = shape.groups * -(-shape.target_channels // shape.groups // outputs)
    return -(-total // voxels), columns, 1


def _convolved(conv: Conv, shape: ConvShape, at: Addresses) -> dict[str, Any]:
    """Return the fields that all three structures have."""
    return {
        "source": at(conv.source.name),
        "weight": at(conv.weight),
        "target": region_address(conv, at),
        "source_patch": prod(shape.source_extents) * shape.source_channels,
        "target_patch": prod(shape.target_extents) * shape.target_channels,
        **convolution_geometry(shape),
        "patches": shape.batch,
    }


def convolution_geometry(shape: ConvShape) -> dict[str, Any]:
    """Return the geometry fields shared by the arguments of every convolution kernel."""
    return {
        "source_extents": shape.source_extents,
        "source_channels": shape.source_channels,
        "target_extents": shape.target_extents,
        "target_channels": shape.target_channels,
        "kernel": shape.kernel,
        "stride": shape.stride,
        "before": shape.before,
    }


KERNELS = (
    ConvKernel(
        "convolve_split_fp16",
        tuple(_split_instance(n, has_border=each) for each in (False, True) for n in _SPLIT_TILES),
        ("tf32", "fp32"),
        launch=_convolve_split_fp16,
        replaces_plan=lambda shape: shape.split_fp16,
    ),
    ConvKernel(
        "convolve_depthwise",
        (
            *(_window_instance(taps, *tile) for taps in _WINDOW_TAPS for tile in _WINDOW_TILES),
            *(
                _tap_instance(is_gradient=is_gradient, is_staged=is_staged)
                for is_gradient in (False, True)
                for is_staged in (False, True)
            ),
        ),
        launch=_convolve_depthwise,
        replaces_plan=lambda shape: shape.is_depthwise,
    ),
    ConvKernel(
        "convolve",
        tuple(_instance(n, is_gradient=each) for each in (False, True) for n in _OUTPUT_TILES),
        launch=_convolve,
        replaces_plan=lambda _: True,
    ),
)
"""Candidates in order: the first whose `replaces_plan` accepts a shape computes it."""
