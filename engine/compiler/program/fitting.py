"""Choice of the largest batch and the fastest tactics that fit into device memory; uses no GPU."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import log2, prod, sqrt
from typing import Generic, Protocol, TypeAlias, TypeVar

from ...errors import DeviceMemoryError
from ...network.graph import Graph, Network, times
from ...network.graph_analysis import flops, largest_patch
from ...network.layers import Triple
from ...options import Precision
from ..gpu_properties import WGMMA_CAPABILITY, GpuProperties
from ..kernels.table import TENSOR_CORE_KERNELS
from ..lowered import USUAL_SLAB_BYTES, LayerForm, Layout, Lowered
from ..steps import ConvShape, is_planned, planned
from .lowering import lower
from .memory import MemoryPlan, bytes_of_trials, plan_memory
from .split_fp16 import split_fp16_pays

_SLABS = (USUAL_SLAB_BYTES, 48 << 20, 16 << 20)
"""Bytes of slabs (`Layout.slab_bytes`), from the fastest to the smallest."""

_MATRIX_CAPABILITY = (8, 0)
"""First compute capability with Tensor Core instruction m16n8k16 of both 16-bit types."""

SPLIT_KERNEL = "convolve_split_fp16"
"""Custom kernel, by its .cu file, for convolutions on split fp16 (`Layout.split_fp16`)."""

_LEAST_WORKSPACE, MOST_WORKSPACE = 4 << 10, 512 << 20
"""Least and most bytes of workspace of a convolution."""

_RUN, _SCAN, _MOST_PATCHES = 620 * 10**6, 35 * 10**6, 8
"""Fixed cost of a run, in operations per multiprocessor; voxels of all patches of a usual scan, one
of 256x256x180 with overlaps; and most patches in a run.

Measured on an H200 (tests/benchmarks/results/batch_sizes.json).
"""

_RESERVE = 64 << 20
"""Bytes of GPU memory kept free: cuDNN loads its kernels there."""


def usual_batch(graph: Graph, patch: Triple, multiprocessors: int) -> int:
    """Return the number of patches per run that is fastest on a GPU, as a power of two.

    A larger batch b takes fewer runs, but leaves more of a scan's last one empty: if a run costs c
    in addition to t for each of its patches, n of them take (n / b) (c + b t) and some b t / 2 for
    the empty part, which is least at b = sqrt(2 n c / t).
    """
    patches, cost = _SCAN / prod(patch), multiprocessors * _RUN / max(1, flops(graph, patch))
    best = max(1.0, sqrt(2 * patches * cost))
    return min(_MOST_PATCHES, 1 << round(log2(best)))


class ChosenTactic(Protocol):
    """Tactic of a convolution: a cuDNN plan or the custom kernel."""

    @property
    def name(self) -> str:
        """cuDNN's name of the plan, or that of the custom kernel."""
        ...

    @property
    def workspace(self) -> int:
        """Bytes of workspace, in addition to its tensors."""
        ...


A = TypeVar("A", bound=ChosenTactic)
A_co = TypeVar("A_co", bound=ChosenTactic, covariant=True)

Choose: TypeAlias = Callable[[list[ConvShape], int], Mapping[ConvShape, A]]
"""Choose a tactic for each convolution that takes at most so many bytes of workspace."""


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """Target for which a network is compiled.

    patch: (D, H, W). batch: patches in one run, at most. precision: of the arithmetic. gpu: the one
    on which it is to run. without: custom kernels, by their .cu files, that are wrong on this GPU.
    forms: as of `Layout`.
    """

    patch: Triple
    batch: int
    precision: Precision
    gpu: GpuProperties
    without: frozenset[str] = frozenset()
    forms: Mapping[str, LayerForm] = field(default_factory=dict[str, LayerForm])

    @property
    def fastest(self) -> Layout:
        """Fastest layout, which takes most memory."""
        capability = self.gpu.capability
        has_matrix = self.precision in ("fp16", "bf16") and capability >= _MATRIX_CAPABILITY
        has_split = split_fp16_pays(self.precision, capability) and SPLIT_KERNEL not in self.without
        return Layout(
            self.patch,
            self.batch,
            self.precision,
            matrix_kernels=has_matrix,
            wgmma=has_matrix and capability == WGMMA_CAPABILITY,
            forms=self.forms,
            split_fp16=has_split,
            without=tuple(sorted(self.without & TENSOR_CORE_KERNELS)),
        )

    def layouts(self) -> Iterator[Layout]:
        """Yield layouts from the fastest to the smallest."""
        fastest, batch = self.fastest, self.batch
        while batch:
            for slab_bytes in _SLABS:
                yield replace(fastest, batch=batch, slab_bytes=slab_bytes)
            batch //= 2


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of a GPU that are free, and those that the user allows; None for all.

    free: bytes now. allowed: bytes at most.
    """

    free: int
    allowed: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes that program and arrays may take together."""
        usable = max(0, self.free - _RESERVE)
        return usable if self.allowed is None else min(usable, self.allowed)

    def too_small(self, needed: int, patch: Triple, fitting: Triple | None) -> DeviceMemoryError:
        """Return the error of a program that needs more; fitting: a smaller patch, if any fits."""
        smaller = "use smaller patches"
        if fitting:
            smaller = f"use smaller patches (setting patch={','.join(map(str, fitting))} fits)"
        wants = f"The network needs {_mib(needed)} MiB of GPU memory for patches of {times(patch)}"
        if needed > self.free - _RESERVE:
            return DeviceMemoryError(
                f"{wants}, but only {max(0, self.free - _RESERVE) >> 20} MiB are free; end other "
                f"programs on the GPU, {smaller} or use another GPU."
            )
        return DeviceMemoryError(
            f"{wants}, but only {self.bytes >> 20} MiB may be used; {smaller} or a "
            f"setting vram-limit of at least {_mib(needed)} MiB."
        )


@dataclass(frozen=True, slots=True)
class Fitted(Generic[A_co]):
    """A lowered network with its memory plan, and the tactic of each convolution.

    tactics: by the convolution's shape.
    """

    lowered: Lowered
    memory: MemoryPlan
    tactics: Mapping[ConvShape, A_co]


def fit(
    network: Network,
    wanted: ProgramRequest,
    budget: MemoryBudget,
    choose: Choose[A],
    on_lowered: Callable[[Lowered], None] = lambda _: None,
) -> Fitted[A]:
    """Return the program for the available memory, in which its layers are tried before.

    on_lowered: called with the steps before tactics are chosen, which takes longest.

    It leaves half of the memory to the arrays if it can, by fewer patches per run, smaller slabs
    of the outer layers or less workspace: cutting and blending on the host costs more. Raises
    DeviceMemoryError, which names the smallest sufficient limit.
    """
    smallest, tight = 0, None
    for layout in wanted.layouts():
        least = _least(network, layout, wanted.gpu)
        if least.bytes <= budget.bytes:
            if least.memory.bytes <= budget.bytes // 2:
                on_lowered(least.lowered)
                return _fastest(network, least, budget.bytes, budget.bytes // 2, choose)
            if layout.batch == 1 and tight is None:
                tight = least
        smallest = min(smallest or least.bytes, least.bytes)
    if tight is None:
        raise budget.too_small(smallest, wanted.patch, _fitting_patch(network, wanted, budget))
    on_lowered(tight.lowered)
    return _fastest(network, tight, budget.bytes, budget.bytes, choose)


@dataclass(frozen=True, slots=True)
class _Least:
    """A network with the least workspace.

    trial: bytes of the largest trial before it is open.
    """

    lowered: Lowered
    memory: MemoryPlan
    trial: int

    @property
    def bytes(self) -> int:
        """Bytes that it needs at least."""
        return max(self.memory.bytes, self.trial)


def _least(network: Network, layout: Layout, gpu: GpuProperties) -> _Least:
    lowered = lower(network, layout, gpu)
    memory = _memory_plan(network, lowered, None)
    return _Least(lowered, memory, bytes_of_trials(lowered, _LEAST_WORKSPACE))


def _fitting_patch(network: Network, wanted: ProgramRequest, budget: MemoryBudget) -> Triple | None:
    """Return the largest smaller patch whose program, planned for little memory, fits."""

    def fits(patch: Triple) -> bool:
        *_, smallest = replace(wanted, patch=patch, batch=1).layouts()
        return _least(network, smallest, wanted.gpu).bytes <= budget.bytes

    return largest_patch(network.graph, wanted.patch, fits)


def _fastest(
    network: Network, least: _Least, budget: int, share: int, choose: Choose[A]
) -> Fitted[A]:
    lowered = least.lowered
    shapes = [step.shape for step in planned(lowered.steps)]
    spare = min(share - least.memory.bytes, budget - least.trial, MOST_WORKSPACE)
    tactics = choose(shapes, spare + _LEAST_WORKSPACE)
    plan = _memory_plan(network, lowered, tactics)
    if plan.bytes <= share:
        return Fitted(lowered, plan, tactics)
    return Fitted(lowered, least.memory, choose(shapes, _LEAST_WORKSPACE))


def _memory_plan(
    network: Network, lowered: Lowered, tactics: Mapping[ConvShape, ChosenTactic] | None
) -> MemoryPlan:
    """Return the memory plan; without tactics, with the least workspace for each convolution."""
    graph = network.graph
    workspaces = {
        index: tactics[step.shape].workspace if tactics else _LEAST_WORKSPACE
        for index, step in enumerate(lowered.steps)
        if is_planned(step)
    }
    return plan_memory(lowered, (graph.in_channels, graph.out_channels), workspaces)


def _mib(size: int) -> int:
    return -(-size // 2**20)
