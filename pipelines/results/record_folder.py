"""Where the record of an output folder lives: beside it, in the hidden `.NAME.cuda-cyclegan`.

Who sends, validates or packs a folder of results takes every file in it, and dcmtk's storescu stops
at the first that is no DICOM; so that folder holds results only. By its real path it is one folder,
and has one record and one lock, however it is spelled or linked to. Inside it, as `.cuda-cyclegan`,
the record stays where it is found there, and where none can live beside it: the parent cannot be
written, or the folder is mounted by itself, as a container's volume is, so that what lies beside it
is not there the next time.

A folder may be moved or replaced without its record. Nothing is lost by that: an entry speaks of
files with the hash or the marks that it tells, and whatever else stands there is somebody else's.
"""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from ...io.errors import WriteError
from ...io.files.disk import is_mounted
from ...io.files.own_files import RECORD, identity
from ...io.files.parts import PREFIX, SUFFIX

NAME = "manifest.jsonl"


def found_record(output: Path) -> Path | None:
    """The folder of an output folder's record; None if there is none yet."""
    named = _by_own_name(output)
    if os.path.lexists(named / RECORD):
        return _inside(output)
    beside = _beside(named)
    if beside is None or not os.path.lexists(beside) or is_mounted(_real(output)):
        return None
    return _beside(_real(output))


def made_record(output: Path) -> Path:
    """The same, of an output folder that is there; made if need be. Raises OSError."""
    if found := found_record(output):
        return found
    real = _real(output)
    beside = _beside(real)
    if beside and not is_mounted(real):
        with suppress(OSError):
            beside.mkdir(exist_ok=True)
            return beside
    inside = _inside(output)
    inside.mkdir(exist_ok=True)
    return inside


def check_writable(output: Path) -> None:
    """Raise OSError where no file can be made; a record beside the folder would not tell.

    A folder that is not there yet is judged by the one that it would be made in.
    """
    there = next(folder for folder in (output, *output.parents) if os.path.lexists(folder))
    prefix = f"{PREFIX}{secrets.token_hex(8)}-"
    try:
        with TemporaryFile(dir=there, prefix=prefix, suffix=SUFFIX):
            pass
    except OSError:
        # FUSE renames a file that is removed while it is open; where it may not, the file stays.
        for left in there.glob(f"{prefix}*"):
            with suppress(OSError):
                left.unlink()
        raise


def is_inside(record: Path) -> bool:
    """Whether a record's folder is one of those that stand among the results."""
    return record.name == RECORD


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """An output folder and its record while both are held open, and so are known again.

    output, record: the folders. held: device and inode of the output folder and of the manifest.
    """

    output: Path
    record: Path
    held: tuple[tuple[int, int], tuple[int, int]]

    def check(self) -> None:
        """Raise WriteError if either was moved, removed or replaced under the run."""
        with suppress(OSError):
            folder, manifest = os.stat(self.output), os.lstat(self.record / NAME)  # noqa: PTH116
            if (identity(folder), identity(manifest)) == self.held:
                return
        raise WriteError(
            f"The output folder {self.output}, or the record of it ({self.record}), was moved or "
            "removed during the run; put it back if you can, and run the same again."
        )


def _inside(output: Path) -> Path:
    return _real(output) / RECORD


def _beside(named: Path) -> Path | None:
    """Of a folder by its own name; None for the root of a file system."""
    return named.with_name(f".{named.name}{RECORD}") if named.name else None


def _by_own_name(output: Path) -> Path:
    """A path that ends in the folder's own name, and may have links before that.

    Its real path takes a look at each folder on the way, which for all of a deep chain is long.
    """
    ends_elsewhere = output.name in ("", "..") or output.is_symlink()
    return _real(output) if ends_elsewhere else output


def _real(output: Path) -> Path:
    return Path(os.path.realpath(output))
