"""Which way of doing each convolution is fastest on this card: measured once, kept on disk."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..options import Effort

if TYPE_CHECKING:
    from ..compiler.steps import Convolution

Progress: TypeAlias = Callable[[str, float], None]
"""Told what is being measured, and the share of the work that is done; 1 at the end."""

_FASTEST = 8


def unheard(_what: str, _share: float) -> None:
    """Progress that nobody wants to hear of."""


OWN = "own kernel"
"""The algorithm that needs no cuDNN plan."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One measured way of doing a convolution: cuDNN's plan name, bytes, microseconds."""

    plan: str
    workspace: int
    microseconds: float

    @property
    def name(self) -> str:
        """cuDNN's name of the plan."""
        return self.plan


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of one convolution: candidates from fast to slow, and how hard was looked.

    workspace: bytes up to which candidates were tried.
    """

    effort: Effort
    workspace: int
    candidates: tuple[Candidate, ...]

    def covers(self, effort: Effort, workspace: int) -> bool:
        """Whether a search this hard and this wide could find nothing better."""
        return self.workspace >= workspace and (self.effort == "full" or effort != "full")

    def best(self, workspace: int) -> Candidate | None:
        """The fastest candidate within so many bytes of workspace."""
        return next((c for c in self.candidates if c.workspace <= workspace), None)


def key_of(shape: "Convolution") -> str:
    """Under which the findings of a convolution are kept."""
    return " ".join(f"{name}={value}" for name, value in asdict(shape).items())


class TuningCache:
    """Findings by convolution in one JSON file for a card, driver, cuDNN version and precision.

    Beside them the times of whole programs, which tell how long a batch of studies will take.

    A file that cannot be read, or was written for something else, counts as empty: findings can
    always be measured again.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, str]) -> None:
        self._identity = dict(identity)
        name = "-".join(_plain(part) for part in identity.values())
        self._path = folder / f"plans-{name}.json" if folder else None
        self._findings, self._times = self._read()

    def get(self, key: str) -> Findings | None:
        """What is known of a convolution."""
        return self._findings.get(key)

    def put(self, key: str, findings: Findings) -> None:
        """Keep findings, on disk too."""
        self._findings = {**self._findings, key: findings}
        self._write()

    def time(self, program: str) -> float | None:
        """Milliseconds of one run of a program, if it was measured."""
        return self._times.get(program)

    def put_time(self, program: str, milliseconds: float) -> None:
        """Keep the time of a program, on disk too."""
        self._times = {**self._times, program: milliseconds}
        self._write()

    def _write(self) -> None:
        """With what another process has put there in the meantime."""
        if self._path is None:
            return
        findings, times = self._read()
        self._findings, self._times = {**findings, **self._findings}, {**times, **self._times}
        content = {
            "identity": self._identity,
            "findings": {key: asdict(findings) for key, findings in self._findings.items()},
            "times": self._times,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as part:
                json.dump(content, part, indent=1)
            Path(part.name).replace(self._path)
        except OSError:
            self._path = None  # a folder that cannot be written costs the next start some time

    def _read(self) -> tuple[dict[str, Findings], dict[str, float]]:
        try:
            content: Any = json.loads(self._path.read_text()) if self._path else {}
            if content["identity"] != self._identity:
                return {}, {}
            found: dict[str, Any] = content["findings"]
            times: dict[str, Any] = content.get("times", {})
            return (
                {key: _findings(value) for key, value in found.items()},
                {key: float(value) for key, value in times.items()},
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}, {}


def cache_folder() -> Path:
    """Where this user's compiled kernels and measurements are kept.

    On Linux as the XDG base directory specification says, which ignores a relative path.
    """
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "")
    base = chosen if chosen.is_absolute() else Path.home() / ".cache"
    return base / "cuda-cyclegan"


def _findings(value: Any) -> Findings:
    candidates = tuple(
        Candidate(str(c["plan"]), int(c["workspace"]), float(c["microseconds"]))
        for c in value["candidates"]
    )
    if value["effort"] not in ("quick", "full", "off"):
        raise ValueError(value["effort"])
    return Findings(value["effort"], int(value["workspace"]), candidates)


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
