"""The tuner: candidates of a layer are timed, verified from the fastest on, and kept."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from time import monotonic
from typing import TypeVar

from ...compiler.blocks import BlockGrid
from ...compiler.kernels.plain import of_one_patch, with_whole_output
from ...compiler.kernels.table import checked, custom_kernel
from ...compiler.lowered import LayerForm, Lowered
from ...compiler.program.forms import compared, other_forms, passes_over
from ...compiler.program.memory import WORKSPACE_BYTES, convolution_blocks
from ...compiler.steps import Conv, ConvShape, Step, planned
from ...errors import CudaError, DeviceMemoryError
from ...network.graph import Network
from ...options import Effort, Progress, SearchSettings
from ..cudnn import ConvolutionPlans
from ..kernel_images import Kernels
from ..open_gpu import OpenGpu
from . import layer_check
from .bench import TrialBench, open_bench, time_of_steps
from .cache import (
    CUSTOM,
    CUSTOM_FORM,
    Candidate,
    TuningCache,
    TuningResult,
    form_key,
    key_of,
    worth_keeping,
)
from .convolution_check import VERSION, ConvolutionCheck, gives_the_same_anywhere
from .tactics import (
    CUSTOM_TACTIC,
    Tactic,
    built,
    described,
    distinct,
    named,
    plans_of,
    run_of,
    unless_refused,
)

_Result = TypeVar("_Result")

_QUICK_PLANS = 8
_HEAVY_SHARE = 0.25
"""Share of a network's products from which a first start times plans of a convolution. In a 9-block
ResNet (fp16, 128^3, H200) the eight of its main layer bring 0.8 of the pace of a full search, and
the first plan alone 0.6.
"""

_SHOWN_NAME = 60


_NAMES = re.compile(r"\b((?:name|layer|weight|bias|scale|shift|slopes)=)'([^']*)'")
"""Names of layers, tensors and constants in the text of a step."""


class WrongKernelError(Exception):
    """A custom kernel does not compute its layer on this GPU.

    source: its .cu file. wrong: what was found, in words.
    """

    def __init__(self, source: str, wrong: str) -> None:
        super().__init__(f"{source}: {wrong}")
        self.source, self.wrong = source, wrong


def refused_kernels(cache: TuningCache, kernels: Kernels) -> frozenset[str]:
    """Return the .cu files of kernels that were wrong on this GPU, as they are compiled now."""
    wrong = (key.split() for key, wrong in cache.kernels.items() if wrong)
    return frozenset(source for source, image, *_ in wrong if image == kernels.image_key(source))


@dataclass(frozen=True, slots=True)
class _Trial:
    """A convolution on the bench.

    effort: of its search. right: plans that have passed a run of each kind.
    """

    shape: ConvShape
    effort: Effort
    plans: ConvolutionPlans | None
    workspace: int
    bench: TrialBench
    check: ConvolutionCheck
    right: set[str] = field(default_factory=set[str])


class Tuner:
    """Tunes layers on one GPU in one precision, and measures nothing that the cache has."""

    def __init__(
        self, gpu: OpenGpu, cache: TuningCache, budget: int, settings: SearchSettings
    ) -> None:
        """budget: bytes that a trial may take."""
        self.cache = cache
        self._gpu = gpu
        self._budget = budget
        self._settings = settings
        self._coming: dict[ConvShape, Effort] = {}
        self._ready: dict[tuple[ConvShape, bool], ConvolutionPlans | None] = {}

    def with_right_kernels(self, attempt: Callable[[frozenset[str]], _Result]) -> _Result:
        """Repeat an attempt until no custom kernel that it takes is wrong on this GPU.

        attempt: gets the .cu files of kernels to do without.
        """
        kernels = self._gpu.kernels
        while True:
            try:
                return attempt(refused_kernels(self.cache, kernels))
            except WrongKernelError as error:
                image = kernels.image_key(error.source)
                self.cache.put_kernel(f"{error.source} {image}", error.wrong)
                self._settings.progress(
                    f"Custom kernel {error.source} gave {error.wrong} in {kernels.precision} "
                    "and is not used on this GPU.",
                    None,
                )

    def convolutions(self, shapes: list[ConvShape], workspace: int) -> dict[ConvShape, Tactic]:
        """Return a tactic for each shape that takes at most `workspace` bytes besides its tensors.

        Each was compared with the plain custom kernel on this GPU. Raises WrongKernelError if the
        custom kernel for split fp16 is wrong, and DeviceMemoryError if a trial does not fit.
        """
        progress = self._settings.progress
        deadline = monotonic() + self._settings.seconds
        found: dict[ConvShape, Tactic] = {}
        is_reported = False
        levels = self._tuning_levels(shapes)
        self._coming = {**levels}
        try:
            for index, (shape, effort) in enumerate(levels.items()):
                self._coming.pop(shape, None)
                known = self._proven(shape, workspace, effort)
                if known is None:
                    is_reported = True
                    progress(described(shape), index / len(levels))
                    left = max(0.0, deadline - monotonic()) / (len(levels) - index)
                    known = self._found(shape, workspace, effort, left)
                found[shape] = known
        finally:
            if is_reported:
                progress("", 1.0)
        return found

    def run(self, shape: ConvShape, tactic: Tactic, addresses: tuple[int, int, int, int]) -> None:
        """Queue a convolution; addresses: of source, weight, target and workspace."""
        run_of(self._gpu, shape, tactic, addresses)()

    def search_later(
        self,
        network: Network,
        lowered: Lowered,
        budget: int,
        workspace: int,
        until: float,
        progress: Progress,
    ) -> None:
        """Search as `Tunable` describes, if the level leaves that to later; a fault ends it.

        Layers are completed one by one, those that do most of the work first. budget: bytes that a
        trial may take now. workspace: most bytes of a tactic. until: time of the monotonic clock
        from which no layer is begun.
        """
        if self._settings.effort != "auto":
            return
        later = Tuner(self._gpu, self.cache, budget, SearchSettings("full", progress=progress))
        with suppress(CudaError, DeviceMemoryError, WrongKernelError):
            self._gpu.context.use()
            later._complete(network, lowered, workspace, until)

    def _complete(self, network: Network, lowered: Lowered, workspace: int, until: float) -> None:
        shapes = [step.shape for step in planned(lowered.steps)]
        for shape in sorted(set(shapes), key=lambda one: -one.products * shapes.count(one)):
            known = self.cache.get(key_of(shape))
            if monotonic() < until and not known.covers(self._settings.effort, workspace):
                self.convolutions([shape], workspace)
        if not lowered.layout.in_blocks:
            self.compare_forms(network, lowered, until)

    def compare_forms(self, network: Network, lowered: Lowered, until: float = inf) -> None:
        """Time layers by their custom kernel and by cuDNN with its passes, unless that is known.

        A layer whose trial does not fit is omitted, and so is one in a form that was faster. What
        is timed is verified elsewhere: plans when their convolution is tuned, custom kernels by
        `check_layers`. until: time of the monotonic clock from which no layer is begun.
        """
        usual = (step for step in compared(lowered) if step.layer not in lowered.layout.forms)
        for step in usual if self._settings.effort in ("quick", "full") else ():
            if monotonic() < until and not self.cache.get(form_key(step)).candidates:
                with suppress(DeviceMemoryError):
                    timed = worth_keeping(self._timed_forms(network, lowered, step))
                    self.cache.put(form_key(step), TuningResult("full", 0, timed))

    def check_layers(self, lowered: Lowered) -> None:
        """Raise WrongKernelError if the custom kernel of a layer is wrong; check equal layers once.

        Kernels for blocks of a volume are compiled separately, so they are checked in one block.
        Raises DeviceMemoryError if a trial of a single patch does not fit.
        """
        layout, kernels = lowered.layout, self._gpu.kernels
        self._coming = {**self._tuning_levels([step.shape for step in planned(lowered.steps)])}
        grid = BlockGrid(layout.patch, layout.patch) if layout.in_blocks else None
        for step in checked(lowered.steps):
            source = str(step.kernel)
            same = _without_names(with_whole_output(step))
            parts = repr((layer_check.VERSION, same, layout))
            shape = hashlib.sha256(parts.encode()).hexdigest()[:24]
            key = f"{source} {kernels.image_key(source)} {shape}"
            if key not in self.cache.kernels:
                try:
                    wrong = self._wrong_step(step, grid)
                except DeviceMemoryError:
                    wrong = self._wrong_step(of_one_patch(step), grid)
                if wrong:
                    raise WrongKernelError(source, wrong)
                self.cache.put_kernel(key, "")

    def _wrong_step(self, step: Conv, grid: BlockGrid | None) -> str | None:
        gpu = self._gpu
        return layer_check.wrong_step(
            step, gpu.kernels, gpu.stream, self._budget, grid, self._prepare_next
        )

    def _prepare_next(self) -> None:
        """Get and build plans of the next convolution of which no results are kept.

        It is called while the GPU runs a check, as both take the host 5 ms and more.
        """
        while self._coming:
            shape = next(iter(self._coming))
            is_quick = self._coming.pop(shape) == "off"
            is_known = (shape, is_quick) in self._ready or self._known(shape).candidates
            if is_known or self._is_custom_alone(shape):
                continue
            plans = self._ready[shape, is_quick] = plans_of(self._gpu, shape, is_quick=is_quick)
            if plans is not None:
                _build_early(plans, is_any=is_quick)
            return

    def is_same_anywhere(
        self, shape: ConvShape, tactic: Tactic, addresses: tuple[int, int, int, int]
    ) -> bool:
        """Return whether a tactic gives a voxel the same bytes at every position; checked once.

        addresses: of source, weight, target and workspace, whose content is lost.
        """
        if tactic.plans is None:  # the custom kernel computes every voxel alike
            return True
        is_same = self.cache.is_same_anywhere(shape, tactic.name)
        if is_same is None:
            source, _, target, _ = addresses
            run = run_of(self._gpu, shape, tactic, addresses)
            is_same = gives_the_same_anywhere(shape, source, target, run, self._gpu.stream)
            self.cache.put_same_anywhere(shape, tactic.name, is_same)
        return is_same

    def _tuning_levels(self, shapes: Sequence[ConvShape]) -> Mapping[ConvShape, Effort]:
        """Return the tuning level of each of a network's convolutions, once each."""
        effort, total = self._settings.effort, sum(shape.products for shape in shapes)

        def level(shape: ConvShape) -> Effort:
            share = shape.products * shapes.count(shape) / total
            return "quick" if share >= _HEAVY_SHARE else "off"

        return {shape: level(shape) if effort == "auto" else effort for shape in shapes}

    def _proven(self, shape: ConvShape, workspace: int, effort: Effort) -> Tactic | None:
        """Return a tactic that needs neither a check nor a measurement."""
        best = self.cache.best(shape, workspace, effort)
        if best is None or best.proof != self._proof(shape, best.name):
            return None
        if best.name == CUSTOM:
            return CUSTOM_TACTIC
        if self._is_custom_alone(shape):
            return None
        alone = named(plans_of(self._gpu, shape, best.name), best.name, workspace)
        return alone or named(plans_of(self._gpu, shape), best.name, workspace)

    def _found(self, shape: ConvShape, workspace: int, effort: Effort, seconds: float) -> Tactic:
        """Return the fastest right tactic, of those that were kept before or else of all.

        Without a search, and with nothing kept, a plan of cuDNN's first heuristic usually will do.
        """
        gpu, sizes = self._gpu, convolution_blocks(shape, workspace)
        any_will_do = effort == "off" and not self._known(shape).candidates
        with open_bench(gpu.kernels, gpu.stream, sizes, self._budget) as bench:
            trial = _Trial(shape, effort, None, workspace, bench, ConvolutionCheck(bench, shape))
            if self._is_custom_alone(shape) and (tactic := self._custom(trial)):
                return tactic
            for is_quick in (True, False) if any_will_do else (False,):
                ready = self._ready.pop((shape, is_quick), None)
                plans = ready or plans_of(gpu, shape, is_quick=is_quick)
                trial = replace(trial, plans=plans)
                if tactic := self._of_plans(trial, seconds):
                    return tactic
            if tactic := self._custom(trial):
                return tactic
        raise self._nothing_right(shape)

    def _is_custom_alone(self, shape: ConvShape) -> bool:
        """Return whether no plan is tried: those for depthwise convolutions are several times
        slower (128 channels, 3^3, 16^3, fp16, H200: 65 us), and seconds pass until all are built.
        """
        return shape.is_depthwise and CUSTOM not in self._known(shape).refused

    def _custom(self, trial: _Trial) -> Tactic | None:
        self._measure_custom(trial)
        return self._verified(trial)

    def _of_plans(self, trial: _Trial, seconds: float) -> Tactic | None:
        tactic = self._verified(trial)
        for _ in range(1 + (trial.plans.count if trial.plans else 0)):
            if tactic is not None or not self._measure(trial, seconds):
                break
            tactic = self._verified(trial)
        return tactic

    def _verified(self, trial: _Trial) -> Tactic | None:
        """Return the fastest kept candidate that is right in many runs; reject those before it."""
        shape, workspace = trial.shape, trial.workspace
        while best := self.cache.best(shape, workspace, trial.effort):
            tactic = named(trial.plans, best.name, workspace)
            if tactic is None:
                return None
            proof = self._proof(shape, best.name)
            if best.proof == proof:
                return tactic
            run = self._run_on_bench(trial, tactic)
            wrong = None
            if best.name not in trial.right:
                wrong = trial.check.verdict(run, tactic.workspace).wrong
            wrong = wrong or trial.check.unsteady(run, tactic.workspace, self._prepare_next)
            if wrong is None:
                self.cache.put(key_of(shape), self._known(shape).with_proof(best.name, proof))
                return tactic
            self._reject(trial, best.name, wrong)
        return None

    def _reject(self, trial: _Trial, plan: str, wrong: str) -> None:
        """Reject a plan for this GPU and these versions, and report it."""
        self.cache.put(key_of(trial.shape), self._known(trial.shape).without(plan, wrong))
        what = "The custom kernel" if plan == CUSTOM else f"cuDNN plan {plan[:_SHOWN_NAME]}"
        self._settings.progress(
            f"{what} gave {wrong} in a {described(trial.shape)} in {trial.shape.precision} and is "
            "not used on this GPU.",
            None,
        )

    def _proof(self, shape: ConvShape, plan: str) -> str:
        """Return the proof that makes another check of a candidate needless."""
        if plan != CUSTOM:
            return VERSION
        return f"{VERSION} {self._gpu.kernels.image_key(custom_kernel(shape).source)}"

    def _nothing_right(self, shape: ConvShape) -> Exception:
        if shape.split_fp16:
            return WrongKernelError(
                custom_kernel(shape).source, self._known(shape).refused.get(CUSTOM, "")
            )
        return CudaError(
            "convolution",
            f"no plan computes {described(shape)} correctly",
            "run again with setting device=cpu",
        )

    def _run_on_bench(self, trial: _Trial, tactic: Tactic) -> Callable[[], None]:
        source, weight, target, workspace = map(
            trial.bench.at, ("source", "weight", "target", "workspace")
        )
        return run_of(self._gpu, trial.shape, tactic, (source, weight, target, workspace))

    def _measure(self, trial: _Trial, seconds: float) -> bool:
        """Keep the fastest of cuDNN's plans; return whether there is any candidate.

        A plan is checked only when it is the fastest that is left, so unused ones never are.
        """
        deadline = monotonic() + seconds
        found: list[Candidate] = []
        for index in self._plans_to_time(trial):
            if found and (trial.effort == "off" or monotonic() > deadline):
                break
            if (candidate := self._timed_plan(trial, index, _fastest(found))) is not None:
                found.append(candidate)
        self._keep(trial, found)
        if trial.effort != "off" and trial.shape.precision == "fp32":  # without Tensor Cores
            self._measure_custom(trial)
        best = self.cache.best(trial.shape, trial.workspace, trial.effort)
        return bool(found) or best is not None

    def _plans_to_time(self, trial: _Trial) -> list[int]:
        offered = list(distinct(trial.plans).items())
        refused = self._known(trial.shape).refused
        some = offered[:_QUICK_PLANS] if trial.effort == "quick" else offered
        return [index for name, index in some if name not in refused]

    def _timed_plan(self, trial: _Trial, index: int, best: float) -> Candidate | None:
        """Time a plan, or check it if any right plan will do; None if it does not run."""
        assert trial.plans is not None
        tactic = built(trial.plans, index, trial.workspace)
        if tactic is None:
            return None
        if trial.effort == "off":
            time = 0.0 if self._passes(trial, tactic) else None
        else:
            run = self._run_on_bench(trial, tactic)
            time = unless_refused(lambda: trial.bench.time(run, best))
        return None if time is None else Candidate(tactic.name, tactic.workspace, time)

    def _passes(self, trial: _Trial, tactic: Tactic) -> bool:
        """Check a plan by a run of each kind; reject it if it is wrong."""
        run = self._run_on_bench(trial, tactic)
        verdict = unless_refused(lambda: trial.check.verdict(run, tactic.workspace))
        if verdict is None:
            return False
        if verdict.wrong:
            self._reject(trial, tactic.name, verdict.wrong)
            return False
        trial.right.add(tactic.name)
        return True

    def _measure_custom(self, trial: _Trial) -> None:
        known = self._known(trial.shape)
        if CUSTOM in known.refused:
            return
        rivals = () if self._is_custom_alone(trial.shape) else known.candidates
        time = trial.bench.time(self._run_on_bench(trial, CUSTOM_TACTIC), _fastest(rivals))
        self._keep(trial, [*rivals, Candidate(CUSTOM, 0, time)])

    def _keep(self, trial: _Trial, candidates: list[Candidate]) -> None:
        refused = self._known(trial.shape).refused
        kept = worth_keeping(candidates)
        result = TuningResult(trial.effort, trial.workspace, kept, refused)
        self.cache.put(key_of(trial.shape), result)

    def _known(self, shape: ConvShape) -> TuningResult:
        return self.cache.get(key_of(shape))

    def _timed_forms(self, network: Network, lowered: Lowered, step: Conv) -> Iterator[Candidate]:
        passes = passes_over(lowered, step.output)
        yield from self._timed_form(CUSTOM_FORM, step, passes, lowered)
        for form in other_forms(network, lowered, step):
            yield from self._timed_form(form.name, form.convolve, form.passes, form.lowered)

    def _timed_form(
        self, name: LayerForm, conv: Conv, passes: Iterable[Step], lowered: Lowered
    ) -> Iterator[Candidate]:
        """Yield the time of a convolution with its passes; none if no plan of cuDNN is known."""
        if conv.kernel is not None:
            yield Candidate(name, 0, self._time([conv, *passes], lowered))
            return
        self.convolutions([conv.shape], WORKSPACE_BYTES)
        if best := self.cache.best(conv.shape, WORKSPACE_BYTES, self._settings.effort):
            yield Candidate(name, 0, best.microseconds + self._time(passes, lowered))

    def _time(self, steps: Iterable[Step], lowered: Lowered) -> float:
        return time_of_steps(steps, lowered, self._gpu.kernels, self._gpu.stream, self._budget)


def _build_early(plans: ConvolutionPlans, *, is_any: bool) -> None:
    """Build the plans that a quick search times, or the first one if any will do."""
    for index in [*distinct(plans).values()][:_QUICK_PLANS]:
        if unless_refused(partial(plans.build, index)) is not None and is_any:
            return


def _fastest(found: Iterable[Candidate]) -> float:
    return min((c.microseconds for c in found), default=inf)


def _without_names(step: Step) -> str:
    """Return a step as text with names counted from the first on: equal layers give equal texts."""
    found: dict[str, int] = {}
    return _NAMES.sub(lambda name: f"{name[1]}{found.setdefault(name[2], len(found))}", repr(step))
