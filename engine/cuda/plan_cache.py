"""Which way of doing each convolution is fastest on this card: measured once, kept on disk."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...io.files.regular import read_regular
from ..decoding import decode, encode, parse
from ..options import Effort

if TYPE_CHECKING:
    from ..compiler.convolution import Convolution

Progress: TypeAlias = Callable[[str, float | None], None]
"""Told what is being measured, and the share of the work that is done; 1 at the end. None in its
place comes with a sentence that the user should keep: that a plan is refused.
"""

_FASTEST = 8


def ignore_progress(_what: str, _share: float | None) -> None:
    """Progress that nobody wants to hear of."""


_AS_FAST = 1.02
"""Of the fastest plan's time, up to which one without workspace is taken in its place.

A launch of its own prepares that, which a program waits for longer than a plan that follows itself
again and again: 256 to 256 channels at 16^3 take 29.4 us so by either plan on an H200, and in a
program 31 and 32 with a workspace, 30 and 27 without.
"""

_KEPT_AS = {"split_fp16": "halves"}
"""Names of fields in stored keys."""

_USUAL = {"dilation": (1, 1, 1), "groups": 1}
"""Values of fields that came later, by which keys leave them out."""

OWN = "own kernel"
"""The algorithm that needs no cuDNN plan."""

_PLACES_VERSION = "2"
"""Raised when the comparison of places finds more than before, so that plans are compared again."""

_EFFORTS: tuple[Effort, ...] = ("off", "quick", "full")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of doing a convolution: cuDNN's plan name, bytes, microseconds (0: not measured).

    workspace: those bytes. proof: by which check many of its runs were found right; empty before.
    """

    plan: str
    workspace: int
    microseconds: float
    proof: str = ""

    @property
    def name(self) -> str:
        """cuDNN's name of the plan."""
        return self.plan


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of one convolution: candidates from fast to slow, and how hard was looked.

    workspace: bytes up to which candidates were tried. effort: of the search. refused: plans that
    did not compute the convolution, and what was wrong.
    """

    effort: Effort
    workspace: int
    candidates: tuple[Candidate, ...]
    refused: Mapping[str, str] = field(default_factory=dict[str, str])

    def covers(self, effort: Effort, workspace: int) -> bool:
        """Whether a search this hard and this wide could find nothing better."""
        is_as_hard = _EFFORTS.index(self.effort) >= _EFFORTS.index(effort)
        return is_as_hard and (effort == "off" or self.workspace >= workspace)

    def best(self, workspace: int) -> Candidate | None:
        """The fastest candidate within so many bytes of workspace, or one as fast without any."""
        fitting = [c for c in self.candidates if c.workspace <= workspace]
        as_fast = (c for c in fitting if c.microseconds <= _AS_FAST * fitting[0].microseconds)
        return min(as_fast, key=lambda one: (one.workspace > 0, one.microseconds), default=None)

    def with_proof(self, plan: str, proof: str) -> "Findings":
        """The same, with a plan found right."""
        candidates = tuple(
            replace(one, proof=proof) if one.plan == plan else one for one in self.candidates
        )
        return replace(self, candidates=candidates)

    def without(self, plan: str, wrong: str) -> "Findings":
        """The same, with a plan struck out."""
        candidates = tuple(one for one in self.candidates if one.plan != plan)
        return replace(self, candidates=candidates, refused={**self.refused, plan: wrong})

    def behind(self, earlier: "Findings") -> "Findings":
        """With those of another process, whose candidates stay if its search was as hard and wide:
        all processes then take the same plan.
        """
        refused = {**earlier.refused, **self.refused}
        kept = earlier if earlier.covers(self.effort, self.workspace) else self
        candidates = tuple(one for one in kept.candidates if one.plan not in refused)
        return replace(kept, candidates=candidates, refused=refused)


NOTHING = Findings("off", 0, ())
"""What is known of a convolution that was never looked at."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """A cache's file. identity: what it was measured on. times: milliseconds a program.

    findings: by `key_of` a convolution. kernels: own kernels on a layer that were checked there,
    and what was wrong, empty for nothing. places: whether a plan gives a voxel of a convolution the
    same bytes wherever it lies, by both.
    """

    identity: Mapping[str, str]
    findings: Mapping[str, Findings] = field(default_factory=dict[str, Findings])
    times: Mapping[str, float] = field(default_factory=dict[str, float])
    kernels: Mapping[str, str] = field(default_factory=dict[str, str])
    places: Mapping[str, bool] = field(default_factory=dict[str, bool])


def _place_key(shape: "Convolution", plan: str) -> str:
    return f"{plan} {key_of(shape)}, places {_PLACES_VERSION}"


def key_of(shape: "Convolution") -> str:
    """Under which the findings of a convolution are kept: without what is 1, as ever."""
    values = asdict(shape)
    for name, usual in _USUAL.items():
        if values[name] == usual:
            del values[name]
    return " ".join(f"{_KEPT_AS.get(name, name)}={value}" for name, value in values.items())


class TuningCache:
    """Findings by convolution in one JSON file for a card, driver, cuDNN version and precision.

    Beside them the times of whole programs, which tell how long a batch of studies will take.

    A file that cannot be read, or was written for something else, counts as empty: findings can
    always be measured again.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, str]) -> None:
        name = "-".join(_plain(part) for part in identity.values())
        self._path = folder / f"plans-{name}.json" if folder else None
        self._known = self._read(Measurements(dict(identity)))

    def get(self, key: str) -> Findings:
        """What is known of a convolution."""
        return self._known.findings.get(key, NOTHING)

    def best(self, shape: "Convolution", workspace: int, effort: Effort) -> Candidate | None:
        """The fastest way of a convolution within so many bytes, if so hard a search was made."""
        known = self.get(key_of(shape))
        return known.best(workspace) if known.covers(effort, workspace) else None

    def put(self, key: str, findings: Findings) -> None:
        """Keep findings, on disk too, behind those that another process has put there meanwhile."""
        before = self.get(key)
        self._reread()
        meanwhile = self.get(key)
        self._keep("findings", key, findings if meanwhile == before else findings.behind(meanwhile))

    def time(self, program: str) -> float | None:
        """Milliseconds of one run of a program, if it was measured."""
        return self._known.times.get(program)

    def put_time(self, program: str, milliseconds: float) -> None:
        """Keep the time of a program, on disk too."""
        self._reread()
        self._keep("times", program, milliseconds)

    @property
    def kernels(self) -> Mapping[str, str]:
        """Own kernels that were checked, and what was wrong with each."""
        return self._known.kernels

    def put_kernel(self, kernel: str, wrong: str) -> None:
        """Keep what the check of an own kernel came to, on disk too."""
        self._reread()
        self._keep("kernels", kernel, wrong)

    def is_same_anywhere(self, shape: "Convolution", plan: str) -> bool | None:
        """Whether a plan gives a voxel the same bytes wherever it lies, if that was looked at."""
        return self._known.places.get(_place_key(shape, plan))

    def put_same_anywhere(self, shape: "Convolution", plan: str, is_same: bool) -> None:
        """Keep whether it does, on disk too."""
        self._reread()
        self._keep("places", _place_key(shape, plan), is_same)

    def _reread(self) -> None:
        """Take what other processes have put there; what the file lacks stays."""
        known, stored = self._known, self._read(Measurements(self._known.identity))
        self._known = Measurements(
            identity=known.identity,
            findings={**known.findings, **stored.findings},
            times={**known.times, **stored.times},
            kernels={**known.kernels, **stored.kernels},
            places={**known.places, **stored.places},
        )

    def _keep(self, kind: str, key: str, value: Findings | float | str | bool) -> None:
        """kind: the field of the measurements that gets it."""
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


def cache_folder() -> Path | None:
    """Where this user's compiled kernels and measurements are kept; None for one without a home.

    On Linux as the XDG base directory specification says, which ignores a relative path.
    """
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "")
    try:
        base = chosen if chosen.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "cuda-cyclegan"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that other processes may read meanwhile, and make its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(content)
        Path(part.name).replace(path)
    except OSError:
        if part:
            Path(part.name).unlink(missing_ok=True)
        raise


def worth_keeping(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """The fastest, and those that are the fastest for their workspace."""
    ordered = sorted(candidates, key=lambda candidate: candidate.microseconds)
    kept: list[Candidate] = []
    for candidate in ordered:
        if len(kept) < _FASTEST or candidate.workspace < min(c.workspace for c in kept):
            kept.append(candidate)
    return tuple(kept)


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in text)
