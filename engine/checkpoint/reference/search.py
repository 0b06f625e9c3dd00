"""The search for the one reading of a network that computes a reference.

A network is computed once for all of its possible ends. The search begins with what known codes and
usual networks do, and goes on from the closest by one change at a time; what fits is then compared
with all readings that are one change away from it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, prod

import numpy as np

from ...errors import CheckpointError, PatchShapeError
from ...model.reference import MOST_FLOPS, TOLERANCE, relative_error
from ...network.architectures import build
from ...network.graph import Network
from ...network.graph_analysis import flops
from ...network.layers import FloatArray, Triple
from ...onnxruntime.session import open_cpu_generator
from ..recognise.established import differences_in_words, said_reading
from ..recognise.evidence import setting
from ..recognise.match import joined
from ..recognise.reading import ENDS, Reading
from ..recognise.recognition import Recognised
from .candidates import changes, likely_readings

_EXPANDED, _DEEPEST, _MOST_TRIALS = 3, 5, 400
_FLOPS = 4 * MOST_FLOPS
MOST_SECONDS = 300.0
"""After which a search looks for no further reading; one that was found is still compared."""

_HALF_ROUNDING = {"float16": 5e-3, "bfloat16": 4e-2}
"""How far weights that were rounded to half precision may be from a reference of those that were
not: five times as far as the worst of the tests' networks is."""

_SMALL, _SMALL_PATCH = 1 << 31, 24**3
"""FLOPs and voxels up to which neither a second thread nor a rewritten graph is worth its start."""

_ROUNDING, _FLOAT_NOISE, _CLEARLY = 2e-7, 1e-6, 20
"""What one network's sums in another order differ by, what two sound computations do, and how many
times closer a reading must be to be it."""


@dataclass(frozen=True, slots=True)
class ReadingTrial:
    """A reading that was computed.

    error: how far its output is from the reference. output: that itself, if it fits.
    """

    reading: Reading
    error: float
    output: FloatArray | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class FittingReading:
    """What fits. best: with the usual one of those alike. second: the closest that differs."""

    best: ReadingTrial
    second: ReadingTrial | None


class ReferenceSearch:
    """Tries readings of one network; remembers what was tried."""

    def __init__(
        self,
        recognised: Recognised,
        patch: FloatArray,
        output: FloatArray,
        clock: Callable[[], float],
    ) -> None:
        self._match = recognised.match
        self._code_reading = recognised.reading if recognised.choices.code else None
        self.said = recognised.choices.said()
        self._patch, self._output = patch, output
        self._limit = _TimeLimit(clock)
        self._tried: dict[object, list[ReadingTrial]] = {}
        self._weights: dict[float | None, dict[str, FloatArray]] = {}
        """The last ones, by the epsilon of stored statistics: nothing else makes them differ."""
        self._flops = 0.0

    @property
    def _extents(self) -> Triple:
        depth, height, width = self._patch.shape[2:]
        return depth, height, width

    @property
    def _rounding(self) -> float:
        """How far from its reference a reading may be by the rounding of its stored weights."""
        elements = self._match.modules.elements
        return max((_HALF_ROUNDING.get(element, 0.0) for element in elements), default=0.0)

    @property
    def trials(self) -> list[ReadingTrial]:
        """All, the closest first."""
        found = [trial for trials in self._tried.values() for trial in trials]
        return sorted(found, key=lambda trial: trial.error)

    @property
    def closest(self) -> ReadingTrial:
        """Of all that were tried."""
        return self.trials[0]

    def run(self, said: dict[str, str | float]) -> FittingReading | None:
        """What computes the reference, if anything does; said: what must not be changed.

        Raises CheckpointError if several readings do and differ.
        """
        starts = likely_readings(self._match, self._code_reading)
        likely = [said_reading(self._match, start, said) for start in starts]
        allowed = _Allowed(said)
        best = self._try(likely, allowed)
        expanded: set[Reading] = set()
        for _ in range(_DEEPEST):
            if best.error <= TOLERANCE or not self._has_budget():
                break
            if best.error <= self._rounding and best.reading in expanded:
                break  # nothing near it fits, and its weights tell why
            frontier = [t.reading for t in self.trials if t.reading not in expanded]
            frontier = [reading for reading in frontier if allowed(reading)][:_EXPANDED]
            expanded.update(frontier)
            around = [changed for reading in frontier for changed in changes(self._match, reading)]
            if not around:
                break
            best = min(best, self._try(around, allowed), key=lambda trial: trial.error)
        if best.error > TOLERANCE:
            return None
        self._limit.lift()  # else it would depend on the machine whether two readings fit
        self._try(changes(self._match, best.reading), allowed)
        return self._decided(allowed)

    def _try(self, readings: Iterable[Reading], allowed: "_Allowed") -> ReadingTrial:
        """Compute those that were not yet; the closest that is allowed."""
        best: ReadingTrial | None = None
        for reading in readings:
            if not allowed(reading) or (best and not self._has_budget()):
                continue
            for trial in self._computed(reading):
                if allowed(trial.reading) and (best is None or trial.error < best.error):
                    best = trial
        if best is None:
            best = ReadingTrial(self._match.shape.usual, float("inf"), None)
        return best

    def _computed(self, reading: Reading) -> list[ReadingTrial]:
        """The reading with all of its ends."""
        core = replace(reading, end="none", adds_input=False)
        stored_epsilon = core.epsilon if core.norm == "stored" else None
        try:
            spec = self._match.spec(core)
            key = spec, stored_epsilon
            if key in self._tried:
                return self._tried[key]
            graph = build(spec)
            graph.check_patch(self._extents)
        except (CheckpointError, PatchShapeError):
            return []
        if stored_epsilon not in self._weights:
            self._weights = {stored_epsilon: self._match.weights(core)}
        network = joined(graph, self._weights[stored_epsilon])
        self._tried[key] = list(self._ended(core, network))
        return self._tried[key]

    def _ended(self, core: Reading, network: Network) -> Iterator[ReadingTrial]:
        work = flops(network.graph, self._extents)
        self._flops += work
        small = work < _SMALL and prod(self._extents) <= _SMALL_PATCH
        threads = 1 if small else None
        with open_cpu_generator(network, threads, rewritten=not small) as generator:
            raw = generator(self._patch)
        if raw.shape != self._output.shape:
            raise CheckpointError(
                f"The reference output has the shape {self._output.shape}, but the generator makes "
                f"{raw.shape} of the reference input."
            )
        adding = (False, True) if raw.shape == self._patch.shape else (False,)
        for end, adds_input in product(ENDS, adding):
            made = _finished(raw, end) + (self._patch if adds_input else np.float32(0))
            error = relative_error(made, self._output)
            reading = replace(core, end=end, adds_input=adds_input)
            yield ReadingTrial(reading, error, made if error <= TOLERANCE else None)

    def _has_budget(self) -> bool:
        within = len(self._tried) < _MOST_TRIALS and self._flops < _FLOPS
        return within and not self._limit.is_over()

    def _decided(self, allowed: "_Allowed") -> FittingReading:
        """The trial that fits best, unless another fits as well; raises CheckpointError then."""
        trials = [trial for trial in self.trials if allowed(trial.reading)]
        usual = self._match.shape.usual
        same = [t for t in trials if _is_same(t.output, trials[0].output)]
        best = min(same, key=lambda trial: len(trial.reading.differences(usual)))
        second = next((trial for trial in trials if trial not in same), None)
        clear = _CLEARLY * max(best.error, _FLOAT_NOISE)
        if second and second.error <= min(TOLERANCE, clear):
            raise CheckpointError(
                f"Several readings of the checkpoint compute the reference to {TOLERANCE:g}, among "
                f"them {self._told(best.reading, second.reading)} and "
                f"{self._told(second.reading, best.reading)}; use a reference patch with more "
                f"structure, or say {_settings(best.reading, second.reading)}."
            )
        return FittingReading(best, second)

    def _told(self, reading: Reading, usual: Reading) -> str:
        return differences_in_words(self._match, reading, usual)

    def failure(self) -> str:
        """Why nothing fits, and what came closest."""
        closest, usual = self.closest, self._match.shape.usual
        one_away = {*changes(self._match, usual)}
        singles = [
            trial
            for trial in self.trials
            if trial.reading in one_away and len(trial.reading.differences(usual)) <= 2
        ]
        plain = [trial for trial in self.trials if trial.reading == usual]
        text = (
            "No reading of the checkpoint that this program knows computes the reference output; "
            f"of {len(self._tried)} networks that it can be, the closest "
            f"({self._told(closest.reading, usual)}) is {closest.error:.2g} away (relative "
            "L2)."
        )
        if closest.error <= self._rounding:
            return text + (
                " Its weights are stored in half precision, whose rounding explains as much: "
                "import the checkpoint in full precision from which the reference was made, or "
                "make the reference with these weights (load them and call float() on the module)."
            )
        if singles and plain:
            text += (
                f" Of single changes to the usual network, {plain[0].error:.2g} away, this came "
                f"closest: {self._told(singles[0].reading, usual)}, "
                f"{singles[0].error:.2g} away."
            )
        if not self._has_budget():
            text += (
                f" The search ended there, after {self._limit.spent():.0f} s; with a smaller "
                "reference patch it comes further."
            )
        return text + (
            " Either the training code computes something that is not among them, or the reference "
            "was made otherwise than by this checkpoint's test code in float32 on the CPU, without "
            "dropout and without any processing. A network that was changed in other ways can be "
            "exported as ONNX, which says all of it, and imported from that."
        )


class _TimeLimit:
    """Of one search."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin = clock()
        self._end = self._begin + MOST_SECONDS

    def spent(self) -> float:
        """Seconds so far."""
        return self._clock() - self._begin

    def is_over(self) -> bool:
        """Whether no more may be begun."""
        return self._clock() >= self._end

    def lift(self) -> None:
        """Let what follows take its time."""
        self._end = inf


class _Allowed:
    """Whether a reading says what the user says."""

    def __init__(self, said: dict[str, str | float]) -> None:
        self._said = {name: value for name, value in said.items() if name != "norm_statistics"}
        self._statistics = said.get("norm_statistics")

    def __call__(self, reading: Reading) -> bool:
        stored = reading.norm == "stored"
        if self._statistics is not None and stored != (self._statistics == "stored"):
            return False
        return all(getattr(reading, name) == value for name, value in self._said.items())


def _finished(raw: FloatArray, end: str) -> FloatArray:
    match end:
        case "tanh":
            return np.tanh(raw)
        case "sigmoid":
            with np.errstate(over="ignore"):
                return (1 / (1 + np.exp(-raw))).astype(np.float32)
        case _:
            return raw


def _is_same(output: FloatArray | None, other: FloatArray | None) -> bool:
    """Whether two outputs differ by no more than the order of sums explains."""
    if output is None or other is None:
        return False
    return np.array_equal(output, other) or relative_error(output, other) <= _ROUNDING


def _settings(one: Reading, other: Reading) -> str:
    names = {
        "block_activation": "activation",
        "up_activation": "activation",
        "up_padding": "padding",
        "down_padding": "padding",
    }
    return ", ".join(dict.fromkeys(setting(names.get(n, n)) for n in one.differences(other)))
