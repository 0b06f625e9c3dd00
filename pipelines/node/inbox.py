"""Received objects on disk: a folder a study, a file an object, named by what they hold.

`incoming/` has what is being received, `inbox/ROUTE/DAY-HASH/` the studies, `removed/` what is on
its way out. A name is made of hashes of the object's UID and of its bytes, so that the same object
has the same place however often it comes; in another encoding it stays as it came first. An image
that was refused while others of its study were taken leaves an empty file, until it is taken.
"""

import hashlib
import itertools
import shutil
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...io.dicom_network.commands import DimseStatus
from ...io.dicom_network.objects import ReceivedObject
from ...io.dicom_network.sameness import is_same_object
from ...io.files.atomic import flush_folder

SUFFIX, REFUSED = ".dcm", ".refused"
_DIGITS = 16
_MOST_REMEMBERED = 64
_MOST_REFUSED = 10_000
"""Studies with images that were refused; of more, which no archive sends, they are forgotten."""


@dataclass(frozen=True, slots=True)
class StudyName:
    """A study in the inbox. route: its AE title. name: of its folder, beginning with its day."""

    route: str
    name: str

    def __str__(self) -> str:
        return f"{self.route}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "StudyName":
        """The name that `str` made."""
        route, _, name = text.rpartition("/")
        return cls(route, name)

    @property
    def day(self) -> str:
        """On which its first object came, as 20261122."""
        return self.name.partition("-")[0]

    @property
    def key(self) -> str:
        """Hash of its UID."""
        return self.name.partition("-")[2]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an object is now.

    study: which has it. is_new: whether it was not there before. awaited: studies of which it was
    refused before.
    """

    study: StudyName
    is_new: bool
    awaited: frozenset[StudyName] = frozenset()


class Inbox:
    """The folder of received objects; any thread may call.

    most: bytes that it may hold. reserve: bytes that must stay free on its disk. known: studies of
    before, which keep their names if they come again. bytes: that it holds.
    """

    def __init__(
        self, folder: Path, most: int, reserve: int, known: Iterable[StudyName] = ()
    ) -> None:
        self._incoming, self._inbox = folder / "incoming", folder / "inbox"
        self._removed = folder / "removed"
        self._most, self._reserve = most, reserve
        self._parts = itertools.count()
        self._lock = threading.Lock()
        for place in (self._incoming, self._removed):
            shutil.rmtree(place, ignore_errors=True)
        for place in (self._incoming, self._inbox, self._removed):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held: dict[StudyName, dict[str, str]] = {}
        self._names = {(study.route, study.key): study for study in (*known, *self.studies())}
        self.bytes = sum(self._size(study) for study in self.studies())
        self._refused: dict[StudyName, set[str]] = defaultdict(set)
        for study in self.studies():
            for marker in self.folder(study).glob(f"*{REFUSED}"):
                self._refused[study].add(marker.stem)

    def studies(self) -> list[StudyName]:
        """All that hold objects."""
        return _listed(self._inbox)

    def folder(self, study: StudyName) -> Path:
        """Where a study's objects lie, or would."""
        return self._inbox / study.route / study.name

    def part(self) -> Path | DimseStatus:
        """A path for an object that is about to come, or why there is no room for it."""
        free = shutil.disk_usage(self._incoming).free
        if self.bytes >= self._most or free < self._reserve:
            return DimseStatus.OUT_OF_RESOURCES
        return self._incoming / f"{next(self._parts)}.part"

    def take(self, route: str, received: ReceivedObject) -> Placed:
        """Move an object to its study, and have that on disk. Raises OSError."""
        with self._lock:
            study = self.study(route, received.study)
            folder = self.folder(study)
            is_first = not folder.exists()
            for place in (folder.parent, folder):
                place.mkdir(mode=0o700, exist_ok=True)
            stem = _hash(received.offer.instance)
            name = f"{stem}-{received.digest[:_DIGITS]}{SUFFIX}"
            held = self._held_by(study)
            other = held.get(stem)
            is_new = other != name and not (other and is_same_object(received.path, folder / other))
            if is_new:
                received.path.replace(folder / name)
                self.bytes += received.size
                if other:
                    self.bytes -= (folder / other).stat().st_size
                    (folder / other).unlink()
                held[stem] = name
            else:
                received.path.unlink()
            awaited = self._no_longer_refused(route, stem)
            if is_first:
                self._mark_refused(study)
        # Outside of the lock, so that several associations wait for the disk together.
        flush_folder(folder)
        if is_first:
            flush_folder(folder.parent)
            flush_folder(folder.parent.parent)
        return Placed(study, is_new, awaited)

    def refuse(self, study: StudyName, instance: str) -> None:
        """Note that an image of a study was not taken, unless it is there already."""
        with self._lock:
            stem = _hash(instance)
            if stem not in self._held_by(study) and len(self._refused) < _MOST_REFUSED:
                self._refused[study].add(stem)
                self._mark_refused(study)

    def _mark_refused(self, study: StudyName) -> None:
        """Have it on disk too, once there is something of the study."""
        for stem in self._refused.get(study, ()) if self.folder(study).exists() else ():
            with suppress(OSError):  # a full disk may be why; this process knows it still
                (self.folder(study) / f"{stem}{REFUSED}").touch(mode=0o600)

    def refused(self, study: StudyName) -> int:
        """How many images that came with a study were not taken, and have not come since."""
        with self._lock:
            return len(self._refused.get(study, ()))

    def objects(self, study: StudyName) -> tuple[str, ...]:
        """The names of a study's files, in order. Raises OSError while the inbox is away."""
        self._inbox.stat()
        folder = self.folder(study)
        return tuple(sorted(path.name for path in folder.glob(f"*{SUFFIX}")))

    def holding(self, route: str, instances: Collection[str]) -> dict[str, StudyName]:
        """Which study has which of these objects, by their UIDs; others are left out."""
        stems = {_hash(instance): instance for instance in instances}
        return {
            stems[stem]: study
            for study in self.studies()
            if study.route == route
            for name in self.objects(study)
            if (stem := name.partition("-")[0]) in stems
        }

    def remove(self, study: StudyName, objects: Collection[str]) -> bool:
        """Remove a study, unless it holds other objects than these by now."""
        folder = self.folder(study)
        aside = self._removed / f"{next(self._parts)}"
        with self._lock:
            if set(self.objects(study)) - set(objects):
                return False
            self._held.pop(study, None)
            self._refused.pop(study, None)
            if folder.is_dir():
                self.bytes -= self._size(study)
                folder.replace(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def _no_longer_refused(self, route: str, stem: str) -> frozenset[StudyName]:
        """Forget that an object was refused, as it is here now; the studies that awaited it."""
        found = [
            study
            for study, stems in self._refused.items()
            if study.route == route and stem in stems
        ]
        for study in found:
            self._refused[study].discard(stem)
            (self.folder(study) / f"{stem}{REFUSED}").unlink(missing_ok=True)
        return frozenset(found)

    def _held_by(self, study: StudyName) -> dict[str, str]:
        """The objects of a study by the hashes of their UIDs; of a few studies it is remembered."""
        if study not in self._held:
            if len(self._held) >= _MOST_REMEMBERED:
                del self._held[next(iter(self._held))]
            self._held[study] = {name.partition("-")[0]: name for name in self.objects(study)}
        return self._held[study]

    def study(self, route: str, uid: str) -> StudyName:
        """The study of a UID, there or not."""
        name = StudyName(route, f"{datetime.now():%Y%m%d}-{_hash(uid)}")
        return self._names.setdefault((route, name.key), name)

    def _size(self, study: StudyName) -> int:
        return sum(path.stat().st_size for path in self.folder(study).iterdir())


def studies_in(folder: Path) -> dict[StudyName, int]:
    """The studies in the inbox of a node's folder, with their bytes."""
    inbox = folder / "inbox"
    return {
        study: sum(path.stat().st_size for path in (inbox / str(study)).iterdir())
        for study in _listed(inbox)
    }


def _listed(inbox: Path) -> list[StudyName]:
    """Whatever else somebody, or a file system, put there is passed over."""
    return [
        StudyName(study.parent.name, study.name)
        for study in sorted(inbox.glob("*/*"))
        if study.is_dir()
    ]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
