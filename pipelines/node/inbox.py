"""Inbox of received objects: a folder per study, a file per object, named after its content.

`incoming/` has the files being received, `inbox/ROUTE/DAY-HASH/` the studies, `removed/` those
being deleted. A file name consists of hashes of the object's UID and of its bytes, so that the same
object always has the same name; in another encoding the first one stays.
"""

import errno
import hashlib
import itertools
import os
import shutil
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...io.dicom_network.commands import DimseStatus, Refusal
from ...io.dicom_network.objects import ReceivedObject, bytes_of_result, is_same_object
from ...io.files.atomic import flush_folder
from .records import Gap, StudyName, StudyRecord, digest_of
from .store import NodeStore

INBOX, SUFFIX = "inbox", ".dcm"
_DIGITS = 16
_MOST_REMEMBERED = 64
_RECENT = 32
"""Studies of which no result is expected any more; the next one may be as large as any of them."""
_MOST_REFUSED = 10_000
"""Limit of studies with refused images; gaps of further ones, which no archive sends, are not
noted.
"""
_FULL = Refusal(DimseStatus.OUT_OF_RESOURCES, "the inbox of the node is full")
_NO_RESERVE = Refusal(DimseStatus.OUT_OF_RESOURCES, "the disk of the node is full")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Object that was moved to its study.

    study: its study. is_new: whether it was not there before. awaited: studies whose gap it closes,
    as it was refused before.
    """

    study: StudyName
    is_new: bool
    awaited: frozenset[StudyName] = frozenset()


class Inbox:
    """Folder of received objects; all methods are thread-safe.

    Objects are accepted only while the results of all accepted ones fit on the disk, too, so that
    each study can be translated, sent and removed again.

    most: bytes that it may hold. reserve: bytes that must stay free on its disk. store: records of
    the studies, which keep their names if they arrive again. volumes: number of results and maps
    that a scan of a route becomes; 1 for other routes. bytes: current size. expected: bytes of the
    results that are not written yet.
    """

    def __init__(
        self,
        folder: Path,
        most: int,
        reserve: int,
        store: NodeStore,
        volumes: Mapping[str, int] | None = None,
    ) -> None:
        self.volumes = volumes or {}
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
        present = self.studies()
        known = map(StudyName.parse, store.names())
        self._names = {(study.route, study.key): study for study in (*known, *present)}
        self.bytes = sum(self._size(study) for study in present)
        self._gaps = StudyGaps(store, present, lambda study: self.folder(study).exists())
        self._claiming = threading.Lock()  # not `_lock`, which is held while files are compared
        self._coming = 0
        self.expected = 0
        self._results: dict[StudyName, int] = {}
        self._recent = deque[int](maxlen=_RECENT)
        for study in present:
            record = store.study(str(study))
            if record is None or record.is_pending or not self._is_of(record, study):
                self.expect(study)

    def studies(self) -> list[StudyName]:
        """Return the studies that have objects."""
        return _listed(self._inbox)

    def folder(self, study: StudyName) -> Path:
        """Return the folder of a study's objects, whether it exists or not."""
        return self._inbox / study.route / study.name

    def part(self) -> Path | Refusal:
        """Return a path for an object about to arrive, or why there is no space for it."""
        if self.bytes >= self._most:
            return _FULL
        if not self._has_space(0):
            return _NO_RESERVE
        return self._incoming / f"{next(self._parts)}.part"

    def claim(self, size: int) -> bool:
        """Reserve bytes for objects in flight; return whether there is space."""
        with self._claiming:
            fits = size <= 0 or self.bytes + self._coming + size <= self._most
            self._coming += size if fits else 0
            return fits

    def take(self, route: str, received: ReceivedObject) -> StoredObject:
        """Move an object to its study, durably. Raises OSError, also if there is no space for its
        result.
        """
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
                of_result = received.of_result * self.volumes.get(route, 1)
                if not self._has_space(of_result + (0 if held else self._to_come())):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._expect(study, of_result)
                received.path.replace(folder / name)
                self.bytes += received.size
                if other:
                    self.bytes -= (folder / other).stat().st_size
                    (folder / other).unlink()
                held[stem] = name
                self._gaps.hold_again(study)
            else:
                received.path.unlink()
            awaited = self._gaps.accept(route, stem)
        # Outside of the lock, so that several associations wait for the disk together.
        flush_folder(folder)
        if is_first:
            flush_folder(folder.parent)
            flush_folder(folder.parent.parent)
        return StoredObject(study, is_new, awaited)

    def expect(self, study: StudyName) -> None:
        """Expect results of all objects of a study, unless some are expected. Raises OSError."""
        with self._lock:
            self._expect(study, 0)

    def settle(self, record: StudyRecord) -> None:
        """Expect no more results of a study, unless it has other objects than its record."""
        study = StudyName.parse(record.study)
        with self._lock:
            if study in self._results and self._is_of(record, study):
                self._expect_no_more(study)

    def _expect(self, study: StudyName, size: int) -> None:
        """Add to the bytes of a study's results; the first time, those of the objects it has."""
        if study not in self._results:
            held = sum(map(bytes_of_result, _objects_in(self.folder(study))))
            self._results[study] = 0
            size += held * self.volumes.get(study.route, 1)
        self._results[study] += size
        self.expected += size

    def _expect_no_more(self, study: StudyName) -> None:
        if size := self._results.pop(study, 0):
            self.expected -= size
            self._recent.append(size)

    def _to_come(self) -> int:
        """Return the space for what a new study and those that lack images may still bring: studies
        that all lack images would stay.

        Each may become as large as the largest of those here and the last ones that were here, and
        brings at least the images that were refused.
        """
        largest = max((*self._results.values(), *self._recent), default=0)
        of_results = largest
        for study, size in self._results.items():
            if size and self._gaps.lacks(study):
                refused = self._gaps.of(study).refused * size // max(1, len(self._held_by(study)))
                of_results += max(largest - size, refused)
        return 2 * of_results  # a scan is no larger than its results

    def _has_space(self, size: int) -> bool:
        """Return whether all expected results, and one of so many bytes more, fit on the disk."""
        free = shutil.disk_usage(self._incoming).free
        return free - self._reserve >= self.expected + size

    def _is_of(self, record: StudyRecord, study: StudyName) -> bool:
        return digest_of(self.objects(study)) == record.objects

    def refuse(self, study: StudyName, instance: str) -> None:
        """Note that an image of a study was refused, unless the inbox has it."""
        with self._lock:
            stem = _hash(instance)
            if stem not in self._held_by(study):
                self._gaps.refuse(study, stem)

    def begin(self, study: StudyName) -> int:
        """Note that an association brings a study, durably; return a number for `end`."""
        with self._lock:
            return self._gaps.begin(study)

    def end(self, study: StudyName, begun: int, *, broke_off: bool) -> None:
        """Note that an association brings no more of a study."""
        with self._lock:
            self._gaps.end(study, begun, broke_off=broke_off)

    def complete(self, study: StudyName) -> None:
        """Close all gaps of transfers: the sender declares the study complete."""
        with self._lock:
            self._gaps.complete(study)

    def gap(self, study: StudyName) -> Gap:
        """Return the gap of a study."""
        with self._lock:
            return self._gaps.of(study)

    def is_released(self, study: StudyName) -> bool:
        """Whether a user has released a study."""
        return self._gaps.is_released(study)

    def objects(self, study: StudyName) -> tuple[str, ...]:
        """Return a study's file names in order. Raises OSError while the inbox is not mounted."""
        self._inbox.stat()
        return tuple(sorted(path.name for path in _objects_in(self.folder(study))))

    def holding(self, route: str, instances: Collection[str]) -> dict[str, StudyName]:
        """Return the studies of those objects that the inbox has, by UID."""
        stems = {_hash(instance): instance for instance in instances}
        return {
            stems[stem]: study
            for study in self.studies()
            if study.route == route
            for name in self.objects(study)
            if (stem := name.partition("-")[0]) in stems
        }

    def remove(self, study: StudyName, objects: Collection[str]) -> bool:
        """Remove a study, unless it has other objects than these; whether it was removed."""
        folder = self.folder(study)
        aside = self._removed / f"{next(self._parts)}"
        with self._lock:
            if set(self.objects(study)) - set(objects):
                return False
            self._held.pop(study, None)
            self._gaps.forget(study)
            self._expect_no_more(study)
            if folder.is_dir():
                self.bytes -= self._size(study)
                folder.replace(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def _held_by(self, study: StudyName) -> dict[str, str]:
        """Return a study's file names by the hashes of their UIDs; cached for a few studies."""
        if study not in self._held:
            if len(self._held) >= _MOST_REMEMBERED:
                del self._held[next(iter(self._held))]
            self._held[study] = {name.partition("-")[0]: name for name in self.objects(study)}
        return self._held[study]

    def study(self, route: str, uid: str) -> StudyName:
        """Return the name of the study with a UID, whether the inbox has it or not."""
        name = StudyName(route, f"{datetime.now():%Y%m%d}-{_hash(uid)}")
        return self._names.setdefault((route, name.key), name)

    def _size(self, study: StudyName) -> int:
        return sum(map(_size_of, self.folder(study).iterdir()))


class StudyGaps:
    """Gaps of the studies in the inbox; callers hold the inbox's lock.

    Memory has them all. A full disk may keep one from being stored, and then it is lost at the next
    start. present: studies in the inbox. is_here: whether the inbox has a study.
    """

    def __init__(
        self,
        store: NodeStore,
        present: Iterable[StudyName],
        is_here: Callable[[StudyName], bool],
    ) -> None:
        self._store, self._is_here = store, is_here
        self._steps = itertools.count(1)
        self._open = Counter[StudyName]()
        known = {str(study): study for study in present}
        gaps = store.gaps()
        for name in {*gaps.refused, *gaps.open} - known.keys():
            store.forget_gaps(name)
        self._refused = {known[name]: gaps.refused[name] for name in gaps.refused.keys() & known}
        self._broke_off = dict.fromkeys((known[name] for name in gaps.open & known.keys()), 0)

    def of(self, study: StudyName) -> Gap:
        """Return the gap of one study."""
        return Gap(len(self._refused.get(study, ())), study in self._broke_off)

    def lacks(self, study: StudyName) -> bool:
        """Return whether images of a study are still to come."""
        return study in self._open or bool(self.of(study))

    def begin(self, study: StudyName) -> int:
        """Note that an association brings a study; return a number for `end`."""
        self._open[study] += 1
        with suppress(OSError):
            self._store.open_transfer(str(study))
        return next(self._steps)

    def end(self, study: StudyName, begun: int, *, broke_off: bool) -> None:
        """Note that an association brings no more of a study.

        One that ends in order closes the gaps of those that broke off before it began.
        """
        self._open[study] -= 1
        if broke_off and self._is_here(study):
            self._broke_off[study] = next(self._steps)
            self.hold_again(study)
        elif self._broke_off.get(study, begun) < begun:
            del self._broke_off[study]
        if not self._open[study]:
            del self._open[study]
            if study not in self._broke_off:
                self._close_transfer(study)

    def complete(self, study: StudyName) -> None:
        """Close the gaps of transfers: the sender declares the study complete."""
        self._broke_off.pop(study, None)
        if study not in self._open:
            self._close_transfer(study)

    def refuse(self, study: StudyName, image: str) -> None:
        """Note that an image was refused."""
        if study in self._refused or len(self._refused) < _MOST_REFUSED:
            images = self._refused.setdefault(study, set())
            if image not in images:
                images.add(image)
                self.hold_again(study)
                with suppress(OSError):
                    self._store.refuse(str(study), image)

    def accept(self, route: str, image: str) -> frozenset[StudyName]:
        """Note that an image arrived; return the studies for which it was refused before."""
        found = [
            study
            for study, images in self._refused.items()
            if study.route == route and image in images
        ]
        for study in found:
            self._refused[study].discard(image)
            if not self._refused[study]:
                del self._refused[study]
            with suppress(OSError):
                self._store.accept(str(study), image)
        return frozenset(found)

    def is_released(self, study: StudyName) -> bool:
        """Whether a user has released the study."""
        return self._store.is_released(str(study))

    def hold_again(self, study: StudyName) -> None:
        """Forget that it was released, as it has changed since."""
        with suppress(OSError):
            self._store.hold_again(str(study))

    def forget(self, study: StudyName) -> None:
        """Forget a study that leaves the inbox."""
        self._refused.pop(study, None)
        self._broke_off.pop(study, None)
        with suppress(OSError):
            self._store.forget_gaps(str(study))

    def _close_transfer(self, study: StudyName) -> None:
        with suppress(OSError):
            self._store.close_transfer(str(study))


def studies_in(folder: Path) -> dict[StudyName, int]:
    """Return the studies in the inbox of a node's folder, with their bytes."""
    inbox = folder / INBOX
    return {study: sum(map(_size_of, _objects_in(inbox / str(study)))) for study in _listed(inbox)}


def _objects_in(folder: Path) -> list[Path]:
    """Return the files of a study; none if a running node has removed it, also meanwhile."""
    with suppress(FileNotFoundError):
        return list(folder.glob(f"*{SUFFIX}"))
    return []


def _size_of(file: Path) -> int:
    """Return the bytes of a file, which a running node may have removed."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _listed(inbox: Path) -> list[StudyName]:
    """Return the studies in an inbox; other files are ignored."""
    return [
        StudyName(study.parent.name, study.name)
        for study in sorted(inbox.glob("*/*"))
        if study.is_dir()
    ]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
