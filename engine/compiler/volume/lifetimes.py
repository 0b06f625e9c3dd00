"""Lifetimes of the data of a program over a volume, from step to step, and their bytes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..blocks import BlockGrid
from ..kernels.launch import OVERFLOW
from ..launches.blocks import partial_bytes
from ..lowered import Lowered
from ..memory.plan import Lifetime, scratch_name
from ..steps import is_planned
from ..tensors import PATCHES, TRANSLATED, Tensor
from .passes import Pass, made_block_by_block

WORKSPACE = "workspace"
"""Name of the workspace that all convolutions share, one after another."""

WORKSPACE_BYTES = 64 << 20
"""Bytes of the workspace: the same for all volumes and limits, so they do not affect the choice of
tactics.
"""

VOXELS_IN, VOXELS_OUT = "voxels in", "voxels out"
"""Names of rows of voxels as stored, before and after the network."""


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """A network and the volume that it is to run over.

    lowered, passes: the network. grid: of the volume's blocks. channels: of the volume and of its
    translation. voxels: bytes of the input rows and of the output rows. may_recompute: whether maps
    of full resolution may be recomputed instead of stored. trial: bytes of GPU memory in which its
    layers are tried before.
    """

    lowered: Lowered
    passes: Sequence[Pass]
    grid: BlockGrid
    channels: tuple[int, int]
    voxels: tuple[int, int]
    may_recompute: bool = True
    trial: int = 0

    @property
    def batch(self) -> int:
        """Blocks in one run."""
        return self.lowered.layout.batch


def ends(wanted: VolumeRequest) -> Iterator[Lifetime]:
    """Yield lifetimes of inputs, outputs and everything that exists all the time."""
    before, behind = -1, wanted.passes[-1].last + 1
    flows = [(one, step.flow) for one in wanted.passes for step in one.steps]
    last = max((one.last for one, flow in flows if flow.from_patches), default=0)
    first = min(one.first for one, flow in flows if flow.to_patches)
    given, made = (count * prod(wanted.grid.extents) * 4 for count in wanted.channels)
    yield Lifetime(PATCHES, given, before, last)
    yield Lifetime(TRANSLATED, made, first, behind)
    yield Lifetime(VOXELS_IN, wanted.voxels[0], before, wanted.passes[0].last)
    yield Lifetime(VOXELS_OUT, wanted.voxels[1], wanted.passes[-1].first, behind)
    yield Lifetime(OVERFLOW, 4, before, behind)
    convolutions = [
        number
        for one in wanted.passes
        for number, step in enumerate(one.steps, one.first)
        if is_planned(step)
    ]
    if convolutions:
        yield Lifetime(WORKSPACE, WORKSPACE_BYTES, convolutions[0], convolutions[-1])


def grids_of_maps(wanted: VolumeRequest, maps: Mapping[str, Tensor]) -> dict[str, BlockGrid]:
    """Return the grid by which each map is stored: that of the pass that writes it."""
    return {
        name: one.grid_in(wanted.grid)
        for one in wanted.passes
        for step in one.steps
        for name in step.flow.written_names
        if name in maps
    }


def tensors(
    wanted: VolumeRequest, maps: Mapping[str, Tensor], grids: Mapping[str, BlockGrid]
) -> Iterator[Lifetime]:
    """Yield lifetimes of tensors: a map lives from the first run of a pass to the last run of
    another.

    In a pass whose one run covers all blocks, it lives from step to step.
    """
    sizes: dict[str, int] = {}
    lives: dict[str, tuple[int, int]] = {}
    for one in wanted.passes:
        narrow = {tensor.name for _, tensor in made_block_by_block(one, maps)}
        has_runs = one.grid_in(wanted.grid).blocks > 1
        for number, step in enumerate(one.steps, one.first):
            for item in step.flow.touches:
                name = item.name
                if name in wanted.lowered.constants:
                    continue
                first, last = number, number
                if name in maps and has_runs:
                    first, last = one.first, one.last
                elif not isinstance(item, Tensor):
                    last = one.last  # a table is written when all runs are done
                lives[name] = lives.get(name, (first, last))[0], last
                sizes[name] = _bytes_of_all(maps[name], grids[name]) if name in maps else item.bytes
                if isinstance(item, Tensor) and name in narrow:
                    sizes[name] = _bytes_a_block(item)
    for name, (first, last) in lives.items():
        yield Lifetime(name, sizes[name], first, last)


def _bytes_of_all(tensor: Tensor, grid: BlockGrid) -> int:
    """Return the bytes of a map, in whole runs of blocks."""
    return _bytes_a_block(tensor) * grid.stored_blocks(tensor.batch)


def _bytes_a_block(tensor: Tensor) -> int:
    return tensor.bytes // tensor.batch


def scratches(wanted: VolumeRequest) -> Iterator[Lifetime]:
    """Yield lifetimes of the partial sums of all blocks."""
    for one in wanted.passes:
        for number, step in one.measured:
            size = partial_bytes(step, wanted.lowered.card) * one.grid_in(wanted.grid).blocks
            yield Lifetime(scratch_name(number), size, one.first, one.last)
