"""How fast earlier batches went on this machine, to tell how long the next one will take."""

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from pathlib import Path
from typing import Any

from ..io.atomic import whole_file
from ..io.errors import WriteError
from .report import StudyReport
from .stopwatch import Stage

_NETWORK: tuple[Stage, ...] = ("infer", "blend")


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of work: of the network a tile, of reading and preparing, and of finishing and
    writing, a voxel of the scan.
    """

    tile: float
    load: float
    store: float

    @classmethod
    def measured(cls, rows: Iterable[StudyReport]) -> "Rates | None":
        """The rates of what was translated; None if that is nothing."""
        done = [row for row in rows if row.status == "translated"]
        voxels, tiles = sum(row.voxels for row in done), sum(row.tiles for row in done)
        if not voxels or not tiles:
            return None
        return cls(
            tile=_seconds(done, _NETWORK) / tiles,
            load=_seconds(done, ("read", "prepare")) / voxels,
            store=_seconds(done, ("finish", "write")) / voxels,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """Predicted seconds of one study at its three stations."""

    load: float
    network: float
    store: float

    @classmethod
    def of(cls, voxels: int, tiles: int, rates: Rates) -> "Work":
        return cls(voxels * rates.load, tiles * rates.tile, voxels * rates.store)

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.load + self.network + self.store


def wall_seconds(batch: Sequence[Work]) -> float:
    """How long a batch takes, with one study at each station at a time and none waiting between."""
    taken = loaded = translated = stored = 0.0
    for work in batch:
        loaded = max(loaded, taken) + work.load
        taken = max(translated, loaded)
        translated = taken + work.network
        stored = max(stored, translated) + work.store
    return stored


class RateCache:
    """Rates by what they depend on, in one file; one that cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rates.json"

    def get(self, key: str) -> Rates | None:
        """The rates last measured."""
        try:
            found: Any = json.loads(self._path.read_text())[key]
            return Rates(**{name: float(value) for name, value in found.items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def put(self, key: str, rates: Rates) -> None:
        """Keep rates; a folder that cannot be written costs the next plan its seconds."""
        try:
            content: Any = json.loads(self._path.read_text())
        except (OSError, ValueError):
            content = {}
        if not isinstance(content, dict):
            content = {}
        content[key] = asdict(rates)
        try:
            with whole_file(self._path) as part:
                part.write_text(json.dumps(content, indent=1))
        except WriteError:
            pass


def rate_key(model: str, patch: Sequence[int], precision: str, devices: str) -> str:
    """What rates depend on; model: its file's hash; devices: as the user chose them."""
    extents = "x".join(map(str, patch))
    return f"{platform.node()}, {devices}, {precision}, {extents}, {model}"


def _seconds(rows: Iterable[StudyReport], stages: Sequence[Stage]) -> float:
    return fsum(row.stages.get(stage, 0.0) for row in rows for stage in stages)
