"""Measured speeds of earlier batches, which predict the next one."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from math import fsum, inf
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..engine.decoding import FieldError, decode, encode, parse
from ..io.errors import WriteError
from ..io.files.documents import write_document
from ..io.files.regular import read_regular
from ..io.volume import Study
from .report.report import StudyReport
from .stopwatch import Stage

_NETWORK: tuple[Stage, ...] = ("infer", "blend")


@dataclass(frozen=True, slots=True)
class HostRates:
    """Seconds per voxel of the scan.

    load: reading and preparing. store: finishing and writing.
    """

    load: float
    store: float

    @classmethod
    def measured(cls, rows: Iterable[StudyReport]) -> "HostRates | None":
        """Return the rates of the translated studies; None if there are none."""
        done = _done(rows)
        voxels = sum(row.voxels for row in done)
        if not voxels:
            return None
        verifying = fsum(row.verified.seconds for row in done if row.verified)
        return cls(
            load=_seconds(done, ("read", "prepare")) / voxels,
            store=max(0.0, _seconds(done, ("finish", "write")) - verifying) / voxels,
        )


@dataclass(frozen=True, slots=True)
class NetworkRates:
    """Seconds of the network per patch, and of opening the device.

    tile: seconds per patch, or per voxel of the scan for whole-volume inference.
    """

    tile: float
    opening: float

    @classmethod
    def measured(
        cls, rows: Iterable[StudyReport], opening: float, *, whole_volume: bool = False
    ) -> "NetworkRates | None":
        """Return the rates of the translated studies; None if there are none.

        whole_volume: whether they were translated by whole-volume inference.
        """
        done = _done(rows)
        patches = sum(row.tiles * (row.voxels / row.volumes if whole_volume else 1) for row in done)
        return cls(_seconds(done, _NETWORK) / patches, opening) if patches else None


@dataclass(frozen=True, slots=True)
class VerifyRates:
    """Seconds per patch that is computed a second time, on the CPU.

    tile: seconds per patch, or per voxel of the scan for whole-volume inference.
    """

    tile: float

    @classmethod
    def measured(
        cls, rows: Iterable[StudyReport], *, whole_volume: bool = False
    ) -> "VerifyRates | None":
        """Return the rate of the verified studies; None if there are none.

        whole_volume: as for `NetworkRates`.
        """
        verified = [(row.verified, row.voxels / row.volumes) for row in rows if row.verified]
        patches = sum(one.tiles * (voxels if whole_volume else 1) for one, voxels in verified)
        return cls(fsum(one.seconds for one, _ in verified) / patches) if patches else None


@dataclass(frozen=True, slots=True)
class ShownNote:
    """Note that a user of this machine has seen, such as why no GPU is used. text: "" for none."""

    text: str


@dataclass(frozen=True, slots=True)
class Work:
    """Predicted seconds of one study in its three stages.

    load: of reading and preparing. network: of the patches. store: of finishing and writing.
    """

    load: float
    network: float
    store: float

    @property
    def seconds(self) -> float:
        """Sum of the stages."""
        return self.load + self.network + self.store


@dataclass(frozen=True, slots=True)
class StageConcurrency:
    """Numbers of readers, devices and writers. opening: seconds until a device is ready.

    As many studies as there are readers may be read or wait for a device, and as many as there are
    writers may be written or wait for it.
    """

    readers: int = 1
    devices: int = 1
    writers: int = 1
    opening: float = 0.0


def wall_seconds(batch: Sequence[Work], concurrency: StageConcurrency) -> float:
    """Return the time of a batch if each study goes to the first free reader, device or writer."""
    devices = [concurrency.opening] * concurrency.devices
    taken: list[float] = []
    stored: list[float] = []
    for number, work in enumerate(batch):
        begun = taken[number - concurrency.readers] if number >= concurrency.readers else 0.0
        free = devices.index(min(devices))
        taken.append(max(devices[free], begun + work.load))
        free_slot = stored[number - concurrency.writers] if number >= concurrency.writers else 0.0
        devices[free] = max(taken[-1] + work.network, free_slot)
        stored.append(devices[free] + work.store)
    return max(stored, default=0.0)


Rates: TypeAlias = HostRates | NetworkRates | VerifyRates | ShownNote
R = TypeVar("R", HostRates, NetworkRates, VerifyRates, ShownNote)


class RateCache:
    """Cache file of rates and notes by their keys; what cannot be read or be a rate is missing.

    folder: its folder; None to keep nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder and folder / "rates.json"

    def get(self, kind: type[R], *keys: str) -> R | None:
        """Return the rates measured last for the first known key."""
        known = self._read()
        for key in keys:
            with suppress(FieldError):
                rates = decode(kind, known.get(key))
                if all(isinstance(each, str) or 0 <= each < inf for each in astuple(rates)):
                    return rates
        return None

    def put(self, rates: Mapping[str, Rates]) -> None:
        """Store rates by key; if the folder cannot be written, the next plan lacks its seconds."""
        if self._path is None or not rates:
            return
        content = {**self._read(), **{key: encode(each) for key, each in rates.items()}}
        with suppress(WriteError):
            write_document(self._path, json.dumps(content, indent=1).encode())

    def _read(self) -> dict[str, object]:
        try:
            known = parse(read_regular(self._path)) if self._path else {}
            return decode(dict[str, Any], known)
        except (OSError, ValueError):
            return {}


def new_note(text: str, cache: RateCache) -> str:
    """Store and return why no GPU is used; "" if this machine's last note was the same."""
    key = f"{platform.node()}, no GPU"
    if cache.get(ShownNote, key) == ShownNote(text):
        return ""
    cache.put({key: ShownNote(text)})
    return text


def opening_key(devices: str) -> str:
    """Return the key of opening times. devices: as the user chose them."""
    return f"{platform.node()}, network, {devices}"


def network_key(model: str, patch: Sequence[int] | None, precision: str, devices: str) -> str:
    """Return the key of a network's rates. model: its file's hash. patch: None for a volume."""
    return f"{opening_key(devices)}, {precision}, {_extents(patch)}, {model}"


def verify_key(model: str, patch: Sequence[int] | None) -> str:
    """Return the key of CPU times per patch. model: hash of its file. patch: None for whole
    volumes.
    """
    return f"{platform.node()}, verify, {_extents(patch)}, {model}"


def _extents(patch: Sequence[int] | None) -> str:
    return "x".join(map(str, patch)) if patch else "volume"


def host_keys(study: Study, model: str, result_format: str) -> tuple[str, str]:
    """Return the keys of a study's rates: with the model, which may resample, and without."""
    packing = ", gzip" if study.files[0].suffix == ".gz" else ""
    kind = f"{platform.node()}, host, {study.format}{packing} to {result_format}"
    return f"{kind}, {model}", kind


def _done(rows: Iterable[StudyReport]) -> list[StudyReport]:
    """Return computed studies, without those that were only stored again under another name."""
    return [row for row in rows if row.status == "translated" and row.tiles]


def _seconds(rows: Iterable[StudyReport], stages: Sequence[Stage]) -> float:
    return fsum(row.stages.get(stage, 0.0) for row in rows for stage in stages)
