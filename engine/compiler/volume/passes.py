"""Division of a network's steps into passes over a volume's blocks.

Within a pass each run of blocks goes through all steps before the next run does. A pass ends where
a step needs more than its own blocks: voxels of others, or statistics of the volume.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeGuard

from ...network.layers import Triple
from ..blocks import BlockGrid, BlockRun
from ..kernels.table import kernel_of
from ..lowered import Lowered
from ..steps import AddPatches, Conv, Pointwise, Reach, Statistics, Step, is_planned
from ..tensors import AffineTable, Tensor, TensorView


@dataclass(frozen=True, slots=True)
class KeptBlocks:
    """The first blocks of a volume, for which a pass reads what it recomputes for all others.

    tensor: of a run, which an earlier pass writes. count: blocks of it that are kept, in whole
    runs. steps: of the pass for these blocks, which read no later ones.
    """

    tensor: Tensor
    count: int
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """Name of the kept blocks' memory; the tensor's own name is for all later runs."""
        return f"{self.tensor.name} kept"

    @property
    def block_bytes(self) -> int:
        return self.tensor.bytes // self.tensor.batch

    def has(self, run: BlockRun) -> bool:
        """Return whether a run's blocks are kept."""
        return run.first + run.count <= self.count


@dataclass(frozen=True, slots=True)
class Pass:
    """Steps [first, first + len(steps)) of a program.

    first: number of the first step. steps: in order. block: extents of its blocks, None for those
    of the volume's grid. batch: blocks in one run, None for as many as usual. is_recomputed:
    whether it recomputes what another pass computed for statistics, in differently placed blocks.
    is_whole: whether its one step is for the volume as one array, and not for blocks. kept: blocks
    that its first step need not recompute, if some may be kept from the first computation.
    """

    first: int
    steps: tuple[Step, ...]
    block: Triple | None = None
    batch: int | None = None
    is_recomputed: bool = False
    kept: KeptBlocks | None = None

    def grid_in(self, grid: BlockGrid) -> BlockGrid:
        """Return the grid of its blocks; grid: the volume's."""
        return BlockGrid(grid.extents, self.block) if self.block else grid

    @property
    def last(self) -> int:
        """Number of the last step."""
        return self.first + len(self.steps) - 1

    def of_run(self, run: BlockRun) -> "Pass":
        """Return the pass as it is for a run."""
        if self.kept is None or not self.kept.has(run):
            return self
        steps = self.kept.steps
        return replace(self, first=self.last + 1 - len(steps), steps=steps)

    @property
    def is_whole(self) -> bool:
        return isinstance(self.steps[0], AddPatches)

    @property
    def written_names(self) -> set[str]:
        """Names of the outputs of its steps."""
        return {name for step in self.steps for name in step.flow.written_names}

    @property
    def measured(self) -> Iterator[tuple[int, Step]]:
        """Steps that compute statistics, with their numbers."""
        for number, step in enumerate(self.steps, self.first):
            if step.flow.measures is not None:
                yield number, step


def passes_of(lowered: Lowered) -> tuple[Pass, ...]:
    """Return all passes, in order."""
    passes: list[Pass] = []
    steps: list[Step] = []
    written: set[str] = set()
    for number, step in enumerate(lowered.steps):
        is_over = (
            written & set(_needed_whole(step)) or _is_alone(step) or _is_parted(lowered, number)
        )
        if steps and (is_over or _is_alone(steps[-1])):
            passes.append(_pass_of(lowered, number - len(steps), steps))
            steps, written = [], set()
        steps.append(step)
        written |= step.flow.written_names
    passes.append(_pass_of(lowered, len(lowered.steps) - len(steps), steps))
    return tuple(passes)


def _is_parted(lowered: Lowered, number: int) -> bool:
    """Return whether a step is for other blocks than the one before it."""
    undivided = lowered.undivided
    return undivided is not None and number in (undivided.first, undivided.stop)


def _pass_of(lowered: Lowered, first: int, steps: Sequence[Step]) -> Pass:
    undivided = lowered.undivided
    if undivided is None or not undivided.first <= first < undivided.stop:
        return Pass(first, tuple(steps))
    return Pass(first, tuple(steps), undivided.block)


def narrow_steps(one: Pass, maps: Mapping[str, Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Yield positions in a pass of steps whose result only the next step reads, both custom
    kernels.

    There is memory for one block of it: a run executes both steps block by block.
    """
    for number, (step, reader) in enumerate(pairwise(one.steps)):
        if isinstance(step, Conv) and step.patches and isinstance(reader, Pointwise):
            others = (other for other in one.steps if other is not step and other is not reader)
            is_read = any(step.target.name in other.flow.read_names for other in others)
            if step.target.name not in maps and not is_read:
                yield number, step.target


def goes_in_any_order(one: Pass, maps: Mapping[str, Tensor]) -> bool:
    """Return whether runs of a pass may take any of its blocks in any order.

    They may if all of its output leaves the GPU. A cuDNN plan may treat the blocks of a run
    differently, unless that was checked.
    """
    if any(one.measured) or one.written_names & maps.keys():
        return False
    for step in one.steps:
        if isinstance(step, AddPatches):
            return False
        if is_planned(step) and not one.is_recomputed:
            return False
        reads = step.flow.read_names & maps.keys()
        if reads and not isinstance(step, Pointwise):
            return False
    return True


def copied_in(one: Pass, names: Collection[str]) -> list[str]:
    """Return maps in host memory whose blocks can be copied in ahead of the runs of a pass.

    names: maps in host memory that are stored by the grid of the pass. A pass over voxels reads the
    run's own blocks from the copy and those around them from host memory; any other step may read
    only its own blocks.
    """

    def can_read_copies(step: Step) -> bool:
        if isinstance(step, Statistics):
            return False  # all blocks are measured as one
        return isinstance(step, Pointwise) or not sees_neighbours(step)

    found: list[str] = []
    for name in sorted(set(names) - one.written_names):
        readers = [step for step in one.steps if name in step.flow.read_names]
        if readers and all(can_read_copies(step) for step in readers):
            found.append(name)
    return found


def _is_alone(step: Step) -> bool:
    return isinstance(step, AddPatches)


def _needed_whole(step: Step) -> Iterator[str]:
    """Yield the names of operands that must exist for all blocks before a step runs for any."""
    yield from (table.name for table in step.flow.tables)
    if sees_neighbours(step):
        yield from step.flow.read_names


def finds_blocks(step: Step) -> TypeGuard[Pointwise | Conv]:
    """Return whether a step locates the block that contains a voxel of a map."""
    return isinstance(step, Pointwise) or (isinstance(step, Conv) and kernel_of(step).finds_blocks)


def source_of(step: Pointwise | Conv) -> TensorView:
    """Return the view that such a step reads."""
    return step.source if isinstance(step, Pointwise) else step.views[0].source


def sees_neighbours(step: Step) -> bool:
    """Return whether a step reads a map beyond its own block."""
    if not finds_blocks(step) or step.around is not None:
        return False
    if isinstance(step, Conv):
        return True
    is_continued = step.excess != step.target.excess  # or cut off, at the volume's end
    is_own = step.sampling is None and step.reach == Reach((0, 0, 0), step.extents)
    return is_continued or not is_own


def maps_of(lowered: Lowered, passes: Iterable[Pass]) -> dict[str, Tensor]:
    """Return the tensors that one pass writes and another reads, stored for all blocks, by name."""
    found: dict[str, int] = {}
    tensors: dict[str, Tensor] = {}
    maps: dict[str, Tensor] = {}
    for number, one in enumerate(passes):
        for step in one.steps:
            for item in step.flow.touches:
                if isinstance(item, AffineTable) or item.name in lowered.constants:
                    continue
                tensors.setdefault(item.name, item)
                if found.setdefault(item.name, number) != number:
                    maps[item.name] = tensors[item.name]
    return maps
