"""Times of layers by their custom kernel, and by cuDNN with the passes that it needs."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from math import inf

import numpy as np

from ..compiler.card_properties import CardProperties
from ..compiler.checks import NOISE
from ..compiler.launches import checks
from ..compiler.launches.steps import launches, scratch_bytes
from ..compiler.lowered import Lowered
from ..compiler.lowering.forms import ComparedStep, other_forms, passes_over
from ..compiler.memory.trials import PARTIALS
from ..compiler.steps import Step
from ..compiler.tensors import AffineTable, Tensor
from ..errors import DeviceMemoryError
from ..network.graph import Network
from ..options import SearchSettings
from .device_plan import OWN_FORM, form_key
from .driver import Stream
from .kernel_images import Kernels
from .plan_bench import run_time
from .plan_cache import Candidate, Findings, TuningCache, worth_keeping
from .plan_search import PlanSearch
from .trial_memory import TrialMemory

_WORKSPACE = 64 << 20
"""Bytes besides its tensors that a plan may take that a custom kernel is compared with."""


class FormComparison:
    """Measures the forms of layers that are not in the cache yet."""

    def __init__(
        self, kernels: Kernels, stream: Stream, cache: TuningCache, memory: TrialMemory
    ) -> None:
        self._kernels = kernels
        self._stream = stream
        self._cache = cache
        self._memory = memory

    def measure(
        self, network: Network, lowered: Lowered, plans: PlanSearch, search: SearchSettings
    ) -> None:
        """Keep how long layers take by their custom kernel, and by cuDNN with its passes.

        plans: finds how cuDNN does it.
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
        """Microseconds of a step in memory of its own."""
        with self._places(step, lowered) as places:

            def queue() -> None:
                for launch in launches(step, places.__getitem__, lowered.card, places[PARTIALS]):
                    self._kernels.launch(self._stream, launch)

            return run_time(self._stream, queue, inf)

    @contextmanager
    def _places(self, step: Step, lowered: Lowered) -> Generator[Mapping[str, int]]:
        """Device addresses of all that a step reads and writes, with noise in what it reads."""
        card, stream = lowered.card, self._stream
        constants = {
            name: lowered.encoded_constant(name)
            for name in sorted(_named(step, card) & lowered.constant_bytes().keys())
        }
        touched = {item.name: item for item in step.flow.touches if item.name not in constants}
        blocks = {
            **{name: len(content) for name, content in constants.items()},
            **{name: item.bytes for name, item in touched.items()},
            PARTIALS: scratch_bytes(step, card),
        }
        with self._memory.opened(stream, blocks) as places:
            for name, content in constants.items():
                stream.upload_now(places[name], content)
            for name in touched.keys() - step.flow.written_names:
                item, place = touched[name], places[name]
                if isinstance(item, Tensor):
                    noise = checks.fill_tensor(item, NOISE.source, place, card)
                    self._kernels.launch(stream, noise)
                else:
                    stream.upload_now(place, _table(item))
            yield places


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
