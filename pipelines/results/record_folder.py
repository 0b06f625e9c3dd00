"""Location of an output folder's record: next to it, in the hidden `.NAME.cuda-cyclegan`.

Programs that send, validate or archive a folder of results take every file in it, and dcmtk's
storescu stops at the first that is not DICOM; so that folder contains results only. Its real path
identifies it, and it has one record and one lock, however its path is spelled or linked. The record
is inside it, as `.cuda-cyclegan`, if one exists there already, or if none can be next to it: the
parent is not writable, or the folder is a mount point, such as a container's volume, so that files
next to it are gone the next time.

A folder may be moved or replaced without its record. No file is lost by that: an entry applies only
to files with its hash or marks, and all other files count as foreign.
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
    """Return the folder of an output folder's record; None if there is none yet."""
    named = _by_own_name(output)
    if os.path.lexists(named / RECORD):
        return _inside(output)
    beside = _beside(named)
    if beside is None or not os.path.lexists(beside) or is_mounted(_real(output)):
        return None
    return _beside(_real(output))


def made_record(output: Path) -> Path:
    """Return an existing output folder's record folder, created if needed. Raises OSError."""
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
    """Raise OSError if no file can be created in an output folder.

    The record next to the folder would not show this. A folder that does not exist yet is tested by
    its nearest existing parent.
    """
    there = next(folder for folder in (output, *output.parents) if os.path.lexists(folder))
    prefix = f"{PREFIX}{secrets.token_hex(8)}-"
    try:
        with TemporaryFile(dir=there, prefix=prefix, suffix=SUFFIX):
            pass
    except OSError:
        # FUSE renames a file that is removed while it is open; if it cannot, the file stays.
        for left in there.glob(f"{prefix}*"):
            with suppress(OSError):
                left.unlink()
        raise


def is_inside(record: Path) -> bool:
    """Return whether a record's folder is inside the output folder, among the results."""
    return record.name == RECORD


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Output folder and its record, both held open so that they can be identified again.

    output, record: the folders. held: device and inode of the output folder and of the manifest.
    """

    output: Path
    record: Path
    held: tuple[tuple[int, int], tuple[int, int]]

    def check(self) -> None:
        """Raise WriteError if either was moved, removed or replaced during the run."""
        with suppress(OSError):
            folder, manifest = os.stat(self.output), os.lstat(self.record / NAME)  # noqa: PTH116
            if (identity(folder), identity(manifest)) == self.held:
                return
        raise WriteError(
            f"The output folder {self.output}, or the record of it ({self.record}), was moved or "
            "removed during the run; restore it if you can, and run the same command again."
        )


def _inside(output: Path) -> Path:
    return _real(output) / RECORD


def _beside(named: Path) -> Path | None:
    """Return the record's folder next to a folder; None for the root of a file system."""
    return named.with_name(f".{named.name}{RECORD}") if named.name else None


def _by_own_name(output: Path) -> Path:
    """Return a path that ends in the folder's own name, and may have links before that.

    Resolving its real path reads each folder of the path, which is slow for a deep chain.
    """
    ends_elsewhere = output.name in ("", "..") or output.is_symlink()
    return _real(output) if ends_elsewhere else output


def _real(output: Path) -> Path:
    return Path(os.path.realpath(output))
