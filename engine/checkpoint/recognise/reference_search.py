"""The one reading of a checkpoint that computes a reference: a patch, and what the training code
made of it.

A network is computed once for all of its possible ends. The search begins with what known codes and
usual networks do, and goes on from the closest by one change at a time; what fits is then compared
with all readings that are one change away from it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

import numpy as np

from ...errors import CheckpointError, PatchShapeError
from ...model.card import Established
from ...model.reference import MOST_FLOPS, TOLERANCE, relative_error
from ...network.architectures import build
from ...network.flops import flops
from ...network.layers import FloatArray, Triple
from ...onnxruntime.session import open_cpu_generator
from .codes import CODES
from .established import check_meaning, described, part, said_reading, shown_fields, tell_reading
from .layouts import recognise
from .match import Match, ResNetShape
from .reading import CONCATS, ENDS, PLAIN_PADS, RESIDUALS, UPSAMPLINGS, Reading
from .recognised import Recognised
from .recognition import Direction, Evidence, setting

_PADS = (*PLAIN_PADS, "constant:-1")
_ACTIVATIONS = ("relu", "leaky:0.2", "leaky:0.01", "elu")
_EPSILONS = (1e-5, 1e-3)
_STRIDES = ("2,2,2", "1,2,2", "2,2,1")
_DILATIONS = (1, 2)
_EXPANDED, _DEEPEST, _MOST_TRIALS = 3, 5, 400
_FLOPS = 4 * MOST_FLOPS
MOST_SECONDS = 300.0
"""After which a search looks for no further reading; one that was found is still compared."""

_SMALL = 1 << 31
"""FLOPs up to which a second thread is not worth its start."""

_ROUNDING, _FLOAT_NOISE, _CLEARLY = 2e-7, 1e-6, 20
"""What one network's sums in another order differ by, what two sound computations do, and how many
times closer a reading must be to be it."""

_COMPUTED = "only this computes the reference"


@dataclass(frozen=True, slots=True)
class _Trial:
    """A reading and how far its output is from the reference; the output itself if that fits."""

    reading: Reading
    error: float
    output: FloatArray | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Found:
    """What fits, and the closest trial that computes something else."""

    best: _Trial
    second: _Trial | None


def resolve(
    recognised: Recognised,
    reference_input: FloatArray,
    reference_output: FloatArray,
    clock: Callable[[], float] = time.monotonic,
) -> Recognised:
    """The same checkpoint read as the reference proves it; both arrays are [N, C, D, H, W].

    clock: tells seconds. Raises CheckpointError if no reading computes the reference, if several do
    and differ on this patch, or if one does that contradicts what the user says.
    """
    searches: list[_Search] = []
    for candidate in _directions(recognised):
        search = _Search(candidate, reference_input, reference_output, clock)
        searches.append(search)
        if found := search.run(candidate.choices.said()):
            return _proven(candidate, found)
    for search in searches:
        if search.said and (found := search.run({})):
            raise CheckpointError(_contradicted(search, found.best.reading))
    raise CheckpointError(min(searches, key=lambda search: search.closest.error).failure())


def _directions(recognised: Recognised) -> Iterator[Recognised]:
    """The checkpoint's generators that may be meant."""
    asked = [q for q in recognised.undecided if q.field == "direction"]
    if not asked:
        yield recognised
        return
    for direction in asked[0].answers:
        chosen: Direction = "AtoB" if direction == "AtoB" else "BtoA"
        found = recognise(recognised.checkpoint, replace(recognised.choices, direction=chosen))
        told = tuple(
            replace(fact, reason=_COMPUTED) if fact.subject == "direction" else fact
            for fact in found.told
        )
        yield replace(found, told=told)


class _Search:
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
        self._tried: dict[object, list[_Trial]] = {}
        self._first: _Trial | None = None
        self._flops = 0.0

    @property
    def _extents(self) -> Triple:
        depth, height, width = self._patch.shape[2:]
        return depth, height, width

    @property
    def trials(self) -> list[_Trial]:
        """All, the closest first."""
        found = [trial for trials in self._tried.values() for trial in trials]
        return sorted(found, key=lambda trial: trial.error)

    @property
    def closest(self) -> _Trial:
        """Of all that were tried."""
        return self.trials[0]

    def run(self, said: dict[str, str | float]) -> _Found | None:
        """What computes the reference, if anything does; said: what must not be changed.

        Raises CheckpointError if several readings do and differ.
        """
        starts = [said_reading(self._match, start, said) for start in self._starts()]
        allowed = _Allowed(said)
        best = self._try(starts, allowed)
        expanded: set[Reading] = set()
        for _ in range(_DEEPEST):
            if best.error <= TOLERANCE or not self._has_budget():
                break
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

    def _starts(self) -> Iterator[Reading]:
        """What known codes and usual networks compute, the most likely first."""
        usual = self._match.shape.usual
        if self._code_reading:
            yield self._code_reading
        yield usual
        for code in CODES:
            try:
                generator = code.generator(self._match)
                yield generator.reading_of(self._match, None)
            except CheckpointError:
                continue
        norms = self._match.norms()[:2] if self._match.is_tracked else self._match.norms()[:1]
        sampled = isinstance(self._match.shape, ResNetShape) and self._match.shape.sampled
        for padding, norm, upsampling, concat in product(
            PLAIN_PADS,
            norms,
            UPSAMPLINGS if sampled else (usual.upsampling,),
            (usual.concat,) if isinstance(self._match.shape, ResNetShape) else CONCATS,
        ):
            start = replace(usual, norm=norm, upsampling=upsampling, concat=concat)
            if isinstance(self._match.shape, ResNetShape):
                start = said_reading(self._match, start, {"padding": padding})
            yield start

    def _try(self, readings: Iterable[Reading], allowed: "_Allowed") -> _Trial:
        """Compute those that were not yet; the closest that is allowed."""
        best: _Trial | None = None
        for reading in readings:
            if not allowed(reading) or (best and not self._has_budget()):
                continue
            for trial in self._computed(reading):
                if allowed(trial.reading) and (best is None or trial.error < best.error):
                    best = trial
        if best is None:
            best = _Trial(self._match.shape.usual, float("inf"), None)
        return best

    def _computed(self, reading: Reading) -> list[_Trial]:
        """The reading with all of its ends."""
        core = replace(reading, end="none", adds_input=False)
        try:
            spec = self._match.spec(core)
            build(spec).check_patch(self._extents)
        except (CheckpointError, PatchShapeError):
            return []
        key = spec, core.epsilon if core.norm == "stored" else None
        if key not in self._tried:
            self._tried[key] = list(self._ended(core))
        return self._tried[key]

    def _ended(self, core: Reading) -> Iterator[_Trial]:
        network = self._match.network(core)
        work = flops(network.graph, self._extents)
        self._flops += work
        with open_cpu_generator(network, 1 if work < _SMALL else None) as generator:
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
            yield _Trial(reading, error, made if error <= TOLERANCE else None)

    def _has_budget(self) -> bool:
        within = len(self._tried) < _MOST_TRIALS and self._flops < _FLOPS
        return within and not self._limit.is_over()

    def _decided(self, allowed: "_Allowed") -> _Found:
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
                f"them {_spelled(self._match, best.reading, second.reading)}; use a reference "
                f"patch with more structure, or say {_settings(best.reading, second.reading)}."
            )
        return _Found(best, second)

    def failure(self) -> str:
        """Why nothing fits, and what came closest."""
        closest, usual = self.closest, self._match.shape.usual
        singles = [
            trial
            for trial in self.trials
            if 0 < len(trial.reading.differences(usual)) <= 2
            and trial.reading in {usual, *changes(self._match, usual)}
        ]
        plain = [trial for trial in self.trials if trial.reading == usual]
        text = (
            "No reading of the checkpoint that this program knows computes the reference output; "
            f"of {len(self._tried)} networks that it can be, the closest "
            f"({_said(self._match, closest.reading, usual)}) is {closest.error:.2g} away (relative "
            "L2)."
        )
        if singles and plain:
            text += (
                f" Of single changes to the usual network, {plain[0].error:.2g} away, this came "
                f"closest: {_said(self._match, singles[0].reading, usual)}, "
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
            "dropout and without any processing."
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


def changes(match: Match, reading: Reading) -> list[Reading]:
    """Readings that are one change away; said of all parts at once, or of one."""
    shape = match.shape
    found: list[Reading] = []

    def vary(values: Iterable[object], *fields: str) -> None:
        for value in values:
            changed = replace(reading, **dict.fromkeys(fields, value))
            if changed != reading:
                found.append(changed)

    vary(match.norms(), "norm")
    vary(_EPSILONS, "epsilon")
    vary(_PADS, "padding")
    if isinstance(shape, ResNetShape):
        vary(_ACTIVATIONS, "activation", "block_activation", "up_activation")
        vary(_PADS, "block_padding")
        vary(_PADS, "padding", "block_padding")
        vary(_PADS, "padding", "block_padding", "down_padding", "up_padding")
        vary(RESIDUALS, "residual")
        vary(PLAIN_PADS, "down_padding")
        if shape.sampled:
            vary(PLAIN_PADS, "up_padding")
            vary(UPSAMPLINGS, "upsampling")
        if shape.blur_taps:
            vary(_PADS, "blur_padding")
        for part_of in ("activation", "block_activation", "up_activation"):
            vary(_ACTIVATIONS, part_of)
        vary(_STRIDES, "stride")
        vary(_DILATIONS, "dilation")
    else:
        vary(CONCATS, "concat")
        vary(_ACTIVATIONS, "activation")
        vary(_ACTIVATIONS, "up_activation")
    return list(dict.fromkeys(found))


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


def _proven(recognised: Recognised, found: _Found) -> Recognised:
    """The recognised generator with its reading told by the reference."""
    match, reading = recognised.match, found.best.reading
    if recognised.choices.code and (wrong := _other_than(recognised, reading)):
        raise CheckpointError(
            f"The reference contradicts setting code={recognised.choices.code}: it was computed "
            f"with {wrong}; leave setting code out."
        )
    evidence = Evidence(recognised.choices)
    check_meaning(match, evidence)
    tell_reading(match, reading, evidence, _COMPUTED)
    distance = f"{found.best.error:.1g} away (relative L2)"
    if found.second:
        other = _said(match, found.second.reading, reading)
        distance += f"; the next best reading ({other}) is {found.second.error:.2g} away"
    evidence.tell("reference", "computed", distance)
    kept = [fact for fact in recognised.told if not fact.reason.startswith("so computes")]
    return replace(
        recognised,
        network=match.network(reading),
        reading=reading,
        established=Established("reference"),
        told=(*kept, *evidence.told),
        defaulted=tuple(fact for fact in recognised.defaulted if fact.subject == "direction"),
        undecided=(),
    )


def _other_than(recognised: Recognised, reading: Reading) -> str:
    """What of a reading is not as the named code computes; statistics may be asked for."""
    expected = recognised.reading
    if recognised.undecided:
        expected = replace(expected, norm=reading.norm)
    return _said(recognised.match, reading, expected) if reading != expected else ""


def _contradicted(search: _Search, reading: Reading) -> str:
    """The error of what the user says and the reference shows to be wrong."""
    said = dict(search.said)
    wrong: list[str] = []
    right: list[str] = []
    for name, value in said.items():
        shown = (
            ("stored" if reading.norm == "stored" else "patch")
            if name == "norm_statistics"
            else getattr(reading, name)
        )
        if shown != value:
            wrong.append(f"{setting(name)}={value}")
            right.append(f"{setting(name)}={shown}")
    return f"The reference contradicts {' '.join(wrong)}: it was computed with {' '.join(right)}."


def _said(match: Match, reading: Reading, usual: Reading) -> str:
    """In what a reading differs from another, in words."""
    shown = set(shown_fields(match))
    differing = [name for name in reading.differences(usual) if name in shown]
    words = [f"{part(name)} {described(reading, name)}" for name in differing]
    return ", ".join(words) or "as usual"


def _spelled(match: Match, one: Reading, other: Reading) -> str:
    return f"{_said(match, one, other)} and {_said(match, other, one)}"


def _settings(one: Reading, other: Reading) -> str:
    names = {
        "block_activation": "activation",
        "up_activation": "activation",
        "up_padding": "padding",
        "down_padding": "padding",
    }
    return ", ".join(dict.fromkeys(setting(names.get(n, n)) for n in one.differences(other)))
