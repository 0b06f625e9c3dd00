"""Finds the fastest right way of doing each convolution by trying them on the card."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from time import monotonic
from typing import TypeVar

from ..compiler.convolution import Convolution
from ..compiler.kernels import own_kernel
from ..errors import CudaError, DeviceMemoryError
from ..network.graph import times
from ..options import Effort, SearchSettings
from .cudnn import ConvolutionPlans, Cudnn
from .driver import Stream
from .kernel_check import WrongKernelError
from .kernel_images import Kernels
from .plan_bench import PlanBench, open_bench
from .plan_cache import OWN, Candidate, Findings, TuningCache, key_of, worth_keeping
from .plan_check import VERSION, PlanCheck, PlanVerdict, QueuedPlan, run_own
from .trial_memory import TrialMemory

_Result = TypeVar("_Result")

_QUICK_PLANS = 8
_TOLD_NAME = 60


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


@dataclass(frozen=True, slots=True)
class _Trial:
    """One convolution on the bench. right: plans that were found so by a run of each kind."""

    shape: Convolution
    plans: ConvolutionPlans | None
    workspace: int
    search: SearchSettings
    bench: PlanBench
    check: PlanCheck
    right: set[str]


class PlanSearch:
    """Algorithms for convolutions in one precision, checked and measured where not known yet."""

    def __init__(
        self,
        library: Cudnn,
        kernels: Kernels,
        stream: Stream,
        cache: TuningCache,
        memory: TrialMemory,
    ) -> None:
        self._library = library
        self._kernels = kernels
        self._stream = stream
        self._cache = cache
        self._memory = memory

    def algorithms(
        self, shapes: list[Convolution], workspace: int, search: SearchSettings
    ) -> dict[Convolution, Algorithm]:
        """An algorithm for each shape that takes at most `workspace` bytes besides its tensors.

        Each was compared with the plain own kernel on this card. Raises WrongKernelError if the own
        kernel for split fp16 failed that, and DeviceMemoryError if there is no room to try it in.
        """
        deadline = monotonic() + search.seconds
        found: dict[Convolution, Algorithm] = {}
        is_told = False
        different = list(dict.fromkeys(shapes))
        try:
            for index, shape in enumerate(different):
                known = self._proven(shape, workspace, search.effort)
                if known is None:
                    is_told = True
                    search.progress(_described(shape), index / len(different))
                    left = max(0.0, deadline - monotonic()) / (len(different) - index)
                    known = self._found(shape, workspace, search, left)
                found[shape] = known
        finally:
            if is_told:
                search.progress("", 1.0)
        return found

    def run(
        self, shape: Convolution, algorithm: Algorithm, addresses: tuple[int, int, int, int]
    ) -> None:
        """Queue a convolution; addresses: of source, weight, target and workspace."""
        self._queue(shape, algorithm, addresses)()

    def _proven(self, shape: Convolution, workspace: int, effort: Effort) -> Algorithm | None:
        """What needs neither checking nor measuring."""
        best = self._cache.best(shape, workspace, effort)
        if best is None or best.proof != self._proof(shape, best.plan):
            return None
        ready = self._remade(shape, best.plan)
        return ready if ready and ready.workspace <= workspace else None

    def _remade(self, shape: Convolution, name: str) -> Algorithm | None:
        """The algorithm of that name: by its name alone, else as the heuristics offer it."""
        if name == OWN:
            return self._ready(None, name)
        alone = self._ready(self._plans(shape, name), name)
        return alone or self._ready(self._plans(shape), name)

    def _found(
        self, shape: Convolution, workspace: int, search: SearchSettings, seconds: float
    ) -> Algorithm:
        """The fastest right algorithm, of those that were kept before or else of all."""
        plans = self._plans(shape)
        with open_bench(self._memory, self._stream, shape, workspace) as bench:
            check = PlanCheck(self._kernels, self._stream, shape, bench)
            trial = _Trial(shape, plans, workspace, search, bench, check, set())
            ready = self._checked(trial)
            for _ in range(1 + (plans.count if plans else 0)):
                if ready is not None or not self._measure(trial, seconds):
                    break
                ready = self._checked(trial)
            if ready is None:
                self._measure_own(trial)
                ready = self._checked(trial)
        if ready is None:
            raise self._nothing_right(shape)
        return ready

    def _checked(self, trial: _Trial) -> Algorithm | None:
        """The fastest of what is kept that stays right in many runs; others are struck out."""
        shape, workspace = trial.shape, trial.workspace
        while best := self._cache.best(shape, workspace, trial.search.effort):
            ready = self._ready(trial.plans, best.plan)
            if ready is None or ready.workspace > workspace:
                return None
            proof = self._proof(shape, best.plan)
            if best.proof == proof:
                return ready
            way = self._way(trial, ready)
            wrong = self._verdict(trial, best.plan, way) or trial.check.unsteady(way)
            if wrong is None:
                self._change(shape, methodcaller("with_proof", best.plan, proof))
                return ready
            self._refuse(trial, best.plan, wrong)
        return None

    def _verdict(self, trial: _Trial, plan: str, way: QueuedPlan) -> str | None:
        return None if plan in trial.right else trial.check.verdict(way).wrong

    def _refuse(self, trial: _Trial, plan: str, wrong: str) -> None:
        """Strike a plan out for this card and these versions, and tell so."""
        self._change(trial.shape, methodcaller("without", plan, wrong))
        who = "The own kernel" if plan == OWN else f"cuDNN's plan {plan[:_TOLD_NAME]}"
        trial.search.progress(
            f"{who} gave {wrong} in a {_described(trial.shape)} in {trial.shape.precision}, and is "
            "not used on this card.",
            None,
        )

    def _change(self, shape: Convolution, change: Callable[[Findings], Findings]) -> None:
        self._cache.put(key_of(shape), change(self._known(shape)))

    def _proof(self, shape: Convolution, plan: str) -> str:
        """What a candidate's proof must be to need no other."""
        if plan != OWN:
            return VERSION
        return f"{VERSION} {self._kernels.image_key(own_kernel(shape).source)}"

    def _nothing_right(self, shape: Convolution) -> Exception:
        if shape.split_fp16:
            return WrongKernelError(
                own_kernel(shape).source, self._known(shape).refused.get(OWN, "")
            )
        return CudaError(
            "convolution",
            f"no plan does {_described(shape)} rightly",
            "run again with setting device=cpu",
        )

    def _plans(self, shape: Convolution, name: str | None = None) -> ConvolutionPlans | None:
        """What cuDNN offers, or the one plan of that name."""
        if shape.split_fp16:
            return None
        try:
            return ConvolutionPlans(self._library, shape, name)
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

    def _queue(
        self, shape: Convolution, algorithm: Algorithm, addresses: tuple[int, int, int, int]
    ) -> Callable[[], None]:
        if algorithm.plans is None:
            return partial(run_own, self._kernels, self._stream, shape, addresses)
        return partial(algorithm.plans.run, algorithm.index, *addresses)

    def _way(self, trial: _Trial, algorithm: Algorithm) -> QueuedPlan:
        addresses = trial.bench.places.addresses
        return QueuedPlan(self._queue(trial.shape, algorithm, addresses), algorithm.workspace)

    def _measure(self, trial: _Trial, seconds: float) -> bool:
        """Keep what is fast of what cuDNN offers; whether anything was tried.

        What is not used needs no check: a plan has one when it is the fastest that is left.
        """
        deadline = monotonic() + seconds
        effort, plans = trial.search.effort, trial.plans
        refused = self._known(trial.shape).refused
        found: dict[str, Candidate] = {}
        for index in _offered(plans, effort):
            assert plans is not None
            if found and (effort == "off" or monotonic() > deadline):
                break
            name = plans.name(index)
            if name not in refused and (built := self._built(trial, plans, index)):
                best = _fastest(found.values())
                if (time := self._time(trial, built, best)) is not None:
                    found[name] = Candidate(name, built.workspace, time)
        self._keep(trial, worth_keeping(list(found.values())))
        if effort != "off" and _own_may_be_fastest(trial.shape):
            self._measure_own(trial)
        return bool(found) or self._cache.best(trial.shape, trial.workspace, effort) is not None

    def _built(self, trial: _Trial, plans: ConvolutionPlans, index: int) -> Algorithm | None:
        """A plan, if it builds and takes no more workspace than there is."""
        size = _unless_refused(lambda: plans.build(index))
        if size is None or size > trial.workspace:
            return None
        return Algorithm(plans, index, size)

    def _time(self, trial: _Trial, built: Algorithm, best: float) -> float | None:
        """Microseconds of a run, 0 if any right plan will do; None if it does not run, or wrong."""
        way = self._way(trial, built)
        if trial.search.effort != "off":
            return _unless_refused(lambda: trial.bench.time(way.queue, best))
        verdict = _unless_refused(lambda: trial.check.verdict(way))
        return 0.0 if verdict and self._is_right(trial, built, verdict) else None

    def _is_right(self, trial: _Trial, built: Algorithm, verdict: PlanVerdict) -> bool:
        """Note what came of a plan's check; one that is wrong is refused."""
        if verdict.wrong:
            self._refuse(trial, built.name, verdict.wrong)
            return False
        trial.right.add(built.name)
        return True

    def _measure_own(self, trial: _Trial) -> None:
        known = self._known(trial.shape)
        way = self._way(trial, Algorithm(None, 0, 0))
        time = trial.bench.time(way.queue, _fastest(known.candidates))
        if OWN not in known.refused:
            self._keep(trial, worth_keeping([*known.candidates, Candidate(OWN, 0, time)]))

    def _keep(self, trial: _Trial, candidates: tuple[Candidate, ...]) -> None:
        refused = self._known(trial.shape).refused
        findings = Findings(trial.search.effort, trial.workspace, candidates, refused)
        self._cache.put(key_of(trial.shape), findings)

    def _known(self, shape: Convolution) -> Findings:
        return self._cache.get(key_of(shape))


def _own_may_be_fastest(shape: Convolution) -> bool:
    """Where matrix units do not help: in fp32, and for sums over one channel."""
    return shape.precision == "fp32" or shape.is_depthwise


def _unless_refused(attempt: Callable[[], _Result]) -> _Result | None:
    """What comes of it; None where the library or memory refuses, but no context is broken."""
    try:
        return attempt()
    except DeviceMemoryError:
        return None
    except CudaError as error:
        if error.is_sticky:
            raise
        return None


def _offered(plans: ConvolutionPlans | None, effort: Effort) -> list[int]:
    offered = _distinct(plans) if plans else []
    return offered[:_QUICK_PLANS] if effort == "quick" else offered


def _distinct(plans: ConvolutionPlans) -> list[int]:
    """Plans without those that another heuristic has named before."""
    first: dict[str, int] = {}
    for index in range(plans.count):
        first.setdefault(plans.name(index), index)
    return list(first.values())


def _fastest(found: Iterable[Candidate]) -> float:
    return min((c.microseconds for c in found), default=float("inf"))


def _described(shape: Convolution) -> str:
    kind = "transposed convolution" if shape.transposed else "convolution"
    channels = f"{shape.source_channels} to {shape.target_channels} channels"
    if shape.groups > 1:
        channels += f" in {shape.groups} groups"
    extents = f"{shape.batch} x {times(shape.source_extents)}"
    return f"{kind} {times(shape.kernel)}, {channels}, {extents}"
