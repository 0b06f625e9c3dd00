"""Which way of doing each convolution is fastest on this card: measured once, kept on disk."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

Effort: TypeAlias = Literal["quick", "full", "off"]
"""quick: the plans that the heuristics put first; full: every plan; off: the first that runs."""

_FASTEST = 8

OWN = "own kernel"
"""The algorithm that needs no cuDNN plan."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One measured way of doing a convolution: cuDNN's plan name, bytes, microseconds."""

    plan: str
    workspace: int
    microseconds: float


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


class TuningCache:
    """Findings by convolution in one JSON file for a card, driver, cuDNN version and precision.

    A file that cannot be read, or was written for something else, counts as empty: findings can
    always be measured again.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, str]) -> None:
        self._identity = dict(identity)
        name = "-".join(_plain(part) for part in identity.values())
        self._path = folder / f"plans-{name}.json" if folder else None
        self._findings = self._read()

    def get(self, key: str) -> Findings | None:
        """What is known of a convolution."""
        return self._findings.get(key)

    def put(self, key: str, findings: Findings) -> None:
        """Keep findings, on disk too."""
        self._findings = {**self._read(), **self._findings, key: findings}
        if self._path is None:
            return
        content = {
            "identity": self._identity,
            "findings": {key: asdict(findings) for key, findings in self._findings.items()},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as part:
                json.dump(content, part, indent=1)
            Path(part.name).replace(self._path)
        except OSError:
            self._path = None  # a folder that cannot be written costs the next start some time

    def _read(self) -> dict[str, Findings]:
        try:
            content: Any = json.loads(self._path.read_text()) if self._path else {}
            if content["identity"] != self._identity:
                return {}
            found: dict[str, Any] = content["findings"]
            return {key: _findings(value) for key, value in found.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}


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
