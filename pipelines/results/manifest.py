"""The manifest: what this program made in an output folder, from which bytes and with what.

One JSON object a line in `<output>/.cuda-cyclegan/manifest.jsonl`; the newest line about an output
counts. Lines are appended and synced, so that a kill at any moment loses at most the last one.
"""

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from ...io.errors import WriteError
from ..errors import OutputFolderError

FOLDER = ".cuda-cyclegan"
VERSION = 1

_HASHED_BYTES = 1 << 20
"""At once; hashlib.file_digest takes a quarter of it, and so waits more often for its turn among
the threads of a batch."""

EntryStatus: TypeAlias = Literal["writing", "written", "failed"]


@dataclass(frozen=True, slots=True)
class FileState:
    """A file's bytes by hash, and the marks by which an untouched file is known without reading.

    changed_ns is the inode's change time, which a copy that keeps dates cannot forge.
    """

    name: str
    size: int
    modified_ns: int
    changed_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path, sha256: str | None = None) -> Self:
        """The state of a file; reads it whole unless its hash is known. Raises OSError."""
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            sha256 = sha256 or _sha256(file)
        return cls(path.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, sha256)

    def again(self, path: Path) -> Self:
        """The state now; reads the file only if its marks differ. Raises OSError."""
        status = path.stat()
        marks = status.st_size, status.st_mtime_ns, status.st_ctime_ns
        if path.name == self.name and marks == (self.size, self.modified_ns, self.changed_ns):
            return self
        return self.of(path)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an output is made with, besides its input: hashes of the model and of the settings."""

    model: str
    settings: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: an output's place below the output folder, and how it came about.

    "writing" stands before a file appears, so that whatever a killed run left at that place is
    known to be ours.
    """

    output: str
    status: EntryStatus
    program: str
    recipe: Recipe
    inputs: tuple[FileState, ...]
    outputs: tuple[FileState, ...] = ()


def load(output: Path) -> dict[str, Entry]:
    """The newest entry of every output; lines that cannot be understood are passed over.

    An output whose line is lost counts as foreign, which is the safe side.
    Raises OutputFolderError if a manifest is there and cannot be read.
    """
    path = output / FOLDER / "manifest.jsonl"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unusable(path, error) from error
    whole_lines = content[: content.rfind(b"\n") + 1].splitlines()
    return {entry.output: entry for entry in _entries(whole_lines)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an open manifest stands, known again by its file as long as somebody holds it open."""

    output: Path
    file: tuple[int, int]

    def check(self) -> None:
        """Raise WriteError if the folder was moved, removed or replaced under the run."""
        try:
            status = os.lstat(self.output / FOLDER / "manifest.jsonl")
            if (status.st_dev, status.st_ino) == self.file:
                return
        except OSError:
            pass
        raise WriteError(
            f"The output folder {self.output}, or the manifest in it, was moved or removed during "
            "the run; put it back if you can, and run the same again."
        )


class Manifest:
    """An output folder's manifest, opened for one run and locked against all others.

    shared: open it along with other sharers, such as the workers of a queue, but never along with
    a run that wants it alone; `refresh` then shows what the others appended.
    """

    def __init__(self, output: Path, *, shared: bool = False) -> None:
        self.output = output
        self.entries: dict[str, Entry] = {}
        self._shared = shared
        self._descriptor = -1
        self._read_to = 0
        self._one_at_a_time, self._flushing = threading.Lock(), threading.Lock()
        self._appended = self._on_disk = 0

    def __enter__(self) -> Self:
        path = self.output / FOLDER / "manifest.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise _unusable(self.output, error) from error
        try:
            self._lock()
            with self._alone():
                self._drop_torn_line()
            self.refresh()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A thread that a stopped batch left behind may hang in here for ever; closed under its
        # hands, the descriptor could become another file's.
        if self._one_at_a_time.acquire(timeout=1):
            if self._flushing.acquire(timeout=1):
                os.close(self._descriptor)
                self._descriptor = -1
                self._flushing.release()
            self._one_at_a_time.release()

    @property
    def place(self) -> Place:
        """Where this manifest stands; it must be open."""
        status = os.fstat(self._descriptor)
        return Place(self.output, (status.st_dev, status.st_ino))

    def append(self, entry: Entry) -> None:
        """Store an entry on disk before returning. Raises OSError, and then leaves no torn line."""
        line = json.dumps({"version": VERSION, **asdict(entry)}).encode() + b"\n"
        with self._one_at_a_time, self._alone():
            self._drop_torn_line()
            end = os.fstat(self._descriptor).st_size
            try:
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._descriptor, end)
                raise
            self._appended += 1
            own = self._appended
        self._flush(own)
        self.entries[entry.output] = entry

    def _flush(self, line: int) -> None:
        """Have a line on disk: who waits while another flushes finds its own line flushed along."""
        with self._flushing:
            if self._on_disk < line:
                covered = self._appended
                os.fsync(self._descriptor)
                self._on_disk = covered

    def refresh(self) -> None:
        """Read the lines that were appended since the last time."""
        size = os.fstat(self._descriptor).st_size
        content = os.pread(self._descriptor, max(size - self._read_to, 0), self._read_to)
        whole = content[: content.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self.entries |= {entry.output: entry for entry in _entries(whole.splitlines())}

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep other sharers from appending; a killed one may have left a torn line."""
        if not self._shared:
            yield
            return
        with (self.output / FOLDER / "append.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _lock(self) -> None:
        kind = fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputFolderError(
                f"Another run is writing to {self.output}; wait for it to end, or choose another "
                "output folder."
            ) from error
        except OSError as error:
            raise OutputFolderError(
                f"{self.output} cannot be locked ({error.strerror}), so two runs could damage each "
                "other's results; choose an output folder on another file system."
            ) from error

    def _drop_torn_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if not size or os.pread(self._descriptor, 1, size - 1) == b"\n":
            return
        content = os.pread(self._descriptor, size, 0)
        os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)


def _sha256(file: FileIO) -> str:
    digest, block = hashlib.sha256(), memoryview(bytearray(_HASHED_BYTES))
    while count := file.readinto(block):
        digest.update(block[:count])
    return digest.hexdigest()


def _entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    for line in lines:
        try:
            yield _entry(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def _entry(fields: dict[str, Any]) -> Entry:
    if fields.pop("version") != VERSION:
        raise ValueError("a manifest line of another version")
    fields["recipe"] = Recipe(**fields["recipe"])
    for key in ("inputs", "outputs"):
        fields[key] = tuple(FileState(**state) for state in fields[key])
    return Entry(**fields)


def _unusable(path: Path, error: OSError) -> OutputFolderError:
    return OutputFolderError(
        f"{path} cannot be used ({error.strerror}); choose another output folder or make it "
        "writable."
    )
