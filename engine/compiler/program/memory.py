"""Device memory of a program and of the trials before it: sizes and addresses, known before any
allocation.
"""

from bisect import insort
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import prod

from ..gpu_properties import GpuProperties
from ..kernels.checks import RUNS, most_samples
from ..kernels.launch import OVERFLOW
from ..kernels.plain import PlainCounterpart, of_one_patch, plain_counterpart
from ..kernels.step_launches import scratch_bytes
from ..kernels.table import checked
from ..lowered import Lowered
from ..steps import ConvShape, Normalise, Pointwise, Step, planned
from ..tensors import COUNTERS, NUMBER_BYTES, PATCHES, TRANSLATED

ALIGNMENT = 256

WORKSPACE_BYTES = 64 << 20
"""Most workspace bytes of convolutions whose tactics must not depend on a memory budget: those of
volumes, those compared with a custom kernel, and those of benchmarks.
"""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A block needed from step `first` to step `last`, both included.

    name: of the block. bytes: its size.
    """

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Offset of each block, and bytes of the whole.

    offsets: bytes from the start, by name of the block.
    """

    offsets: Mapping[str, int]
    bytes: int


def aligned(size: int) -> int:
    """Return bytes rounded up to the alignment of blocks."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def arrange(lifetimes: Iterable[Lifetime]) -> Arena:
    """Return offsets such that no two blocks that live at the same time overlap.

    Large blocks are placed first, each at the lowest offset free for all of its life: the greedy
    scheme of Pisarchyk and Lee, 2020, "Efficient memory management for deep neural net inference".
    """
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # start, end, first and last step; by their starts
    for block in sorted(lifetimes, key=lambda block: (-block.bytes, block.first, block.name)):
        size, offset = aligned(block.bytes), 0
        for start, end, first, last in placed:
            if last < block.first or block.last < first:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[block.name] = offset
        insort(placed, (offset, offset + size, block.first, block.last))
    return Arena(offsets, max((end for _, end, *_ in placed), default=0))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of a program in device memory, all of it in one block; offsets by name.

    constants: weights and tables. patches: input and output. tensors: everything between, with the
    scratch memory of single steps. bytes: of the block.
    """

    offsets: Mapping[str, int]
    bytes: int
    constants: int
    patches: int

    @property
    def tensors(self) -> int:
        return self.bytes - self.constants - self.patches


def scratch_name(step: int) -> str:
    """Return the name of the scratch memory of a step."""
    return f"scratch of step {step}"


def plan_memory(
    lowered: Lowered, channels: tuple[int, int], workspaces: Mapping[int, int]
) -> MemoryPlan:
    """Lay out a program; channels: of its input and output; workspaces: bytes by convolution step.

    Tensors whose lives do not touch share memory; a pass that changes neither shape nor border
    works in place.
    """
    last = len(lowered.steps)
    constants = [Lifetime(*constant, 0, last) for constant in lowered.constant_bytes().items()]
    patch = lowered.layout.patch
    voxels = lowered.layout.batch * patch[0] * patch[1] * patch[2]
    ends = [
        Lifetime(name, count * voxels * 4, 0, last)
        for name, count in zip((PATCHES, TRANSLATED), channels, strict=True)
    ]
    ends.append(Lifetime(OVERFLOW, 4, 0, last))
    owners = _owners(lowered.steps)
    tensors = _tensors(lowered.steps, lowered.constants, owners)
    blocks = [*constants, *ends, *tensors, *_scratches(lowered, workspaces)]
    arena = arrange(blocks)
    offsets = dict(arena.offsets)
    offsets.update({name: offsets[owner] for name, owner in owners.items()})
    held = [sum(aligned(block.bytes) for block in group) for group in (constants, ends)]
    return MemoryPlan(offsets, arena.bytes, *held)


def most_live_bytes(steps: Sequence[Step], constants: Container[str]) -> int:
    """Return the most bytes of tensors and tables that steps need at a time. constants: names of
    tables that no step writes.
    """
    changes = [0] * (len(steps) + 1)
    for block in _tensors(steps, constants, _owners(steps)):
        changes[block.first] += aligned(block.bytes)
        changes[block.last + 1] -= aligned(block.bytes)
    return max(accumulate(changes))


def _tensors(
    steps: Sequence[Step], constants: Container[str], owners: Mapping[str, str]
) -> Iterator[Lifetime]:
    sizes: dict[str, int] = {}
    lives: dict[str, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for item in step.flow.touches:
            if item.name in constants:
                continue
            name = owners.get(item.name, item.name)
            sizes[name] = item.bytes
            lives[name] = lives.get(name, (index, index))[0], index
    for name, (first, last) in lives.items():
        yield Lifetime(name, sizes[name], first, last)


def _scratches(lowered: Lowered, workspaces: Mapping[int, int]) -> Iterator[Lifetime]:
    for index, step in enumerate(lowered.steps):
        size = scratch_bytes(step, lowered.gpu) or workspaces.get(index, 0)
        if size:
            yield Lifetime(scratch_name(index), size, index, index)


def _owners(steps: Sequence[Step]) -> dict[str, str]:
    """Return, for each tensor that is written in place, the tensor whose memory it reuses."""
    touches: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for item in step.flow.touches:
            touches.setdefault(item.name, []).append(index)
    owners: dict[str, str] = {}
    for index, step in enumerate(steps):
        step = step.pointwise if isinstance(step, Normalise) else step
        if not isinstance(step, Pointwise) or not _can_be_in_place(step):
            continue
        source, target = step.source.tensor.name, step.target.name
        if touches[source][-1] == index and touches[target][0] == index:
            owners[target] = owners.get(source, source)
    return owners


def _can_be_in_place(step: Pointwise) -> bool:
    source, target = step.source, step.target
    same_shape = source.is_whole and step.output.extents == source.extents
    same_memory = target.bytes == source.tensor.bytes and target.channels == source.channels
    if step.residual is not None and step.residual.tensor.name == source.tensor.name:
        return False
    return same_shape and same_memory and step.sampling is None and step.origin == (0, 0, 0)


GUARD = ALIGNMENT
"""Bytes of NaN on both sides of everything that a trial may read or write."""

FINGERPRINTS, PARTIALS = "fingerprints", "partial sums"
"""Names of blocks: fingerprints of results, and partial sums between two launches of a step."""

_NOTED = 1024
"""Most fingerprints of a convolution that fit."""


def between_guards(sizes: Mapping[str, int]) -> Arena:
    """Return the layout of consecutive blocks of these sizes, each between guards."""
    offsets, end = dict[str, int](), GUARD
    for name, size in sizes.items():
        offsets[name] = end
        end += aligned(size) + GUARD
    return Arena(offsets, end)


def convolution_blocks(shape: ConvShape, workspace: int) -> Mapping[str, int]:
    """Return bytes by name of a convolution's input and output, and of the results of its check."""
    item = NUMBER_BYTES[shape.precision]
    samples = most_samples(shape)
    return {
        "source": shape.batch * prod(shape.source_extents) * shape.source_channels * item,
        "weight": shape.weights * item,
        "target": shape.batch * prod(shape.target_extents) * shape.target_channels * item,
        "workspace": workspace,
        FINGERPRINTS: 8 * _NOTED,
        "found": 8,
        "voxels": 8 * samples,
        "sums": 16 * samples * shape.target_channels,
    }


def layer_blocks(trial: PlainCounterpart, gpu: GpuProperties) -> Mapping[str, int]:
    """Return bytes by name of all memory of an outer layer's trial, and of the results of its
    check.
    """
    sizes = {**trial.sizes, FINGERPRINTS: 2 * 8 * RUNS, OVERFLOW: 4}
    sizes.update((table.name, table.bytes) for table in trial.tables)
    partials = scratch_bytes(trial.conv, gpu)
    if measured := trial.measured:
        table = measured.target
        sizes[table.name] = table.bytes
        sizes[COUNTERS] = 4 * table.patches * table.channels
        partials = max(partials, scratch_bytes(measured, gpu))
    return {**sizes, PARTIALS: partials} if partials else sizes


def bytes_of_trials(lowered: Lowered, workspace: int) -> int:
    """Return the bytes of the largest trial that every start of a program needs.

    Convolutions are tried with so many bytes of workspace, outer layers with one patch at least.
    """
    gpu = lowered.gpu
    convolutions = (convolution_blocks(one.shape, workspace) for one in planned(lowered.steps))
    outer = (
        layer_blocks(plain_counterpart(of_one_patch(one)), gpu) for one in checked(lowered.steps)
    )
    return max((between_guards(each).bytes for each in chain(convolutions, outer)), default=0)
