"""Launches that compute statistics of channels, and fused normalisations."""

from dataclasses import dataclass, replace
from math import prod

from ...network.layers import Triple
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import ChannelGroups, Normalise, Statistics
from ..tensors import COUNTERS, NUMBER_BYTES, VECTOR_BYTES, TensorView
from .launch import (
    MOMENTS_BYTES,
    WARP,
    Addresses,
    Launch,
    address_if_any,
    address_of,
    cpp,
    strides_of,
    vectors,
)
from .pointwise import FORMS, form_of, pass_arguments
from .spec import KernelSpec

_MEASURING = 2
"""Blocks per multiprocessor over which a pass of statistics is distributed."""

_CONCLUDED, _PARTS = 4, 256  # channels of a block that joins partial sums, and threads for each
_GROUPED = 256  # threads of a block that joins those of a group
SUMS_BYTES = 8  # of two floats per channel
_ACROSS = 4  # vectors of a block of statistics.cu, of what a cache holds
_LINE = 8  # vectors of a line of memory, which statistics read whole of what no cache holds
_LEAST_SHARE = 64  # voxels of a block that normalises, by which it pays


@dataclass(frozen=True, slots=True)
class _Measuring:
    """Distribution of a pass of statistics over blocks.

    extents: of the view, counted in cells of `cells` voxels. across: vectors of a block. columns:
    of adjacent blocks, along the channels. chunk: of a block, counted as the extents.
    """

    extents: Triple
    cells: int
    across: int
    columns: int
    chunk: int

    @property
    def chunks(self) -> int:
        """Blocks that share the voxels of a patch."""
        return -(-prod(self.extents) // self.chunk)


def _measuring(view: TensorView, gpu: GpuProperties) -> _Measuring:
    depth, height, width = extents = view.extents
    cells = 8 if view.shuffled else 1
    if view.shuffled:
        extents = depth // 2, height // 2, width // 2
    vectors_each = vectors(view.channels, view.tensor.precision)
    is_cached = view.tensor.bytes <= gpu.l2_bytes
    widest = _ACROSS if is_cached or vectors_each % _LINE else _LINE
    across = next(width for width in (1, 2, _ACROSS, _LINE) if min(vectors_each, widest) <= width)
    columns = -(-vectors_each // across)
    tile = constants("statistics.cu")
    most = max(1, _MEASURING * gpu.multiprocessors // (columns * view.tensor.batch))
    chunk = max(-(-prod(extents) // most), tile["AT_ONCE"] * (tile["THREADS"] // across // cells))
    return _Measuring(extents, cells, across, columns, chunk)


def blocks_that_measure(view: TensorView, gpu: GpuProperties) -> int:
    """Return the number of launched blocks of a pass of statistics that share the voxels of a
    patch.
    """
    return _measuring(view, gpu).chunks


def statistics(step: Statistics, at: Addresses, gpu: GpuProperties, scratch: int) -> list[Launch]:
    """Return launches of the table of factor and summand per channel; two if groups share it."""
    if step.groups is None:
        return [measure(step, at, gpu, scratch, at(step.target.name))]
    found = measure(step, at, gpu, scratch, None)
    return [found, conclude(step, at, scratch, found.grid[0])]


def measure(
    step: Statistics, at: Addresses, gpu: GpuProperties, scratch: int, table: int | None
) -> Launch:
    """Return the launch of each channel's moments; table: None if another launch joins them."""
    view, tensor, spread = step.source, step.source.tensor, _measuring(step.source, gpu)
    values = structure("statistics.cu", "Measure")(
        source=address_of(view, at),
        partials=scratch,
        table=table,
        **_learned(step, at),
        counters=at(COUNTERS),
        strides=strides_of(tensor),
        extents=spread.extents,
        origin=view.origin,
        channels=view.channels,
        cells=spread.cells,
        dense=spread.extents == tensor.extents,
        chunk=spread.chunk,
    )
    grid = spread.chunks, spread.columns, tensor.batch
    threads = constants("statistics.cu")["THREADS"]
    block = spread.across, threads // spread.across, 1
    width = spread.across * VECTOR_BYTES // NUMBER_BYTES[tensor.precision]
    shared = max(threads * SUMS_BYTES, width * (threads // WARP * SUMS_BYTES + 4))
    return Launch("statistics", "measure", grid, block, shared, values)


def _learned(step: Statistics, at: Addresses) -> dict[str, int | float | None]:
    """Return the fields of all kernels that compute a table of factors and summands."""
    return {
        "scale": address_if_any(step.scale, at),
        "shift": address_if_any(step.shift, at),
        "epsilon": step.epsilon,
    }


def conclude(step: Statistics, at: Addresses, scratch: int, chunks: int) -> Launch:
    """Return the launch that joins the moments of `chunks` launched blocks per patch into the
    table.
    """
    if step.groups is not None:
        return _conclude_groups(step, step.groups, at, scratch, chunks)
    channels, patches = step.source.channels, step.source.tensor.batch
    values = structure("statistics.cu", "Conclude")(
        partials=scratch,
        table=at(step.target.name),
        **_learned(step, at),
        patches=patches,
        channels=channels,
        chunks=chunks,
    )
    grid = -(-channels // _CONCLUDED), patches, 1
    shared = MOMENTS_BYTES * _CONCLUDED * _PARTS
    return Launch("statistics", "conclude", grid, (_CONCLUDED, _PARTS, 1), shared, values)


def _conclude_groups(
    step: Statistics, groups: ChannelGroups, at: Addresses, scratch: int, chunks: int
) -> Launch:
    view, tensor = step.source, step.source.tensor
    values = structure("statistics.cu", "ConcludeGroups")(
        partials=scratch,
        table=at(step.target.name),
        **_learned(step, at),
        bias=address_if_any(groups.bias, at),
        patches=tensor.batch,
        channels=view.channels,
        chunks=chunks,
        group=groups.channels,
    )
    grid, shared = (groups.count, tensor.batch, 1), MOMENTS_BYTES * _GROUPED
    return Launch("statistics", "conclude_groups", grid, (_GROUPED, 1, 1), shared, values)


def blocks_that_normalise(step: Normalise, gpu: GpuProperties) -> int:
    """Return the launched blocks that share the voxels of the same channels of a patch."""
    return _columns_and_shares(step, gpu)[1]


def _columns_and_shares(step: Normalise, gpu: GpuProperties) -> tuple[int, int]:
    """Return the groups of channels of all patches, and the blocks that share the voxels of each.

    All blocks wait for each other: there is one for each multiprocessor.
    """
    tensor = step.statistics.source.tensor
    across = constants("normalise.cu")["ACROSS"]
    columns = -(-vectors(tensor.channels, tensor.precision) // across) * tensor.batch
    most = max(1, gpu.multiprocessors // columns)
    return columns, min(most, -(-prod(tensor.extents) // _LEAST_SHARE))


def normalise(step: Normalise, at: Addresses, gpu: GpuProperties, scratch: int) -> Launch:
    """Return the launch of statistics and the pass that normalises by them, with a grid barrier."""
    statistics, tensor = step.statistics, step.statistics.source.tensor
    columns, shares = _columns_and_shares(step, gpu)
    held, shared = _held_vectors(step, shares, gpu)
    if shares * columns <= gpu.multiprocessors:
        # Two blocks on one multiprocessor would delay all: 1 % of a U-Net's time on an H200.
        shared = max(shared, gpu.shared_of_a_lone_block)
    values = structure("normalise.cu", "Normalise")(
        pointwise=pass_arguments(replace(step.pointwise, table=None), at, None),
        partials=scratch,
        **_learned(statistics, at),
        counters=at(COUNTERS),
        voxels=prod(tensor.extents),
        groups=columns // tensor.batch,
        columns=columns,
        held=held,
    )
    kernel = f"normalise<{form_of(step.pointwise)}, {cpp(held > 0)}>"
    tile = constants("normalise.cu")
    block = tile["ACROSS"], tile["BESIDE"], 1
    return Launch(
        "normalise", kernel, (shares, columns, 1), block, shared, values, cooperative=True
    )


def _held_vectors(step: Normalise, shares: int, gpu: GpuProperties) -> tuple[int, int]:
    """Return the vectors cached per thread, 0 with a border, and bytes of shared memory."""
    tensor, pass_ = step.statistics.source.tensor, step.pointwise
    tile = constants("normalise.cu")
    width = tile["ACROSS"] * VECTOR_BYTES // NUMBER_BYTES[tensor.precision]
    sums, each = (width + tile["THREADS"]) * SUMS_BYTES, tile["THREADS"] * VECTOR_BYTES
    if pass_.origin != (0, 0, 0) or pass_.output.extents != tensor.extents:
        return 0, sums
    ring = tile["RING"] if pass_.residual is None else 2 * tile["RING"]
    turns = -(-prod(tensor.extents) // shares * tile["ACROSS"] // tile["THREADS"])
    held = min(turns, (gpu.shared_per_block - sums) // each - ring)
    return (held, sums + (held + ring) * each) if held > 0 else (0, sums)


KERNELS = (
    KernelSpec("statistics", in_blocks=True),
    KernelSpec(
        "normalise",
        tuple(f"normalise<{form}, {held}>" for held in ("false", "true") for form in FORMS),
    ),
)
