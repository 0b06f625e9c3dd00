"""Kernel launches: their record, the arguments for tensors and prologues, and the division of a
tensor among blocks.
"""

from collections.abc import Callable, Iterable
from ctypes import Structure
from dataclasses import dataclass
from typing import TypeAlias

from ...network.layers import Constant, PadMode, Triple
from ...options import Precision
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, size_of, structure
from ..steps import ActivatedView, Activation, Conv
from ..tensors import NUMBER_BYTES, VECTOR_BYTES, AffineTable, Tensor, TensorView

BLOCK = 256
"""Threads of a block unless there is a reason for another number."""

WARP = 32
"""Threads of a warp."""

_MOST_SHARED = 99 << 10
"""Most bytes of shared memory that a block takes, even if a GPU offers more, so that a layer has
the same form on all GPUs with Tensor Core instruction m16n8k16: each offers as much.
"""

_MOST_LOOPS = 2
"""Most concurrent loops per multiprocessor, for a block of the outer layers."""

MOMENTS_BYTES = size_of("moments.cuh", "Moments")
BARRIER_BYTES = size_of("pipeline.cuh", "Barrier")

WARP_MOMENTS_BYTES = 8 * 16 * MOMENTS_BYTES
"""Bytes of the shared memory in which eight warps keep the moments of 16 channels each."""

OVERFLOW = "overflow"
"""Name of the int32 that becomes nonzero once a result was not finite."""

CLIPPED = "clipped"
"""Name of what a result's voxel type could not hold, as `store_voxels` counts it."""


Addresses: TypeAlias = Callable[[str], int]
"""Device address of a tensor, table, constant, or one of the names above."""


def anywhere(_: str) -> int:
    """Return a dummy address, for launches that are only inspected and not queued."""
    return 1 << 12


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    source, kernel: name of the .cu file, and C++ name. grid, block: blocks and threads along x, y
    and z. shared: bytes of dynamic shared memory per block. arguments: the kernel's one parameter.
    cooperative: whether its blocks wait for each other, so that all must be resident: the grid is
    cut to what fits on the GPU, along its first axis rather than its second. in_blocks: whether the
    patches are blocks of one volume, which further arguments describe.
    """

    source: str
    kernel: str
    grid: Triple
    block: Triple
    shared: int
    arguments: Structure
    cooperative: bool = False
    in_blocks: bool = False


def cpp(value: bool) -> str:
    """Return a template argument as C++ spells it."""
    return "true" if value else "false"


def most_shared(gpu: GpuProperties) -> int:
    """Return the most bytes of shared memory that a block of the outermost layers takes."""
    return min(_MOST_SHARED, gpu.shared_per_block)


WGMMA_COLUMNS = (128, 96, 64)
"""Columns of a block of the wgmma kernels of the outer layers."""


def wgmma_columns(width: int) -> int:
    """Return the columns of a block that leave its last block least empty; the wider on a tie."""
    return min(WGMMA_COLUMNS, key=lambda columns: -(-width // columns) * columns)


def vectors(channels: int, precision: Precision) -> int:
    """Return the number of vectors per voxel."""
    return channels * NUMBER_BYTES[precision] // VECTOR_BYTES


def block_shape(channels: int, precision: Precision) -> tuple[int, int]:
    """Return the threads of a block along the channels, and along voxels."""
    across = min(vectors(channels, precision), 32)
    return across, BLOCK // across


_FILLED = 0.8  # least share of the GPU that is busy, if there are enough blocks


def fastest_loop(
    extent: int, loops: int, concurrent: int, beginning: float, offered: Iterable[int]
) -> int:
    """Return the steps of each loop, of those offered, that finish all loops along an axis soonest.

    extent: steps along the axis. loops: that each of these steps is for. concurrent: those that
    run concurrently on the GPU; the others follow, wave by wave. beginning: fixed cost of a loop,
    counted in steps.
    """

    def duration(steps: int) -> float:
        waves = -(-loops * -(-extent // steps) // concurrent)
        return waves * (steps + beginning)

    return min(offered, key=duration)


def concurrent_loops(gpu: GpuProperties, shared: int) -> int:
    """Return how many loops of an outer layer run concurrently, each with `shared` bytes of shared
    memory.
    """
    return min(_MOST_LOOPS, max(1, gpu.resident_blocks(shared))) * gpu.multiprocessors


@dataclass(frozen=True, slots=True)
class PlaneTile:
    """Tile of a plane that a block computes while it loops along the planes. height, width: of it.

    beginning: fixed cost of a loop, counted in planes.
    """

    height: int
    width: int
    beginning: float

    def count(self, extents: Triple) -> int:
        """Return how many adjacent tiles cover a plane."""
        _, height, width = extents
        return -(-height // self.height) * -(-width // self.width)

    def loops(self, extents: Triple, parts: int, gpu: GpuProperties) -> tuple[Triple, int]:
        """Return the grid of a tensor's loops (tiles, along the depth, parts), and their planes.

        parts: those computed per tile, one by one.
        """
        depth, across, concurrent = extents[0], self.count(extents), gpu.multiprocessors

        def fills(planes: int) -> bool:
            return across * parts * -(-depth // planes) >= _FILLED * concurrent

        filling = list(filter(fills, range(1, depth + 1)))
        planes = fastest_loop(depth, across * parts, concurrent, self.beginning, filling or [1])
        return (across, -(-depth // planes), parts), planes


def strides_of(tensor: Tensor) -> Structure:
    """Return the elements from one patch, plane, row and voxel to the next."""
    _, height, width = tensor.extents
    row = width * tensor.channels
    plane = height * row
    return structure("element.cuh", "Strides")(
        patch=tensor.extents[0] * plane, plane=plane, row=row, voxel=tensor.channels
    )


def address_if_any(name: str | None, at: Addresses) -> int | None:
    """Return the address of a constant that a step may lack."""
    return at(name) if name else None


def address_of(view: TensorView, at: Addresses, channel: int = 0) -> int:
    """Return the address of a view's first voxel; of its tensor's if it is space-to-depth."""
    strides = strides_of(view.tensor)
    depth, height, width = (0, 0, 0) if view.shuffled else view.origin
    channel += view.lanes[0] if view.lanes else 0
    first = depth * strides.plane + height * strides.row + width * strides.voxel + channel
    return at(view.tensor.name) + first * NUMBER_BYTES[view.tensor.precision]


def region_address(step: Conv, at: Addresses) -> int:
    """Return the address of the first voxel that a convolution writes."""
    target, region = step.target, step.region
    if region is None:
        return at(target.name)
    strides = strides_of(target)
    first = region.first * strides.patch + region.plane * strides.plane
    return at(target.name) + first * NUMBER_BYTES[target.precision]


def activation_argument(activation: Activation, at: Addresses, channel: int = 0) -> Structure:
    """Return the activation as a kernel argument, for the channels from `channel` on."""
    return structure("element.cuh", "Activation")(
        slopes=at(activation.slopes) + 4 * channel if activation.slopes else None,
        slope=activation.slope,
        cube=activation.cube,
        low=activation.low,
        high=activation.high,
        curve=constants("element.cuh")[activation.curve.upper()],
    )


def border_of(mode: PadMode) -> tuple[int, float]:
    """Return how a kernel continues a tensor, and the value outside a constant border."""
    borders = constants("element.cuh")
    if isinstance(mode, Constant):
        return borders["CONSTANT"], mode.value
    return borders["CONSTANT" if mode == "zero" else mode.upper()], 0.0


def table_addresses(
    table: AffineTable | None, at: Addresses, channel: int = 0
) -> tuple[int | None, int | None, int]:
    """Return the addresses of factors and summands, and the floats from one patch to the next."""
    if table is None:
        return None, None, 0
    factors = at(table.name) + 4 * channel
    return factors, factors + table.bytes // 2, table.channels if table.patches > 1 else 0


def part_of(part: ActivatedView, at: Addresses) -> Structure:
    """Return a prologue as a kernel argument."""
    factor, summand, stride = table_addresses(part.table, at)
    return structure("part.cuh", "Part")(
        source=address_of(part.source, at),
        factor=factor,
        summand=summand,
        strides=strides_of(part.source.tensor),
        channels=part.source.channels,
        table_stride=stride,
        slope=part.activation.slope,
        shuffled=part.source.shuffled,
        origin=part.source.origin,
    )
