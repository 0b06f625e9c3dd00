"""Memory plan of a volume's maps: placement and bytes, before any allocation."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...errors import DeviceMemoryError
from ...network.graph import times
from ...whole_volume import Residence
from ..blocks import BlockGrid
from ..kernels.launch import CLIPPED, OVERFLOW
from ..kernels.sliding_window import CLIPPED_BYTES
from ..kernels.step_launches import partial_bytes
from ..lowered import Lowered
from ..program.memory import WORKSPACE_BYTES, Lifetime, arrange, scratch_name
from ..steps import is_planned
from ..tensors import PATCHES, TRANSLATED, Tensor
from .passes import KeptBlocks, Pass, copied_in, maps_of, narrow_steps
from .recomputed import keeping_blocks, recomputed

WORKSPACE = "workspace"
"""Name of the workspace that all convolutions share, one after another."""

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
    before, after = -1, wanted.passes[-1].last + 1
    flows = [(one, step.flow) for one in wanted.passes for step in one.steps]
    last = max((one.last for one, flow in flows if flow.from_patches), default=0)
    first = min(one.first for one, flow in flows if flow.to_patches)
    input_bytes, output_bytes = (count * prod(wanted.grid.extents) * 4 for count in wanted.channels)
    yield Lifetime(PATCHES, input_bytes, before, last)
    yield Lifetime(TRANSLATED, output_bytes, first, after)
    yield Lifetime(VOXELS_IN, wanted.voxels[0], before, wanted.passes[0].last)
    yield Lifetime(VOXELS_OUT, wanted.voxels[1], wanted.passes[-1].first, after)
    yield Lifetime(OVERFLOW, 4, before, after)
    yield Lifetime(CLIPPED, CLIPPED_BYTES, before, after)
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
        narrow = {tensor.name for _, tensor in narrow_steps(one, maps)}
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
            size = partial_bytes(step, wanted.lowered.gpu) * one.grid_in(wanted.grid).blocks
            yield Lifetime(scratch_name(number), size, one.first, one.last)


_DEVICE_PAGE, _HOST_PAGE, _PAGE_ENTRY = 2 << 20, 4 << 10, 8
"""Least bytes that the driver allocates, bytes of a page of pinned memory and of its entry."""

KERNEL_BYTES = 4 << 20
"""Bytes of loaded custom kernels; a little more than was measured on an H200."""

STAGES = 2
"""Staging buffers of a map in host memory: runs of blocks on the GPU, one computed or read, and one
being copied.
"""


@dataclass(frozen=True, slots=True)
class VolumeMemory:
    """Memory plan of a volume, in one block of the GPU's and one of the host's: offsets by name.

    offsets, host_offsets: in each. bytes, host_bytes: of both. maps: tensors that exist for all
    blocks. grids: by which each of them is stored. constants: bytes of weights and tables, in a
    block of their own, which all volumes of the same blocks share. passes: in which the network
    runs. is_recomputed: whether these recompute maps.
    """

    offsets: Mapping[str, int]
    bytes: int
    host_offsets: Mapping[str, int]
    host_bytes: int
    maps: Mapping[str, Tensor]
    grids: Mapping[str, BlockGrid]
    constants: int
    passes: Sequence[Pass]
    is_recomputed: bool

    def fetched_by(self, one: Pass) -> list[str]:
        """Return maps in host memory whose blocks are copied to the GPU ahead of the runs of a
        pass.
        """
        return sorted(
            name for name in self.host_offsets if fetched_name(name, one, 0) in self.offsets
        )

    @property
    def kept(self) -> KeptBlocks | None:
        """Blocks that are not recomputed, unlike the others."""
        return next((one.kept for one in self.passes if one.kept is not None), None)

    @property
    def residence(self) -> Residence:
        """Memory in which maps are stored."""
        if self.host_bytes:
            return "host"
        return "recomputed" if self.is_recomputed else "card"

    @property
    def device_bytes(self) -> int:
        """All bytes of GPU memory, including the driver's overhead.

        The driver rounds blocks up to its own pages, lists the pages of pinned memory of the host,
        and loads custom kernels.
        """
        blocks = sum(in_device_pages(size) for size in (self.bytes, self.constants))
        return blocks + -(-self.host_bytes // _HOST_PAGE) * _PAGE_ENTRY + KERNEL_BYTES


def in_device_pages(size: int) -> int:
    """Return the bytes that the driver allocates for a block of so many."""
    return -(-size // _DEVICE_PAGE) * _DEVICE_PAGE


def constants_of(lowered: Lowered) -> tuple[Mapping[str, int], int]:
    """Return the offsets of the constants, and their bytes in all."""
    arena = arrange(Lifetime(name, size, 0, 0) for name, size in lowered.constant_bytes().items())
    return arena.offsets, arena.bytes


def volume_memory(wanted: VolumeRequest, budget: int) -> VolumeMemory:
    """Plan all maps on the GPU if they fit in so many bytes; else some recomputed, or on the host.

    To recompute them takes less time than to copy them back. Raises DeviceMemoryError, which names
    the least sufficient bytes.
    """
    memory = _memory_within(wanted, budget)
    if wanted.trial > budget:
        raise _too_little(wanted, wanted.trial, budget)
    return memory


def _memory_within(wanted: VolumeRequest, budget: int) -> VolumeMemory:
    choices = list(_choices(wanted))
    for choice in choices:
        if (memory := choice.memory()).device_bytes <= budget:
            return _keeping_blocks(choice, memory, budget)
    least: list[int] = []
    for choice in reversed(choices):
        try:
            return _with_maps_on_the_host(choice, budget)
        except DeviceMemoryError as error:
            least.append(error.wanted or 0)
    raise _too_little(wanted, min(least), budget)


def _choices(wanted: VolumeRequest) -> Iterator["_Choice"]:
    """Yield the choice of storing all maps, and of recomputing those of full resolution if
    possible.
    """
    yield _Choice(wanted)
    if not wanted.may_recompute:
        return
    passes = recomputed(wanted.passes)
    if passes != tuple(wanted.passes):
        yield _Choice(replace(wanted, passes=passes), is_recomputed=True)


def _keeping_blocks(choice: "_Choice", memory: VolumeMemory, budget: int) -> VolumeMemory:
    """Return the plan of passes that recompute maps, with as many blocks kept as fit."""
    if memory.kept is None:
        return memory
    run = memory.kept.tensor.batch
    counts = range(run, choice.wanted.grid.blocks, run)
    fitting = bisect_right(counts, budget, key=lambda count: choice.memory(kept=count).device_bytes)
    return choice.memory(kept=counts[fitting - 1]) if fitting else memory


def _with_maps_on_the_host(choice: "_Choice", budget: int) -> VolumeMemory:
    """Return the plan with as many maps offloaded as can be, the largest first.

    Those that are used most move back to the GPU if they fit.
    """
    away = tuple(choice.may_leave)
    memory = choice.memory(away)
    least = memory.device_bytes
    while away and memory.device_bytes > budget:  # with few blocks, staging buffers are as large
        away = away[:-1]
        memory = choice.memory(away)
        least = min(least, memory.device_bytes)
    if memory.device_bytes > budget:
        raise _too_little(choice.wanted, least, budget)
    for one in sorted(away, key=choice.moved, reverse=True):
        others = tuple(other for other in away if other != one)
        with_it = choice.memory(others)
        if with_it.device_bytes <= budget:
            away, memory = others, with_it
    return memory


class _Choice:
    """A possible memory plan of a volume. may_leave: maps that may be offloaded, largest first."""

    def __init__(self, wanted: VolumeRequest, is_recomputed: bool = False) -> None:
        self.wanted = wanted
        self._is_recomputed = is_recomputed
        self._maps = maps_of(wanted.lowered, wanted.passes)
        self._grids = grids_of_maps(wanted, self._maps)
        kept = tensors(wanted, self._maps, self._grids)
        self._alive = [*ends(wanted), *kept, *scratches(wanted)]
        self._written_in = _passes_that_make(wanted, self._maps)
        self._constants = constants_of(wanted.lowered)[1]
        names = self._written_in.keys() | {PATCHES, TRANSLATED}
        self.may_leave = sorted(
            (one for one in self._alive if one.name in names),
            key=lambda one: (-one.bytes, one.first, one.name),
        )

    def memory(self, away: Sequence[Lifetime] = (), kept: int = 0) -> VolumeMemory:
        """Return the plan with the maps `away` offloaded; kept: blocks that are not recomputed."""
        left = {one.name for one in away}
        passes = keeping_blocks(self.wanted.passes, kept)
        fetched = {one.first: self._fetched(one, left) for one in passes}
        stages = [stage for one in passes for stage in self._stages(one, left, fetched[one.first])]
        there = (one for one in self._alive if one.name not in left)
        device = arrange([*there, *self._kept(kept), *stages])
        host = arrange(away)
        return VolumeMemory(
            offsets=device.offsets,
            bytes=device.bytes,
            host_offsets=host.offsets,
            host_bytes=host.bytes,
            maps=self._maps,
            grids=self._grids,
            constants=self._constants,
            passes=passes,
            is_recomputed=self._is_recomputed,
        )

    def moved(self, one: Lifetime) -> tuple[bool, int]:
        """Return whether a map is the volume's input or output, and the bytes read and written.

        Input and output rank first: they are transferred while passes run only if they are on the
        GPU.
        """
        uses = sum(
            (one.name in step.flow.read_names) + (one.name in step.flow.written_names)
            for each in self.wanted.passes
            for step in each.steps
        )
        return one.name in (PATCHES, TRANSLATED), uses * one.bytes

    def _kept(self, count: int) -> Iterator[Lifetime]:
        """Yield the lifetimes of `count` kept blocks of recomputed maps, from their first
        computation.
        """
        for one in self.wanted.passes if count else ():
            if one.kept is not None:
                stored = next(each for each in self._alive if each.name == one.kept.tensor.name)
                size = count * one.kept.block_bytes
                yield Lifetime(one.kept.name, size, stored.first, one.last)

    def _fetched(self, one: Pass, left: Collection[str]) -> list[str]:
        """Return offloaded maps whose blocks are copied ahead of the runs that read them."""
        grid = one.grid_in(self.wanted.grid)
        kept = {name for name in left & self._maps.keys() if self._grids[name] == grid}
        return copied_in(one, kept)

    def _stages(
        self, one: Pass, left: Collection[str], fetched: Sequence[str]
    ) -> Iterator[Lifetime]:
        """Yield the lifetimes of a pass's staging buffers of maps in host memory."""
        staged = [name for name in left if self._written_in.get(name) == one.first]
        for stage in range(STAGES):
            for name in staged:
                size = self._maps[name].bytes
                yield Lifetime(staged_name(name, stage), size, one.first, one.last)
            for name in fetched:
                size = self._maps[name].bytes
                yield Lifetime(fetched_name(name, one, stage), size, one.first, one.last)


def _too_little(wanted: VolumeRequest, least: int, budget: int) -> DeviceMemoryError:
    least = max(least, wanted.trial)
    mib = -(-least >> 20)
    return DeviceMemoryError(
        f"The network needs {mib} MiB of GPU memory for blocks of {times(wanted.grid.block)}, but "
        f"only {max(0, budget) >> 20} MiB may be used; use a setting vram-limit of at least "
        f"{mib} MiB, or setting inference=patches.",
        wanted=least,
        free=max(0, budget),
    )


def staged_name(name: str, stage: int) -> str:
    """Return the name of the staging buffer for an offloaded map; stage: which of them."""
    return f"{name} staged {stage}"


def fetched_name(name: str, one: Pass, stage: int) -> str:
    """Return the name of the staging buffer from which a pass reads an offloaded map."""
    return f"{name} fetched for step {one.first}, {stage}"


def _passes_that_make(wanted: VolumeRequest, maps: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the first step of the pass of each map that is written by only one pass."""
    makers: dict[str, list[int]] = {}
    for one in wanted.passes:
        for name in one.written_names & maps.keys():
            makers.setdefault(name, []).append(one.first)
    return {name: passes[0] for name, passes in makers.items() if len(passes) == 1}
