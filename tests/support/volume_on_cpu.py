"""A network over a whole volume whose custom kernels run on the CPU, in one block of memory."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from support.described_gpus import H200
from support.gpu_on_cpu.convolutions import convolved_by_torch
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import poisoned
from support.gpu_on_cpu.streams import Event, Stream

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.block_maps import margins
from cuda_cyclegan.engine.compiler.program.fusion import with_fused_statistics
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED
from cuda_cyclegan.engine.compiler.volume.passes import Pass, passes_of
from cuda_cyclegan.engine.compiler.volume.recomputed import recomputed
from cuda_cyclegan.engine.compiler.volume.volume_lowering import with_low_resolutions_undivided
from cuda_cyclegan.engine.compiler.volume.volume_memory import (
    VolumeMemory,
    VolumeRequest,
    _Choice,
    constants_of,
    volume_memory,
)
from cuda_cyclegan.engine.cuda.volume.program import (
    BlockProgram,
    HostCopies,
    PlacedConvolution,
    PlacedVolume,
    StagedCopies,
)
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.network.layers import FloatArray, Triple, triple
from cuda_cyclegan.engine.options import Precision


@dataclass(frozen=True)
class VolumeOnCpu:
    """A network for blocks of a grid, with its weights in memory."""

    program: BlockProgram
    passes: tuple[Pass, ...]
    grid: BlockGrid
    channels: tuple[int, int]
    weights: Any

    def memory(self, room: int = 1 << 40) -> VolumeMemory:
        """Return the memory used if the GPU has `room` bytes."""
        wanted = VolumeRequest(self.program.lowered, self.passes, self.grid, self.channels, (0, 0))
        return volume_memory(wanted, room)

    def memory_away(self) -> VolumeMemory:
        """Return the memory used if all maps that can be offloaded are."""
        wanted = VolumeRequest(self.program.lowered, self.passes, self.grid, self.channels, (0, 0))
        choice = _Choice(wanted)
        return choice.memory(choice.may_leave)

    def memory_recomputed(self, *, kept: int = 0) -> VolumeMemory:
        """Return the memory used if maps of full resolution are rematerialised, and all others
        kept.

        kept: blocks of the first map that stay.
        """
        passes = recomputed(self.passes)
        wanted = VolumeRequest(self.program.lowered, passes, self.grid, self.channels, (0, 0))
        return _Choice(wanted, is_recomputed=True).memory(kept=kept)

    def __call__(
        self, volume: FloatArray, room: int = 1 << 40, memory: VolumeMemory | None = None
    ) -> FloatArray:
        """Return what the passes make of a volume [C, D, H, W]; what none has written is NaN."""
        memory = memory or self.memory(room)
        with self.placed(memory) as placed:
            return self._made(placed, volume)

    @contextmanager
    def placed(self, memory: VolumeMemory | None = None) -> Iterator[PlacedVolume]:
        """The program with poisoned memory."""
        memory = memory or self.memory()
        block, host = poisoned(memory.bytes), poisoned(memory.host_bytes)
        marks: list[Any] = [Event() for _ in range(2)]
        stream: Any = self.program.stream
        yield PlacedVolume(
            self.program,
            self.grid,
            self.channels[0],
            memory,
            block.ctypes.data,
            lambda: host.ctypes.data,
            HostCopies(*(StagedCopies(stream, marks, marks) for _ in range(2))),
        )

    def _made(self, placed: PlacedVolume, volume: FloatArray) -> FloatArray:
        placed.queue_start(placed.program.stream)
        given = np.ascontiguousarray(volume, np.float32)
        ctypes.memmove(placed.at(PATCHES), given.ctypes.data, given.nbytes)
        placed.queue_passes(placed.memory.passes)
        made = np.empty((self.channels[1], *self.grid.extents), np.float32)
        ctypes.memmove(made.ctypes.data, placed.at(TRANSLATED), made.nbytes)
        return made


def grid_for(graph: Graph, extents: Triple, block: Triple) -> BlockGrid:
    """Blocks at least as large as `block`, each of which holds voxels of all maps of a graph."""
    ends, step = margins(graph), graph.stride

    def fitting(axis: int) -> int:
        past = extents[axis] + ends.beyond[axis]
        within = max(1, extents[axis] - ends.short[axis])
        sizes = count(block[axis], step[axis])
        return next(size for size in sizes if -(-past // size) == -(-within // size))

    return BlockGrid(extents, triple(map(fitting, range(3))))


def volume_on_cpu(
    network: Network,
    grid: BlockGrid,
    precision: Precision,
    *,
    batch: int = 2,
    matrix_kernels: bool = False,
    wgmma: bool = False,
    slab_bytes: int = 112 << 20,
    split_fp16: bool = False,
    undivided: int = 0,
    convolve: PlacedConvolution = convolved_by_torch,
) -> VolumeOnCpu:
    """The network, compiled for the blocks of a grid; batch: blocks in a run.

    undivided: bytes of tensors up to which low resolutions are done for all blocks as one.
    """
    layout = Layout(
        grid.block,
        batch,
        precision,
        slab_bytes,
        matrix_kernels,
        wgmma,
        split_fp16=split_fp16,
        in_blocks=True,
    )
    lowered = lower(network, layout, H200)
    lowered = replace(lowered, steps=with_fused_statistics(lowered.steps))
    one = grid.undivided
    if undivided and one is not None:
        whole = lower(network, replace(layout, patch=one.block, batch=1), H200)
        whole = replace(whole, steps=with_fused_statistics(whole.steps))
        is_filled = one.block == one.extents
        lowered = with_low_resolutions_undivided(
            lowered, whole, is_filled=is_filled, most=undivided
        )
    offsets, size = constants_of(lowered)
    weights = poisoned(size)
    for name, content in lowered.encoded_constants():
        weights[offsets[name] :][: len(content)] = np.frombuffer(content, np.uint8)
    program = BlockProgram(
        lowered,
        {name: weights.ctypes.data + offset for name, offset in offsets.items()},
        Kernels(precision),
        convolve,
        Stream(),  # type: ignore[arg-type]
    )
    channels = network.graph.in_channels, network.graph.out_channels
    return VolumeOnCpu(program, passes_of(lowered), grid, channels, weights)
