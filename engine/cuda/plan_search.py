"""Finds the fastest way of doing each convolution by trying them on the card."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from statistics import median
from time import monotonic

import numpy as np

from ..compiler.launches.steps import launches
from ..compiler.memory.plan import ALIGNMENT, aligned
from ..compiler.steps import NUMBER_BYTES, Convolution, Convolve, Precision, Region, Tensor
from ..compiler.weight_layout import encoded
from ..errors import CudaError, DeviceMemoryError
from ..options import TUNING_SECONDS, Effort
from .cudnn import ConvolutionPlans, Cudnn
from .driver import DeviceBuffer, Stream
from .kernel_images import Kernels
from .plan_cache import (
    OWN,
    Candidate,
    Findings,
    Progress,
    TuningCache,
    key_of,
    unheard,
    worth_keeping,
)

_QUICK_PLANS = 8


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How hard to look: effort, seconds for all convolutions together, and who is told.

    progress: told what is measured.
    """

    effort: Effort = "full"
    seconds: float = TUNING_SECONDS
    progress: Progress = unheard


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A convolution ready to run: a built cuDNN plan, or the own kernel where `plans` is None.

    index: of the plan. workspace: bytes that it takes.
    """

    plans: ConvolutionPlans | None
    index: int
    workspace: int

    @property
    def name(self) -> str:
        """cuDNN's name of the plan."""
        return self.plans.name(self.index) if self.plans else OWN


class PlanSearch:
    """Algorithms for convolutions in one precision, measured where nothing is known yet."""

    def __init__(
        self,
        library: Cudnn,
        kernels: Kernels,
        stream: Stream,
        cache: TuningCache,
    ) -> None:
        self._library = library
        self._kernels = kernels
        self._stream = stream
        self._cache = cache

    def algorithms(
        self, shapes: list[Convolution], workspace: int, search: SearchSettings
    ) -> dict[Convolution, Algorithm]:
        """An algorithm for each shape that takes at most `workspace` bytes besides its tensors."""
        deadline = monotonic() + search.seconds
        found: dict[Convolution, Algorithm] = {}
        is_told = False
        different = list(dict.fromkeys(shapes))
        for index, shape in enumerate(different):
            plans = self._plans(shape)
            known = self._known(shape, plans, workspace, search.effort)
            if known is None:
                search.progress(_described(shape), index / len(different))
                left = max(0.0, deadline - monotonic()) / (len(different) - index)
                known = self._found(shape, plans, workspace, search.effort, left)
                is_told = True
            found[shape] = known
        if is_told:
            search.progress("", 1.0)
        return found

    def run(
        self, shape: Convolution, algorithm: Algorithm, addresses: tuple[int, int, int, int]
    ) -> None:
        """Queue a convolution; addresses: of source, weight, target and workspace."""
        if algorithm.plans is None:
            self._run_own(shape, addresses)
        else:
            algorithm.plans.run(algorithm.index, *addresses)

    def _known(
        self, shape: Convolution, plans: ConvolutionPlans | None, workspace: int, effort: Effort
    ) -> Algorithm | None:
        """What needs no measuring."""
        known = self._cache.get(key_of(shape))
        best = known.best(workspace) if known and known.covers(effort, workspace) else None
        ready = self._ready(plans, best.plan) if best else None
        if ready is not None and ready.workspace <= workspace:
            return ready
        return self._first(plans, workspace) if effort == "off" else None

    def _found(
        self,
        shape: Convolution,
        plans: ConvolutionPlans | None,
        workspace: int,
        effort: Effort,
        seconds: float,
    ) -> Algorithm:
        candidates = self._measured(shape, plans, workspace, effort, seconds)
        if not candidates:
            raise CudaError(
                "convolution",
                f"no plan runs {_described(shape)}",
                "run again with setting device=cpu",
            )
        self._cache.put(key_of(shape), Findings(effort, workspace, candidates))
        ready = self._ready(plans, candidates[0].plan)
        assert ready is not None  # it has just been measured
        return ready

    def _plans(self, shape: Convolution) -> ConvolutionPlans | None:
        if shape.split_fp16:
            return None
        try:
            return ConvolutionPlans(self._library, shape)
        except (CudaError, DeviceMemoryError):
            return None

    def _ready(self, plans: ConvolutionPlans | None, name: str) -> Algorithm | None:
        """The algorithm of that name, if it is still offered and builds."""
        if name == OWN:
            return Algorithm(None, 0, 0)
        if plans is None:
            return None
        for index in range(plans.count):
            if plans.name(index) == name:
                try:
                    return Algorithm(plans, index, plans.build(index))
                except (CudaError, DeviceMemoryError):
                    return None
        return None

    def _first(self, plans: ConvolutionPlans | None, workspace: int) -> Algorithm:
        for index in range(plans.count if plans else 0):
            assert plans is not None
            try:
                size = plans.build(index)
            except (CudaError, DeviceMemoryError):
                continue
            if size <= workspace:
                return Algorithm(plans, index, size)
        return Algorithm(None, 0, 0)

    def _measured(
        self,
        shape: Convolution,
        plans: ConvolutionPlans | None,
        workspace: int,
        effort: Effort,
        seconds: float,
    ) -> tuple[Candidate, ...]:
        """Candidates within the workspace, fastest first."""
        deadline = monotonic() + seconds
        found: list[Candidate] = []
        offered = _distinct(plans) if plans else []
        tried = offered if effort == "full" else offered[:_QUICK_PLANS]
        with _open_bench(self._stream, shape, workspace) as bench:
            for index in tried:
                assert plans is not None
                if found and monotonic() > deadline:
                    break
                try:
                    size = plans.build(index)
                    if size > workspace:
                        continue
                    time = bench.time(
                        lambda index=index: plans.run(index, *bench.addresses), _fastest(found)
                    )
                except DeviceMemoryError:
                    continue
                except CudaError as error:
                    if error.is_sticky:
                        raise
                    continue
                found.append(Candidate(plans.name(index), size, time))
            if not found or shape.precision == "fp32":
                time = bench.time(lambda: self._run_own(shape, bench.addresses), _fastest(found))
                found.append(Candidate(OWN, 0, time))
        return worth_keeping(found)

    def _run_own(self, shape: Convolution, addresses: tuple[int, int, int, int]) -> None:
        step, places = _lone_step(shape, addresses)
        for launch in launches(step, lambda name: places[name], self._kernels.card):
            self._kernels.launch(self._stream, launch)


def _distinct(plans: ConvolutionPlans) -> list[int]:
    """Plans without those that another heuristic has named before."""
    first: dict[str, int] = {}
    for index in range(plans.count):
        first.setdefault(plans.name(index), index)
    return list(first.values())


def _fastest(found: list[Candidate]) -> float:
    return min((c.microseconds for c in found), default=float("inf"))


def _lone_step(
    shape: Convolution, addresses: tuple[int, int, int, int]
) -> tuple[Convolve, dict[str, int]]:
    scale = 1.0 if shape.split_fp16 else None
    source = Tensor(
        "source", shape.batch, shape.source_extents, shape.source_channels, shape.precision, scale
    )
    target = Tensor(
        "target", shape.batch, shape.target_extents, shape.target_channels, shape.precision
    )
    step = Convolve("tuning", shape, source, target, Region(0, shape.batch), "weight")
    return step, dict(zip(("source", "weight", "target"), addresses[:3], strict=True))


@contextmanager
def _open_bench(stream: Stream, shape: Convolution, workspace: int) -> Generator["_Bench"]:
    """Memory to try a convolution in, filled with noise: zeros would run too fast."""
    item = NUMBER_BYTES[shape.precision]
    source = shape.batch * prod(shape.source_extents) * shape.source_channels * item
    target = shape.batch * prod(shape.target_extents) * shape.target_channels * item
    weight = prod(shape.kernel) * shape.source_channels * shape.target_channels * item
    source, weight, target, workspace = map(aligned, (source, weight, target, workspace))
    with DeviceBuffer(source + weight + target + workspace or ALIGNMENT) as buffer:
        first = buffer.address
        behind = first + source + weight
        precision: Precision = "fp16" if shape.split_fp16 else shape.precision
        _fill_with_noise(stream, first, source + weight, precision)
        yield _Bench(stream, (first, first + source, behind, behind + target))


def _fill_with_noise(stream: Stream, address: int, size: int, precision: Precision) -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, 1 << 20).astype(np.float32)
    pattern = encoded(noise, precision)
    filled = min(len(pattern), size)
    stream.upload_now(address, pattern[:filled])
    while filled < size:
        more = min(filled, size - filled)
        stream.copy(address + filled, address, more)
        filled += more
    stream.wait()


class _Bench:
    """Times a convolution; addresses: of its source, weight, target and workspace."""

    def __init__(self, stream: Stream, addresses: tuple[int, int, int, int]) -> None:
        self._stream = stream
        self.addresses = addresses

    def time(self, queue: Callable[[], None], best: float) -> float:
        """Microseconds of one run, median; fewer runs where it is far from the best."""
        queue()
        self._stream.wait()
        first = self._timed(queue, 1)
        if first > 2 * best:
            return first
        repeats = int(min(20, max(3, 1000 // max(first, 1))))
        return median(self._timed(queue, repeats) for _ in range(3))

    def _timed(self, queue: Callable[[], None], repeats: int) -> float:
        with self._stream.timed() as elapsed:
            for _ in range(repeats):
                queue()
        return elapsed[0] / repeats * 1000


def _described(shape: Convolution) -> str:
    kind = "transposed convolution" if shape.transposed else "convolution"
    extents = "x".join(str(extent) for extent in shape.source_extents)
    kernel = "x".join(str(k) for k in shape.kernel)
    channels = f"{shape.source_channels} to {shape.target_channels} channels"
    return f"{kind} {kernel}, {channels}, {shape.batch} x {extents}"
