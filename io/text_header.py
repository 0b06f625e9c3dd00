"""The text that NRRD and MetaImage files begin with: how the voxels are packed, and where."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import UnreadableScanError, UnsupportedScanError

LONGEST_LINE_BYTES = 1 << 16
MOST_LINES = 4096


@dataclass(frozen=True, slots=True)
class TextHeader:
    """What the file tells before its voxels.

    compressed: whether the voxels are packed.
    plain_bytes: whether they are neither packed nor written as text.
    data_file: the file that holds the voxels, or None if they follow in the header's own.
    """

    compressed: bool
    plain_bytes: bool
    data_file: Path | None


def read_text_header(path: Path) -> TextHeader:
    """Read a NRRD or MetaImage header; raises ScanError and OSError."""
    with path.open("rb") as file:
        if path.suffix.lower() in (".nrrd", ".nhdr"):
            return _nrrd(file, path)
        return _metaimage(file, path)


def _nrrd(file: BinaryIO, path: Path) -> TextHeader:
    if not file.readline(LONGEST_LINE_BYTES).startswith(b"NRRD000"):
        raise UnreadableScanError(f"{path} is not a NRRD file although its name says so; check it.")
    fields = dict(_fields(file, ":", path))
    encoding = fields.get("encoding", "raw").lower()
    name = fields.get("data file", fields.get("datafile"))
    return TextHeader(
        encoding in ("gzip", "gz", "bzip2", "bz2"), encoding == "raw", _beside(path, name)
    )


def _metaimage(file: BinaryIO, path: Path) -> TextHeader:
    fields = dict(_fields(file, "=", path))
    name = fields.get("elementdatafile")
    if name is None or "dimsize" not in fields:
        raise UnreadableScanError(
            f"{path} is not a MetaImage file although its name says so; check it."
        )
    compressed = fields.get("compresseddata", "").lower() in ("true", "1")
    binary = fields.get("binarydata", "true").lower() in ("true", "1")
    data_file = None if name.lower() == "local" else _beside(path, name)
    return TextHeader(compressed, binary and not compressed, data_file)


def _fields(file: BinaryIO, separator: str, path: Path) -> Iterator[tuple[str, str]]:
    for _ in range(MOST_LINES):
        raw = file.readline(LONGEST_LINE_BYTES)
        line = raw.decode("utf-8", "surrogateescape").strip()
        if not line:
            return
        key, _, value = line.partition(separator)
        yield key.strip().lower(), value.strip()
        if key.strip() == "ElementDataFile":
            return
    raise UnreadableScanError(f"{path} has a header without an end; export the scan again.")


def _beside(path: Path, name: str | None) -> Path | None:
    if name is None:
        return None
    if "%" in name or name.upper().startswith("LIST"):
        raise UnsupportedScanError(
            f"{path} spreads its voxels over several files; save it as one .nrrd or .mha file."
        )
    return path.parent / name
