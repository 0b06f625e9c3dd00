"""Finds the fastest variant of launching each own kernel by trying several on the card.

All come to the same bits, which is held against the default one before another is used.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.card_properties import CardProperties
from ..compiler.checks import NOISE, RUNS
from ..compiler.convolution import Convolution
from ..compiler.launches import checks
from ..compiler.launches.launch import OVERFLOW
from ..compiler.launches.steps import launches, scratch_bytes
from ..compiler.launches.variants import LaunchVariants
from ..compiler.lowered import Lowered
from ..compiler.lowering.forms import ComparedStep, other_forms, passes_over
from ..compiler.memory.fitting import ChosenAlgorithm
from ..compiler.memory.plan import aligned
from ..compiler.memory.trials import FINGERPRINTS, GUARD, PARTIALS
from ..compiler.steps import ConvTransposeToPatches, Step
from ..compiler.tensors import NUMBER_BYTES, TRANSLATED, AffineTable, Tensor
from ..errors import DeviceMemoryError
from ..network.graph import Network
from .device_plan import OWN_FORM, form_key, own_launch_variants
from .driver import Stream
from .kernel_images import Kernels
from .plan_bench import run_time
from .plan_cache import Candidate, Findings, Progress, TuningCache, worth_keeping
from .plan_check import Fingerprints
from .plan_search import PlanSearch, SearchSettings
from .trial_memory import NAN, TrialMemory

_VERSION = "1"
"""Raised when the check finds more than before, so that what was kept is checked again."""

_GAIN = 0.97
"""Of the default variant's time; less is what two measurings of one variant are apart."""

_WORKSPACE = 64 << 20
"""Bytes besides its tensors that a plan may take that an own kernel is compared with."""


class LaunchSearch:
    """The steps of programs as they are fastest, checked and measured where not known yet."""

    def __init__(
        self, kernels: Kernels, stream: Stream, cache: TuningCache, memory: TrialMemory
    ) -> None:
        self._kernels = kernels
        self._stream = stream
        self._cache = cache
        self._memory = memory

    def tuned(
        self,
        lowered: Lowered,
        algorithms: Mapping[Convolution, ChosenAlgorithm],
        search: SearchSettings,
    ) -> Lowered:
        """The program with each own kernel launched as is fastest; algorithms: of convolutions."""
        deadline = monotonic() + search.seconds
        steps, is_told = list[Step](), False
        for index, step in enumerate(lowered.steps):
            variants = own_launch_variants(step, algorithms, lowered.card)
            if variants is None:
                steps.append(step)
                continue
            best = self._proven(variants)
            if best is None and search.effort != "off" and monotonic() < deadline:
                search.progress(f"own kernel {variants.source}", index / len(lowered.steps))
                is_told = True
                best = self._found(step, variants, lowered, search.progress)
            steps.append(variants.steps[best] if best else step)
        if is_told:
            search.progress("", 1.0)
        return replace(lowered, steps=tuple(steps))

    def compare_forms(
        self, network: Network, lowered: Lowered, plans: PlanSearch, search: SearchSettings
    ) -> None:
        """Keep how long layers of an own kernel take by it, and by cuDNN and passes besides.

        plans: finds how cuDNN does it, by a quick search.
        """
        for step in lowered.steps:
            if not isinstance(step, ComparedStep) or search.effort == "off":
                continue
            if not self._cache.get(form_key(step)).candidates:
                try:
                    took = self._times_of_forms(network, lowered, step, plans, search)
                except DeviceMemoryError:
                    continue
                measured = [Candidate(name, 0, each) for name, each in took.items()]
                self._cache.put(form_key(step), Findings("full", 0, worth_keeping(measured)))

    def _times_of_forms(
        self,
        network: Network,
        lowered: Lowered,
        step: ComparedStep,
        plans: PlanSearch,
        search: SearchSettings,
    ) -> dict[str, float]:
        [made] = (item for item in step.flow.writes if isinstance(item, Tensor))
        own = step, *passes_over(lowered, made)
        took: dict[str, float] = {OWN_FORM: self._times(own, lowered)}
        for form in other_forms(network, lowered, step):
            shape = form.convolve.shape
            plans.algorithms([shape], _WORKSPACE, search)
            best = self._cache.best(shape, _WORKSPACE, search.effort)
            if best is not None:
                took[form.name] = best.microseconds + self._times(form.passes, form.lowered)
        return took

    def _times(self, steps: Iterable[Step], lowered: Lowered) -> float:
        return sum(self._time(step, lowered) for step in steps)

    def _time(self, step: Step, lowered: Lowered) -> float:
        with self._bench(step, lowered) as bench:
            return bench.time(step, inf)

    def _bench(self, step: Step, lowered: Lowered) -> AbstractContextManager["_LaunchBench"]:
        return _open_bench(step, lowered, self._kernels, self._stream, self._memory)

    def _proven(self, variants: LaunchVariants) -> str | None:
        """The kept variant, if it was checked as the kernel is compiled now."""
        best = self._cache.get(variants.key).best(0)
        if best is None or best.plan not in variants.steps:
            return None
        return best.plan if best.proof == self._proof(variants) else None

    def _proof(self, variants: LaunchVariants) -> str:
        return f"{_VERSION} {self._kernels.image_key(variants.source)}"

    def _found(
        self, step: Step, variants: LaunchVariants, lowered: Lowered, progress: Progress
    ) -> str | None:
        """The fastest variant that is right; None where there is no memory to try any."""
        try:
            with self._bench(step, lowered) as bench:
                self._measure(variants, bench)
                return self._checked(variants, bench, progress)
        except DeviceMemoryError:
            return None

    def _measure(self, variants: LaunchVariants, bench: "_LaunchBench") -> None:
        """The default one first and last, as a card becomes faster while it warms up."""
        took: dict[str, float] = {}
        for name in (*variants.steps, variants.default):
            microseconds = bench.time(variants.steps[name], min(took.values(), default=inf))
            took[name] = min(microseconds, took.get(name, inf))
        default = took[variants.default]
        measured = [
            Candidate(name, 0, each)
            for name, each in took.items()
            if name == variants.default or each <= _GAIN * default
        ]
        self._cache.put(variants.key, Findings("full", 0, worth_keeping(measured)))

    def _checked(
        self, variants: LaunchVariants, bench: "_LaunchBench", progress: Progress
    ) -> str | None:
        """The fastest of the measured that does as the default one; others are struck out."""
        known, key = self._cache.get(variants.key), variants.key
        while best := known.best(0):
            is_default = best.plan == variants.default
            wrong = 0 if is_default else bench.wrong_runs(variants.steps[best.plan])
            if not wrong:
                self._cache.put(key, known.with_proof(best.plan, self._proof(variants)))
                return best.plan
            found = f"wrong results in {wrong} of {RUNS} runs"
            known = known.without(best.plan, found)
            self._cache.put(key, known)
            progress(
                f"The own kernel {variants.source} gave {found} with {best.plan}, and is not "
                "launched so on this card.",
                None,
            )
        return None


@dataclass(frozen=True, slots=True)
class _LaunchBench:
    """A step in memory of its own. places: device addresses by name. made: what it writes."""

    step: Step
    card: CardProperties
    places: Mapping[str, int]
    made: "_Made"
    kernels: Kernels
    stream: Stream
    fingerprints: Fingerprints

    def time(self, variant: Step, best: float) -> float:
        """Microseconds of a run; best: of other variants."""
        return run_time(self.stream, partial(self._queue, variant), best)

    def wrong_runs(self, variant: Step) -> int:
        """Of many, those that differ from the default variant, or write past the end."""
        [right] = self._results(self.step, 1)
        return int((self._results(variant, RUNS) != right).sum())

    def _results(self, variant: Step, runs: int) -> npt.NDArray[Any]:
        made = self.made
        for _ in range(runs):
            self.stream.fill(self.places[made.name], NAN, made.fenced_bytes)
            self._queue(variant)
            place = self.places[made.name]
            self.fingerprints.take(place, made.fenced_bytes, made.number_bytes)
        return self.fingerprints.read()

    def _at(self, name: str) -> int:
        return self.places[name]

    def _queue(self, variant: Step) -> None:
        for launch in launches(variant, self._at, self.card, self.places[PARTIALS]):
            self.kernels.launch(self.stream, launch)


@contextmanager
def _open_bench(
    step: Step, lowered: Lowered, kernels: Kernels, stream: Stream, memory: TrialMemory
) -> Generator[_LaunchBench]:
    """Memory for all that a step reads and writes, with noise in what other steps make."""
    made, card = _made_by(step, lowered), lowered.card
    constants = {
        name: lowered.encoded_constant(name)
        for name in sorted(_named(step, card) & lowered.constant_bytes().keys())
    }
    others = {item.name: item for item in step.flow.touches}
    for name in (made.name, *constants):
        others.pop(name, None)
    blocks = {
        made.name: made.bytes,
        **{name: len(content) for name, content in constants.items()},
        **{name: item.bytes for name, item in others.items()},
        OVERFLOW: 4,
        PARTIALS: scratch_bytes(step, card),
        FINGERPRINTS: 8 * RUNS,
    }
    with memory.opened(stream, blocks) as places:
        for name, content in constants.items():
            stream.upload_now(places[name], content)
        for name, item in others.items():
            if isinstance(item, Tensor):
                kernels.launch(stream, checks.fill_tensor(item, NOISE.source, places[name], card))
            else:
                stream.upload_now(places[name], _table(item))
        fingerprints = Fingerprints(kernels, stream, places[FINGERPRINTS])
        yield _LaunchBench(step, card, places, made, kernels, stream, fingerprints)


@dataclass(frozen=True, slots=True)
class _Made:
    """What a step writes. bytes: of it, number_bytes: of one of its numbers."""

    name: str
    bytes: int
    number_bytes: int

    @property
    def fenced_bytes(self) -> int:
        """Of it and of what lies behind it, which no launch may write."""
        return aligned(self.bytes) + GUARD


def _made_by(step: Step, lowered: Lowered) -> _Made:
    if isinstance(step, ConvTransposeToPatches):
        return _Made(TRANSLATED, 4 * lowered.layout.batch * step.channels * prod(step.extents), 4)
    made, *_ = step.flow.writes
    each = NUMBER_BYTES[made.precision] if isinstance(made, Tensor) else 4
    return _Made(made.name, made.bytes, each)


def _named(step: Step, card: CardProperties) -> set[str]:
    """All that a step's launch asks for by name."""
    names: set[str] = set()

    def noted(name: str) -> int:
        names.add(name)
        return 0

    launches(step, noted, card)
    return names


def _table(table: AffineTable) -> bytes:
    """Factors and summands of both signs."""
    random = np.random.default_rng(0)
    return random.uniform(-1, 1, table.bytes // 4).astype(np.float32).tobytes()
