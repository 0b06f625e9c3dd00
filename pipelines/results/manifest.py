"""Manifest: the outputs of this program in an output folder, with their input bytes and recipe.

One JSON object per line in `manifest.jsonl` of its record's folder; the newest line about an output
counts. Lines are appended and synced, so that a kill at any moment loses at most the last one.
Lines that do not parse stay in the file, and are copied to a file next to it when first found.
"""

import errno
import json
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import msgspec

from ...engine.decoding import FieldError, Json, decode_known, encode_stated, parse
from ...io.files.atomic import flush_folder, is_full
from ...io.files.disk import read_at
from ...io.files.locks import lock, wait_for_lock
from ...io.files.own_files import held_folder, identity, open_own, open_unlinked
from ..errors import NewerRecordError, OutputFolderAwaitedError, OutputFolderError
from ..study.figures import CycleError, Measures, SeamScore, SpreadFigures
from .file_states import FileState
from .record_folder import NAME, OutputPlace, check_writable, found_record, made_record
from .sharers import Sharers, join

if TYPE_CHECKING:
    from ...io.volume import Study

ASIDE = "manifest.unreadable"
VERSION = 2
"""Version of the lines; 1, that of program 0.2.0, lacks the measures, the seam score, the notes and
the place.
"""

EntryStatus: TypeAlias = Literal["writing", "written", "failed"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe of an output, besides its input: hashes of the model and of the settings.

    model: identity of the model.
    """

    model: str
    settings: str


@dataclass(frozen=True, slots=True)
class MapRecord:
    """Map next to an output.

    kind: as in `MapMark`. recipe: settings of the map in addition to the output's recipe.
    files: states of its files; none while it is being written.
    """

    kind: str
    recipe: str
    files: tuple[FileState, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """Line of the manifest: an output's path below the output folder, and its provenance.

    A line with status "writing" is stored before a file appears, and contains the marks by which
    files that a killed run left at that path are recognised as the program's own.

    status: progress of the output. program: version that made it. recipe: model and settings.
    inputs: states of the files before they were read. outputs: states of the written files; for
    "writing", of those that may exist. maps: maps next to the output; for "writing", those that may
    exist, with their files among the outputs. spread: measured TTA spread, if any. cycle: measured
    cycle error between scan and reconstruction, if any. resampled: scans of several that were
    resampled to the grid of the first, in words. words: labels of its model in the output itself,
    as in `ModelCard`; none if it has none. mirrored: names that the output, and the results of
    further channels, would have if they mirrored the inputs; none if they do. others: paths of
    those further results, if they do not. measures, seams: of the result against its scan, and at
    the borders of patches, if they were taken. notes: for the user, from its translation. place:
    path of the first scan's file, or of its folder if it is a series; empty in older records.
    """

    output: str
    status: EntryStatus
    program: str
    recipe: Recipe
    inputs: tuple[FileState, ...]
    outputs: tuple[FileState, ...]
    maps: tuple[MapRecord, ...] = ()
    spread: SpreadFigures | None = None
    resampled: tuple[str, ...] = ()
    cycle: CycleError | None = None
    words: tuple[str, ...] = ()
    mirrored: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    measures: Measures | None = None
    seams: SeamScore | None = None
    notes: tuple[str, ...] = ()
    place: str = ""

    def change_of(self, model: str, words: tuple[str, ...]) -> str | None:
        """Return the difference of its model from the current one, or None.

        model: identity of the current model. words: labels for results; none if unknown.
        """
        if self.recipe.model != model:
            return "the model changed"
        return "the model's labels changed" if self.has_other_words(words) else None

    def has_other_words(self, words: tuple[str, ...]) -> bool:
        """Return whether its labels of the model differ from `words`, if both are known."""
        return bool(words and self.words) and self.words != words

    @property
    def mirrored_name(self) -> str:
        """Name that the output would have if it mirrored the inputs."""
        return self.mirrored[0] if self.mirrored else self.output

    @property
    def files(self) -> tuple[FileState, ...]:
        """States of all files of the outputs and of the maps."""
        return *self.outputs, *(state for each in self.maps for state in each.files)


def place_of(study: "Study") -> str:
    """Return the path by which a later run recognises that it is given another scan."""
    scan = study.channels[0]
    place = scan.files[0].parent if scan.is_dicom else scan.files[0]
    return os.path.abspath(place)  # noqa: PTH100


def load(output: Path) -> dict[str, ManifestEntry]:
    """Return the newest entry of every output; lines that do not parse are skipped.

    An output whose line is lost counts as foreign, which is the safe choice.
    Raises OutputFolderError if a manifest exists and cannot be read, or NewerRecordError.
    """
    return {entry.output: entry for entry in entries_of(output)}


def entries_of(output: Path, names: Iterable[str] | None = None) -> Iterator[ManifestEntry]:
    """Yield the entries line by line, oldest first; as `load`, but a long manifest fits in memory.

    names: only entries of outputs that have one of these names, or would have it if they mirrored
    the inputs.
    """
    if (record := found_record(output)) is None:
        return
    sought = None if names is None else set(names)
    for line in _lines(record):
        if sought is not None and (found := _names_in(line)):
            if sought.isdisjoint(found):
                continue
            sought.add(found[0])  # its later lines count even if they have no other such name
        with suppress(FieldError):
            yield _entry(record, parse(line))


def has_named_results(output: Path) -> bool:
    """Return whether some results may have other names than their scans; parses no line.

    Raises OutputFolderError if a manifest exists and cannot be read.
    """
    record = found_record(output)
    return record is not None and any(b'"mirrored": ' in line for line in _lines(record))


def _lines(record: Path) -> Iterator[bytes]:
    """Yield the lines of the manifest in a record's folder."""
    try:
        with os.fdopen(open_unlinked(record / NAME, os.O_RDONLY), "rb") as file:
            yield from file
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(error) from error


_KNOWN = range(1, VERSION + 1)


class _Head(msgspec.Struct):
    """Part of a line that shows of which output it is; takes a tenth of the time of `_entry`."""

    version: int
    output: str
    mirrored: tuple[str, ...] = ()


_head = msgspec.json.Decoder(_Head).decode


def _names_in(line: bytes) -> tuple[str, ...]:
    """Return the output of a line, and its names as in `mirrored`; none if it must be parsed."""
    try:
        head = _head(line)
    except msgspec.DecodeError:
        return ()
    return (head.output, *head.mirrored[:1]) if head.version in _KNOWN else ()


def check_usable(output: Path) -> None:
    """Raise OutputFolderError if a run could not write results; leaves no file behind."""
    try:
        check_writable(output)
    except OSError as error:
        raise _unusable(error, output) from error


class Manifest:
    """Manifest of an output folder, opened for one run and locked against all others.

    shared: kind of runs that have it open together, but never with a run that needs it exclusively;
    `refresh` then returns the lines that the others appended.
    record: its folder, once it is open. entries: newest entry of every output. kept_aside: number
    of lines that do not parse and were first found when it was opened.
    """

    def __init__(
        self, output: Path, *, shared: Sharers | None = None, begins_anew: bool = True
    ) -> None:
        """begins_anew: as for `join`."""
        self.output, self.record = output, Path()
        self.entries: dict[str, ManifestEntry] = {}
        self.kept_aside = 0
        self._shared, self._begins_anew = shared, begins_anew
        self._descriptor = -1
        self._place: OutputPlace | None = None
        self._open_files = ExitStack()
        self._read_to = 0
        self._one_at_a_time, self._flushing = threading.Lock(), threading.Lock()
        # Numbers of lines: the last that was begun, that is in the file, that is on disk.
        self._begun = self._appended = self._on_disk = 0
        self._lost, self._loss = 0, OSError()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            try:
                self.output.mkdir(parents=True, exist_ok=True)
                folder = opened.enter_context(held_folder(self.output))
                check_writable(self.output)
                self.record = made_record(self.output)
            except OSError as error:
                raise _unusable(error, self.output) from error
            try:
                self._descriptor = self._open(NAME)
                opened.callback(os.close, self._descriptor)
                self._place = OutputPlace(
                    self.output, self.record, (folder, identity(os.fstat(self._descriptor)))
                )
                self._lock()
                if not os.fstat(self._descriptor).st_size:
                    self._flush_names()
                with self.alone():
                    if shared := self._shared:
                        joined = join(shared, self.output, self._begins_anew, self._open)
                        opened.enter_context(joined)
                    self._end_torn_line()
                    self._keep_aside(self.refresh())
            except OSError as error:
                raise _unusable(error) from error
            self._open_files = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # A thread that a stopped batch left behind may hang in here forever; if the descriptor
        # were closed, its number could be reused for another file.
        if self._one_at_a_time.acquire(timeout=1):
            if self._flushing.acquire(timeout=1):
                self._open_files.close()
                self._descriptor = -1
                self._flushing.release()
            self._one_at_a_time.release()

    @property
    def remark(self) -> str | None:
        """Remark for the user about the lines that were kept aside, if any."""
        if not self.kept_aside:
            return None
        return (
            f"{self.record / NAME} has damaged lines ({self.kept_aside}), which are kept in "
            f"{ASIDE} next to it; the results in these lines count as files of another program."
        )

    @property
    def place(self) -> OutputPlace:
        """Output place of this manifest, which must be open."""
        if self._place is None:
            raise RuntimeError("the manifest is not open")
        return self._place

    def append(self, entry: ManifestEntry) -> None:
        """Store an entry on disk before returning. Raises OSError, and then leaves no torn line."""
        line = json.dumps({"version": VERSION, **encode_stated(entry)}).encode() + b"\n"
        with self._one_at_a_time, self.alone():
            end = self._end_torn_line()
            self._begun += 1
            own = self._begun
            try:
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._descriptor, end)
                raise
            self._appended = own
        self._flush(own)
        self.entries[entry.output] = entry

    def _flush(self, line: int) -> None:
        """Group commit: one fsync covers all lines appended so far.

        A failed one loses them all, those being written included: a system reports a failed write
        only once, and the next fsync succeeds.
        """
        with self._flushing:
            if self._on_disk < line <= self._lost:
                raise OSError(self._loss.errno, self._loss.strerror)
            if self._on_disk < line:
                covered = self._appended
                try:
                    os.fsync(self._descriptor)
                except OSError as error:
                    self._lost, self._loss = self._begun, error
                    raise
                self._on_disk = covered

    def refresh(self) -> list[bytes]:
        """Read the lines appended since the last call, and return those that do not parse.

        Raises NewerRecordError.
        """
        size = os.fstat(self._descriptor).st_size
        content = read_at(self._descriptor, max(size - self._read_to, 0), self._read_to)
        whole = content[: content.rfind(b"\n") + 1]
        entries, unreadable = _parsed(self.record, whole)
        self._read_to += len(whole)
        self.entries |= entries
        return unreadable

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep other sharers from appending, and from joining what the record has of all of them.

        A killed one may have left a torn line.
        """
        if not self._shared:
            yield
            return
        turn = self._open("append.lock")
        try:
            wait_for_lock(turn)
            yield
        finally:
            os.close(turn)

    @contextmanager
    def sole(self, name: str, who: str) -> Generator[None]:
        """Hold a lock of the record that one run at a time may have. who: that run, in words.

        Raises OutputFolderAwaitedError if another one has it.
        """
        held = self._open(name)
        try:
            try:
                lock(held)
            except BlockingIOError as error:
                raise OutputFolderAwaitedError(
                    f"{who} is running already, and writes to {self.output}; wait for it to end, "
                    "or end its process if it hangs."
                ) from error
            yield
        finally:
            os.close(held)

    def _flush_names(self) -> None:
        """Flush the names of a new manifest and of its folders.

        Without them a power loss would make all results files of another program.
        """
        for folder in dict.fromkeys((self.record, self.record.parent, self.output.parent)):
            flush_folder(folder)

    def _lock(self) -> None:
        try:
            lock(self._descriptor, shared=self._shared is not None)
        except BlockingIOError as error:
            raise OutputFolderAwaitedError(
                f"Another run is writing to {self.output}; wait for it to end, or choose another "
                "output folder."
            ) from error
        except OSError as error:
            raise OutputFolderError(
                f"{self.output} cannot be locked ({error.strerror}), so two runs could damage each "
                "other's results; choose an output folder on another file system."
            ) from error

    def _end_torn_line(self) -> int:
        """End a partial line that a killed run left, so that it does not damage the next line.

        Returns the size of the file.
        """
        size = os.fstat(self._descriptor).st_size
        if size and read_at(self._descriptor, 1, size - 1) != b"\n":
            size += os.write(self._descriptor, b"\n")
        return size

    def _keep_aside(self, lines: Iterable[bytes]) -> None:
        """Copy lines into the file next to the manifest, unless it already contains them."""
        unread = dict.fromkeys(lines)
        if not unread:
            return
        with os.fdopen(self._open(ASIDE), "r+b", buffering=0) as aside:
            known = aside.readall().split(b"\n")
            new = [line + b"\n" for line in unread if line not in known]
            aside.write(b"".join(new))
            os.fsync(aside.fileno())
        flush_folder(self.record)
        self.kept_aside = len(new)

    def _open(self, name: str) -> int:
        """Open a file of this folder's record for reading and appending. Raises OSError."""
        return open_own(self.record / name, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode=0o666)


def _parsed(record: Path, content: bytes) -> tuple[dict[str, ManifestEntry], list[bytes]]:
    """Return the newest entry of every output, and the lines that do not parse.

    Raises NewerRecordError for a line of a newer version, whose result would count as foreign.
    """
    entries: dict[str, ManifestEntry] = {}
    unreadable: list[bytes] = []
    for line in filter(None, content.split(b"\n")):
        try:
            entry = _entry(record, parse(line))
        except FieldError:
            unreadable.append(line)
        else:
            entries[entry.output] = entry
    return entries, unreadable


def _entry(record: Path, fields: Json) -> ManifestEntry:
    version = fields.pop("version", None) if isinstance(fields, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise NewerRecordError(
            f"{record / NAME} was written by a newer version of cuda-cyclegan; update this one."
        )
    if version not in _KNOWN:
        raise FieldError("version", f"must be at most {VERSION}")
    return decode_known(ManifestEntry, fields)


def _unusable(error: OSError, path: Path | None = None) -> OutputFolderError:
    named = path or error.filename or NAME
    if isinstance(error, FileExistsError | NotADirectoryError):
        return OutputFolderError(f"{named} is not a folder; choose another output folder.")
    kind, remedy = OutputFolderError, "make it writable"
    if is_full(error):
        kind, remedy = OutputFolderAwaitedError, "make room"
    return kind(
        f"{named} cannot be used ({error.strerror}); choose another output folder or {remedy}."
    )
