"""Received objects on disk: a folder a study, a file an object, named by what they hold.

`incoming/` has what is being received, `inbox/ROUTE/DAY-HASH/` the studies, `removed/` what is on
its way out. A name is made of hashes of the object's UID and of its bytes, so that the same object
has the same place however often it comes; in another encoding it stays as it came first. What a
study lacks stands beside its objects, as `gaps` describes.
"""

import hashlib
import itertools
import shutil
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...io.dicom_network.commands import DimseStatus, Refusal
from ...io.dicom_network.objects import ReceivedObject
from ...io.dicom_network.sameness import is_same_object
from ...io.files.atomic import flush_folder
from .gaps import Gap, Gaps
from .study_name import StudyName

INBOX, SUFFIX = "inbox", ".dcm"
_DIGITS = 16
_MOST_REMEMBERED = 64
_FULL = Refusal(DimseStatus.OUT_OF_RESOURCES, "the inbox of the node is full")
_NO_RESERVE = Refusal(DimseStatus.OUT_OF_RESOURCES, "the disk of the node is full")


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an object is now.

    study: which has it. is_new: whether it was not there before. awaited: studies that lacked it,
    as it was refused before.
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
        self._incoming, self._inbox = folder / "incoming", folder / INBOX
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
        self._gaps = Gaps(self.folder, self.studies())
        self._claiming = threading.Lock()  # not the other, which is held while files are compared
        self._coming = 0

    def studies(self) -> list[StudyName]:
        """All that hold objects."""
        return _listed(self._inbox)

    def folder(self, study: StudyName) -> Path:
        """Where a study's objects lie, or would."""
        return self._inbox / study.route / study.name

    def part(self) -> Path | Refusal:
        """A path for an object that is about to come, or why there is no room for it."""
        if self.bytes >= self._most:
            return _FULL
        if shutil.disk_usage(self._incoming).free < self._reserve:
            return _NO_RESERVE
        return self._incoming / f"{next(self._parts)}.part"

    def claim(self, size: int) -> bool:
        """Whether objects that are coming may take so many bytes more, which are counted then."""
        with self._claiming:
            fits = size <= 0 or self.bytes + self._coming + size <= self._most
            self._coming += size if fits else 0
            return fits

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
                self._gaps.hold_again(study)
            else:
                received.path.unlink()
            awaited = self._gaps.taken(route, stem)
            if is_first:
                self._gaps.keep(study)
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
            if stem not in self._held_by(study):
                self._gaps.refuse(study, stem)

    def begin(self, study: StudyName) -> int:
        """Note that an association brings a study; the number is for `end`."""
        with self._lock:
            return self._gaps.begin(study)

    def end(self, study: StudyName, begun: int, *, broke_off: bool) -> None:
        """Note that an association brings no more of a study."""
        with self._lock:
            self._gaps.end(study, begun, broke_off=broke_off)

    def complete(self, study: StudyName) -> None:
        """Take a sender's word that its transfers of a study are complete."""
        with self._lock:
            self._gaps.complete(study)

    def gap(self, study: StudyName) -> Gap:
        """What a study lacks."""
        with self._lock:
            return self._gaps.of(study)

    def is_released(self, study: StudyName) -> bool:
        """Whether somebody let a study go as it is."""
        return self._gaps.is_released(study)

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
            self._gaps.forget(study)
            if folder.is_dir():
                self.bytes -= self._size(study)
                folder.replace(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True

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
        return sum(map(_size_of, self.folder(study).iterdir()))


def studies_in(folder: Path) -> dict[StudyName, int]:
    """The studies in the inbox of a node's folder, with their bytes."""
    inbox = folder / INBOX
    return {
        study: sum(map(_size_of, (inbox / str(study)).glob(f"*{SUFFIX}")))
        for study in _listed(inbox)
    }


def _size_of(file: Path) -> int:
    """Bytes of a file, which a running node may have removed."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _listed(inbox: Path) -> list[StudyName]:
    """Whatever else somebody, or a file system, put there is passed over."""
    return [
        StudyName(study.parent.name, study.name)
        for study in sorted(inbox.glob("*/*"))
        if study.is_dir()
    ]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
