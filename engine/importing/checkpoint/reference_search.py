"""Search for the one reading of a checkpoint that reproduces a reference, and what it proves.

A reference is a patch and the training code's output for it. A network is computed once for all its
possible ends. The search starts with the readings of known codes and usual networks, and continues
from the closest by one change at a time; a reading that fits is then compared with all readings
that are one change away from it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, prod
from typing import TypeAlias

import numpy as np

from ...cpu.session import open_cpu_generator
from ...errors import CheckpointError, PatchShapeError
from ...model.model_card import Established
from ...model.reference import MOST_FLOPS, TOLERANCE, relative_error
from ...network.architectures import build
from ...network.graph import Network
from ...network.graph_analysis import flops
from ...network.layers import Constant, Elu, FloatArray, LeakyRelu, Relu, Triple
from .evidence import (
    CONCATS,
    ENDS,
    PLAIN_PADS,
    RESIDUALS,
    SAMPLINGS,
    Direction,
    Evidence,
    FieldValue,
    Reading,
    setting,
    word,
)
from .layouts import Match, ResNetShape, joined
from .provenance import (
    check_meaning,
    describe_differences,
    field_label,
    open_fields,
    reading_with,
    record_reading,
)
from .recognise import Recognised, recognise
from .training_codes import CODES

_PADDINGS = (*PLAIN_PADS, Constant(-1.0))
_SLOPES = (0.2, 0.01)
_ACTIVATIONS = (Relu(), *map(LeakyRelu, _SLOPES), Elu())
_EPSILONS = (1e-5, 1e-3)
_STRIDES = ((2, 2, 2), (1, 2, 2), (2, 2, 1))
_DILATIONS = (1, 2)


def likely_readings(match: Match, code_reading: Reading | None) -> Iterator[Reading]:
    """Yield the readings of known codes and usual networks, the most likely first.

    code_reading: of the code that the user names, if any.
    """
    usual = match.shape.usual
    if code_reading:
        yield code_reading
    yield usual
    for code in CODES:
        try:
            generator = code.generator(match)
            yield generator.reading_of(match, None)
        except CheckpointError:
            continue
    norms = match.norms()[:2] if match.is_tracked else match.norms()[:1]
    sampled = isinstance(match.shape, ResNetShape) and match.shape.sampled
    for padding, norm, upsampling, concat in product(
        PLAIN_PADS,
        norms,
        SAMPLINGS if sampled else (usual.upsampling,),
        (usual.concat,) if isinstance(match.shape, ResNetShape) else CONCATS,
    ):
        start = replace(usual, norm=norm, upsampling=upsampling, concat=concat)
        if isinstance(match.shape, ResNetShape):
            start = reading_with(match, start, {"padding": padding})
        yield start


def changes(match: Match, reading: Reading) -> list[Reading]:
    """Return the readings that are one change away, of all parts or of one part."""
    shape = match.shape
    found: list[Reading] = []

    def vary(values: Iterable[object], *fields: str) -> None:
        for value in values:
            changed = replace(reading, **dict.fromkeys(fields, value))
            if changed != reading:
                found.append(changed)

    vary(match.norms(), "norm")
    vary(_EPSILONS, "epsilon")
    vary(_PADDINGS, "padding")
    if isinstance(shape, ResNetShape):
        vary(_ACTIVATIONS, "activation", "block_activation", "up_activation")
        vary(_PADDINGS, "block_padding")
        vary(_PADDINGS, "padding", "block_padding")
        vary(_PADDINGS, "padding", "block_padding", "down_padding", "up_padding")
        vary(RESIDUALS, "residual")
        vary(PLAIN_PADS, "down_padding")
        if shape.sampled:
            vary(PLAIN_PADS, "up_padding")
            vary(SAMPLINGS, "upsampling")
        if shape.blur_taps:
            vary(_PADDINGS, "blur_padding")
        for part_of in ("activation", "block_activation", "up_activation"):
            vary(_ACTIVATIONS, part_of)
        vary(_STRIDES, "stride")
        vary(_DILATIONS, "dilation")
    else:
        vary(CONCATS, "concat")
        vary(_ACTIVATIONS, "activation")
        vary(_ACTIVATIONS, "up_activation")
    return list(dict.fromkeys(found))


_EXPANDED, _DEEPEST, _MOST_TRIALS = 3, 5, 400
_FLOPS = 4 * MOST_FLOPS
MOST_SECONDS = 300.0
"""Time limit of the search for a fitting reading; one that was found is still compared."""

_HALF_ROUNDING = {"float16": 5e-3, "bfloat16": 4e-2}
"""Relative error that weights rounded to half precision may cause: five times the largest error
of the tests' networks.
"""

_SMALL, _SMALL_PATCH = 1 << 31, 24**3
"""FLOPs and voxels up to which a second thread or a rewritten graph costs more than it gains."""

_ROUNDING, _FLOAT_NOISE, _CLEARLY = 2e-7, 1e-6, 20
"""Relative difference between orders of summation of one network, between two valid
implementations, and the factor by which the right reading must be closer than any other.
"""


TrialListener: TypeAlias = Callable[[int, float, str], None]
"""Callback before each trial with the number of networks tried, the closest relative error, which
is infinite at first, and how the network that is tried now differs from the usual one, in words.
"""


def ignore_trial(_tried: int, _closest: float, _now: str) -> None:
    """Do nothing before a trial."""


@dataclass(frozen=True, slots=True)
class ReadingTrial:
    """A computed reading.

    reading: the reading. error: relative error against the reference. output: kept if it fits.
    """

    reading: Reading
    error: float
    output: FloatArray | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class FittingReading:
    """A fitting reading.

    best: the most usual one of those with equal output. second: the closest one that differs.
    """

    best: ReadingTrial
    second: ReadingTrial | None


class ReferenceSearch:
    """Search over readings of one network; keeps all trials."""

    def __init__(
        self,
        recognised: Recognised,
        patch: FloatArray,
        output: FloatArray,
        clock: Callable[[], float],
        on_trial: TrialListener,
    ) -> None:
        self._on_trial = on_trial
        self._match = recognised.match
        self._code_reading = recognised.reading if recognised.choices.code else None
        self.stated = recognised.choices.stated()
        self._patch, self._output = patch, output
        self._limit = _TimeLimit(clock)
        self._tried: dict[object, list[ReadingTrial]] = {}
        self._weights: dict[float | None, dict[str, FloatArray]] = {}
        """The last weights, by the epsilon of stored statistics, the only field they depend on."""
        self._flops = 0.0
        self._closest = inf

    @property
    def _extents(self) -> Triple:
        depth, height, width = self._patch.shape[2:]
        return depth, height, width

    @property
    def _rounding(self) -> float:
        """Relative error that the rounding of the stored weights may cause."""
        elements = self._match.modules.elements
        return max((_HALF_ROUNDING.get(element, 0.0) for element in elements), default=0.0)

    @property
    def trials(self) -> list[ReadingTrial]:
        """All trials, the closest first."""
        found = [trial for trials in self._tried.values() for trial in trials]
        return sorted(found, key=lambda trial: trial.error)

    @property
    def closest(self) -> ReadingTrial:
        """The closest trial."""
        return self.trials[0]

    def run(self, stated: Mapping[str, FieldValue]) -> FittingReading | None:
        """Return the reading that reproduces the reference, or None; stated: fields that are fixed.

        Raises CheckpointError if several readings that differ reproduce it.
        """
        starts = likely_readings(self._match, self._code_reading)
        likely = [reading_with(self._match, start, stated) for start in starts]
        allowed = _Allowed(stated)
        best = self._try(likely, allowed)
        expanded: set[Reading] = set()
        for _ in range(_DEEPEST):
            if best.error <= TOLERANCE or not self._has_budget():
                break
            if best.error <= self._rounding and best.reading in expanded:
                break  # no reading close to it fits, and rounded weights explain why
            frontier = [t.reading for t in self.trials if t.reading not in expanded]
            frontier = [reading for reading in frontier if allowed(reading)][:_EXPANDED]
            expanded.update(frontier)
            around = [changed for reading in frontier for changed in changes(self._match, reading)]
            if not around:
                break
            best = min(best, self._try(around, allowed), key=lambda trial: trial.error)
        if best.error > TOLERANCE:
            return None
        self._limit.lift()  # otherwise the number of fitting readings would depend on the machine
        self._try(changes(self._match, best.reading), allowed)
        return self._decided(allowed)

    def _try(self, readings: Iterable[Reading], allowed: "_Allowed") -> ReadingTrial:
        """Compute the readings that are new; return the closest one that is allowed."""
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
        """Compute a reading with all possible ends."""
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
        usual = replace(self._match.shape.usual, end=core.end, adds_input=core.adds_input)
        self._on_trial(len(self._tried), self._closest, self._in_words(core, usual))
        self._tried[key] = list(self._ended(core, network))
        self._closest = min(self._closest, *(trial.error for trial in self._tried[key]))
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
            computed = _finished(raw, end) + (self._patch if adds_input else np.float32(0))
            error = relative_error(computed, self._output)
            reading = replace(core, end=end, adds_input=adds_input)
            yield ReadingTrial(reading, error, computed if error <= TOLERANCE else None)

    def _has_budget(self) -> bool:
        within = len(self._tried) < _MOST_TRIALS and self._flops < _FLOPS
        return within and not self._limit.is_over()

    def _decided(self, allowed: "_Allowed") -> FittingReading:
        """Return the best trial; raises CheckpointError if another one fits as well."""
        trials = [trial for trial in self.trials if allowed(trial.reading)]
        usual = self._match.shape.usual
        same = [t for t in trials if _is_same(t.output, trials[0].output)]
        best = min(same, key=lambda trial: len(trial.reading.differences(usual)))
        second = next((trial for trial in trials if trial not in same), None)
        clear = _CLEARLY * max(best.error, _FLOAT_NOISE)
        if second and second.error <= min(TOLERANCE, clear):
            raise CheckpointError(
                "Several interpretations of the checkpoint reproduce the reference to "
                f"{TOLERANCE:g}, among them {self._in_words(best.reading, second.reading)} and "
                f"{self._in_words(second.reading, best.reading)}; use a reference patch with more "
                f"structure, or set {_settings(best.reading, second.reading)}."
            )
        return FittingReading(best, second)

    def _in_words(self, reading: Reading, usual: Reading) -> str:
        return describe_differences(self._match, reading, usual)

    def _untried(self) -> str:
        """Return the settings for numbers of which the search tries only a few."""
        epsilons = ", ".join(f"{epsilon:g}" for epsilon in _EPSILONS)
        slopes = ", ".join(f"{slope:g}" for slope in _SLOPES)
        tried = {
            "activation": (f"leaky slopes {slopes}", "setting activation=leaky:SLOPE"),
            "epsilon": (f"epsilons {epsilons}", "setting epsilon"),
        }
        left = [
            tried[name] for name in tried if name in open_fields(self._match).keys() - self.stated
        ]
        if not left:
            return ""
        values = " and ".join(value for value, _ in left)
        settings = " or ".join(name for _, name in left)
        return f" It tries {values}; if your code uses another, add {settings}."

    def failure(self) -> str:
        """Return a text on why no reading fits, and which came closest."""
        closest, usual = self.closest, self._match.shape.usual
        one_away = {*changes(self._match, usual)}
        singles = [
            trial
            for trial in self.trials
            if trial.reading in one_away and len(trial.reading.differences(usual)) <= 2
        ]
        plain = [trial for trial in self.trials if trial.reading == usual]
        text = (
            "No interpretation of the checkpoint reproduces the reference output; of "
            f"{len(self._tried)} possible networks, the closest "
            f"({self._in_words(closest.reading, usual)}) is {closest.error:.2g} away (relative L2)."
        )
        if closest.error <= self._rounding:
            return text + (
                " Its weights are stored in half precision, whose rounding explains this "
                "difference: import the full-precision checkpoint with which the reference was "
                "computed, or compute the reference with these weights (load them and call "
                "float() on the module)."
            )
        if singles and plain:
            text += (
                f" Of single changes to the usual network, {plain[0].error:.2g} away, this came "
                f"closest: {self._in_words(singles[0].reading, usual)}, "
                f"{singles[0].error:.2g} away."
            )
        if not self._has_budget():
            text += (
                f" The search stopped after {self._limit.spent():.0f} s; with a smaller reference "
                "patch it tries more."
            )
        text += self._untried()
        return text + (
            " Either the training code computes something else, or the reference was not computed "
            "by this checkpoint's test code in float32 on the CPU, without dropout and without "
            "any processing. A network that was changed in other ways can be exported as ONNX, "
            "which defines it completely, and imported from that."
        )


class _TimeLimit:
    """Time limit of a search."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin = clock()
        self._end = self._begin + MOST_SECONDS

    def spent(self) -> float:
        """Return the seconds so far."""
        return self._clock() - self._begin

    def is_over(self) -> bool:
        """Return whether the time is up."""
        return self._clock() >= self._end

    def lift(self) -> None:
        """Remove the limit."""
        self._end = inf


class _Allowed:
    """Predicate: whether a reading agrees with the user's choices."""

    def __init__(self, stated: Mapping[str, FieldValue]) -> None:
        self._stated = {name: value for name, value in stated.items() if name != "norm_statistics"}
        self._statistics = stated.get("norm_statistics")

    def __call__(self, reading: Reading) -> bool:
        stored = reading.norm == "stored"
        if self._statistics is not None and stored != (self._statistics == "stored"):
            return False
        return all(getattr(reading, name) == value for name, value in self._stated.items())


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
    """Return whether two outputs differ by no more than the order of summation explains."""
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


_COMPUTED = "only this computes the reference"


def resolve(
    recognised: Recognised,
    reference_input: FloatArray,
    reference_output: FloatArray,
    clock: Callable[[], float] = time.monotonic,
    on_trial: TrialListener = ignore_trial,
) -> Recognised:
    """Return the checkpoint with the reading that the reference proves; arrays are [N, C, D, H, W].

    clock: returns seconds. on_trial: called before each network that is computed.

    Raises CheckpointError if no reading reproduces the reference, if several
    do and differ on this patch, or if the one that does contradicts the user's choices.
    """
    searches: list[ReferenceSearch] = []
    for candidate in _directions(recognised):
        search = ReferenceSearch(candidate, reference_input, reference_output, clock, on_trial)
        searches.append(search)
        if found := search.run(candidate.choices.stated()):
            return _proven(candidate, found)
    for search in searches:
        if search.stated and (found := search.run({})):
            raise CheckpointError(_contradicted(search, found.best.reading))
    raise CheckpointError(min(searches, key=lambda search: search.closest.error).failure())


def _directions(recognised: Recognised) -> Iterator[Recognised]:
    """Yield the generators of the checkpoint that may be meant."""
    asked = [q for q in recognised.undecided if q.field == "direction"]
    if not asked:
        yield recognised
        return
    for direction in asked[0].answers:
        chosen: Direction = "AtoB" if direction == "AtoB" else "BtoA"
        found = recognise(recognised.checkpoint, replace(recognised.choices, direction=chosen))
        facts = tuple(
            replace(fact, reason=_COMPUTED) if fact.subject == "direction" else fact
            for fact in found.facts
        )
        yield replace(found, facts=facts)


def _proven(recognised: Recognised, found: FittingReading) -> Recognised:
    """Return the recognised generator with the reading that the reference proves."""
    match, reading = recognised.match, found.best.reading
    if recognised.choices.code and (wrong := _other_than(recognised, reading)):
        raise CheckpointError(
            f"The reference contradicts setting code={recognised.choices.code}: it was computed "
            f"with {wrong}; omit setting code."
        )
    evidence = Evidence(recognised.choices)
    check_meaning(match, evidence)
    record_reading(match, reading, evidence, _COMPUTED)
    distance = f"{found.best.error:.1g} away (relative L2)"
    if found.second:
        other = describe_differences(match, found.second.reading, reading)
        distance += f"; the next best interpretation ({other}) is {found.second.error:.2g} away"
    evidence.record("reference", "computed", distance)
    stated = {_label(name): f"set with {setting(name)}" for name in recognised.choices.stated()}
    proved = [
        replace(fact, reason=f"{stated[fact.subject]}; the reference agrees")
        if fact.subject in stated
        else fact
        for fact in evidence.facts
    ]
    repeated = {stated[fact.subject] for fact in evidence.facts if fact.subject in stated}
    kept = [
        fact
        for fact in recognised.facts
        if not fact.reason.startswith("as computed by") and fact.reason not in repeated
    ]
    return replace(
        recognised,
        network=match.network(reading),
        reading=reading,
        established=Established("reference"),
        facts=(*kept, *proved),
        assumptions=tuple(fact for fact in recognised.assumptions if fact.subject == "direction"),
        undecided=(),
    )


def _label(name: str) -> str:
    """Return the label of a choice's field in tables."""
    return field_label("norm" if name == "norm_statistics" else name)


def _other_than(recognised: Recognised, reading: Reading) -> str:
    """Return how a reading differs from the named code's, apart from open statistics, in words."""
    expected = recognised.reading
    if recognised.undecided:
        expected = replace(expected, norm=reading.norm)
    return describe_differences(recognised.match, reading, expected) if reading != expected else ""


def _contradicted(search: ReferenceSearch, reading: Reading) -> str:
    """Return the message on choices that the reference contradicts."""
    stated = dict(search.stated)
    wrong: list[str] = []
    right: list[str] = []
    for name, value in stated.items():
        shown = (
            ("stored" if reading.norm == "stored" else "patch")
            if name == "norm_statistics"
            else getattr(reading, name)
        )
        if shown != value:
            wrong.append(f"{setting(name)}={word(value)}")
            right.append(f"{setting(name)}={word(shown)}")
    return f"The reference contradicts {' '.join(wrong)}: it was computed with {' '.join(right)}."
