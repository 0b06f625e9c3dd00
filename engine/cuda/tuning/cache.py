"""Tuning results of one GPU: the fastest tactics of each layer, measured once and kept on disk."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ....io.files.regular import read_regular
from ...compiler.lowered import LayerForm, Lowered
from ...compiler.program.forms import compared, forms_of
from ...compiler.steps import IDENTITY, Conv, ConvShape
from ...decoding import decode, encode, parse
from ...options import Effort
from ..user_cache import write_whole

_FASTEST = 8
"""Candidates of a layer that are kept."""

_AS_FAST = 1.02
"""A plan without workspace is preferred up to this share of the fastest plan's time.

A separate launch prepares the workspace, which delays a program more than repeated runs of the same
plan: 256 to 256 channels at 16^3 take 29.4 us by either plan on an H200, and in a program 31 and 32
with a workspace, 30 and 27 without.
"""

CUSTOM = "custom kernel"
"""Name of the tactic that needs no cuDNN plan."""

CUSTOM_FORM: LayerForm = "custom"
"""Form of a layer in the program that is compared: by a custom kernel if it has one."""

_FORMS_VERSION = 2
"""Raised when custom kernels become faster, or are compared otherwise, to compare them again."""

_PLACES_VERSION = 1
"""Raised when the comparison of places finds more than before, so that plans are compared again."""

_EFFORTS: tuple[Effort, ...] = ("off", "auto", "quick", "full")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tactic of a convolution, or a form of a layer.

    name: cuDNN's of a plan, `CUSTOM`, or that of the form. workspace: bytes that it takes besides
    its tensors. microseconds: 0 if not measured. proof: version of the check that many of its runs
    have passed, empty before.
    """

    name: str
    workspace: int
    microseconds: float
    proof: str = ""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Candidates of one convolution or layer, the fastest first, and how hard it was searched.

    effort: of the search. workspace: bytes up to which candidates were tried. refused: rejected
    plans, and what was wrong with each.
    """

    effort: Effort
    workspace: int
    candidates: tuple[Candidate, ...]
    refused: Mapping[str, str] = field(default_factory=dict[str, str])

    def covers(self, effort: Effort, workspace: int) -> bool:
        """Return whether a search this hard and this wide could find nothing better.

        One that is automatic takes what was found before.
        """
        if effort in ("off", "auto"):
            return True
        is_as_hard = _EFFORTS.index(self.effort) >= _EFFORTS.index(effort)
        return is_as_hard and self.workspace >= workspace

    def best(self, workspace: int) -> Candidate | None:
        """Return the fastest candidate within the workspace, or one as fast without any."""
        fitting = [c for c in self.candidates if c.workspace <= workspace]
        as_fast = (c for c in fitting if c.microseconds <= _AS_FAST * fitting[0].microseconds)
        return min(as_fast, key=lambda one: (one.workspace > 0, one.microseconds), default=None)

    def with_proof(self, plan: str, proof: str) -> "TuningResult":
        """Return the result with a plan that passed its check."""
        candidates = tuple(
            replace(one, proof=proof) if one.name == plan else one for one in self.candidates
        )
        return replace(self, candidates=candidates)

    def without(self, plan: str, wrong: str) -> "TuningResult":
        """Return the result with a plan rejected."""
        candidates = tuple(one for one in self.candidates if one.name != plan)
        return replace(self, candidates=candidates, refused={**self.refused, plan: wrong})

    def merged_after(self, earlier: "TuningResult") -> "TuningResult":
        """Return the result merged with another process's.

        Its candidates stay if its search was as hard and wide: all processes then take one plan.
        """
        refused = {**earlier.refused, **self.refused}
        kept = earlier if earlier.covers(self.effort, self.workspace) else self
        candidates = tuple(one for one in kept.candidates if one.name not in refused)
        return replace(kept, candidates=candidates, refused=refused)


NOTHING = TuningResult("off", 0, ())
"""Result of a layer that was never tuned."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Content of a cache file. identity: what it is valid for. times: milliseconds by program.

    findings: results by layer. kernels: layers whose custom kernel was checked, and what was wrong,
    empty for nothing. places: whether a plan gives a voxel of a convolution the same bytes at every
    position, by both.
    """

    identity: Mapping[str, str]
    findings: Mapping[str, TuningResult] = field(default_factory=dict[str, TuningResult])
    times: Mapping[str, float] = field(default_factory=dict[str, float])
    kernels: Mapping[str, str] = field(default_factory=dict[str, str])
    places: Mapping[str, bool] = field(default_factory=dict[str, bool])


def _position_key(shape: ConvShape, plan: str) -> str:
    return f"{plan} {key_of(shape)}, places {_PLACES_VERSION}"


def key_of(shape: ConvShape) -> str:
    """Return the cache key of a convolution."""
    return " ".join(f"{name}={value}" for name, value in asdict(shape).items())


class TuningCache:
    """Tuning results in one JSON file per GPU, driver, cuDNN version and precision.

    The file also has the times of whole programs, from which plans of a batch are estimated.

    A file that cannot be read, or that is valid for something else, counts as empty: everything in
    it can be measured again.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, str]) -> None:
        """identity: what results are valid for. folder: of the file, None to keep nothing."""
        name = "-".join(_plain(part) for part in identity.values())
        self._path = folder / f"tactics-{name}.json" if folder else None
        self._known = self._read(Measurements(dict(identity)))

    def get(self, key: str) -> TuningResult:
        """Return the result of a layer."""
        return self._known.findings.get(key, NOTHING)

    def best(self, shape: ConvShape, workspace: int, effort: Effort) -> Candidate | None:
        """Return the fastest candidate within the workspace if the search was as hard."""
        known = self.get(key_of(shape))
        return known.best(workspace) if known.covers(effort, workspace) else None

    def put(self, key: str, result: TuningResult) -> None:
        """Keep a result, merged with what another process has kept meanwhile."""
        before = self.get(key)
        self._reread()
        meanwhile = self.get(key)
        self._keep(
            "findings", key, result if meanwhile == before else result.merged_after(meanwhile)
        )

    def time(self, program: str) -> float | None:
        """Return the milliseconds of one run of a program if it was measured."""
        return self._known.times.get(program)

    def put_time(self, program: str, milliseconds: float) -> None:
        """Keep the time of a program."""
        self._reread()
        self._keep("times", program, milliseconds)

    @property
    def kernels(self) -> Mapping[str, str]:
        """Custom kernels that were checked, and what was wrong with each."""
        return self._known.kernels

    def put_kernel(self, kernel: str, wrong: str) -> None:
        """Keep the verdict on a custom kernel."""
        self._reread()
        self._keep("kernels", kernel, wrong)

    def is_same_anywhere(self, shape: ConvShape, plan: str) -> bool | None:
        """Whether a plan gives a voxel the same bytes at every position, if that was checked."""
        return self._known.places.get(_position_key(shape, plan))

    def put_same_anywhere(self, shape: ConvShape, plan: str, is_same: bool) -> None:
        """Keep whether it does."""
        self._reread()
        self._keep("places", _position_key(shape, plan), is_same)

    def _reread(self) -> None:
        """Take over what other processes have kept; keep what the file lacks."""
        known, stored = self._known, self._read(Measurements(self._known.identity))
        self._known = Measurements(
            identity=known.identity,
            findings={**known.findings, **stored.findings},
            times={**known.times, **stored.times},
            kernels={**known.kernels, **stored.kernels},
            places={**known.places, **stored.places},
        )

    def _keep(self, kind: str, key: str, value: TuningResult | float | str | bool) -> None:
        """Add an entry to a field of the measurements, on disk too."""
        kept = {**getattr(self._known, kind), key: value}
        self._known = replace(self._known, **{kind: kept})
        if self._path is None:
            return
        try:
            write_whole(self._path, json.dumps(encode(self._known), indent=1).encode())
        except OSError:
            self._path = None  # a folder that cannot be written costs the next start some time

    def _read(self, empty: Measurements) -> Measurements:
        try:
            found = decode(Measurements, parse(read_regular(self._path))) if self._path else empty
        except (OSError, ValueError):
            return empty
        return found if found.identity == empty.identity else empty


def worth_keeping(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the fastest candidates, and those that are the fastest for their workspace."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.microseconds):
        if len(kept) < _FASTEST or candidate.workspace < min(c.workspace for c in kept):
            kept.append(candidate)
    return tuple(kept)


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in text)


def form_key(step: Conv) -> str:
    """Return the cache key of the times of a layer in each of its forms."""
    read = [
        (view.source.channels, view.source.shuffled, view.table is not None) for view in step.views
    ]
    parts = step.batch, step.source.extents, step.output.extents, step.outputs, read
    measures, computed = step.statistics is not None, step.kernel or step.precision
    bends = step.bias is not None or step.activation != IDENTITY
    ends = f"{measures=} {bends=} joins={step.outputs < step.target.channels}"
    return f"{computed} {parts} {step.geometry} {ends}, forms {_FORMS_VERSION}"


def faster_forms(lowered: Lowered, cache: TuningCache) -> Mapping[str, LayerForm]:
    """Return the forms that were faster than those of a program, by layer."""
    found: dict[str, LayerForm] = {}
    for step in compared(lowered):
        names = {one.name for one in cache.get(form_key(step)).candidates[:1]}
        others = forms_of(lowered, step)
        found.update((step.layer, form) for form in others if form in names)
    return found
