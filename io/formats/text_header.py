"""The text that NRRD and MetaImage files begin with: how the voxels are packed, and where they lie.

ITK's own readers follow a hostile header into foreign memory and take damaged packing for voxels,
so what they would trust is checked here first.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from ..errors import UnreadableScanError, UnsupportedScanError
from ..files.streams import Packing
from ..volume import FARTHEST_PLACE_MM

Encoding: TypeAlias = Packing | Literal["plain", "text"]
PACKINGS: tuple[Encoding, ...] = ("gzip", "zlib")

NRRD_SUFFIXES = (".nrrd", ".nhdr")
LONGEST_LINE_BYTES = 1 << 16
LONGEST_FIELD_BYTES = 255  # NrrdIO and MetaIO write past their buffers at longer ones
# NRRD's comments and key/value pairs, MetaImage's DICOM elements: read into strings of any length.
FREE_TEXT = re.compile(r"#|[^:]*:=|\w{4}\|\w{4} ?=")
NRRD_PLACES = ("space directions", "space origin", "spacings", "measurement frame")
METAIMAGE_PLACES = (
    *("TransformMatrix", "Rotation", "Orientation", "Offset", "Position", "Origin"),
    *("ElementSpacing", "ElementSize", "CenterOfRotation"),
)
METAIMAGE_DIRECTIONS = ("TransformMatrix", "Rotation", "Orientation")
METAIMAGE_SCALE = {
    "ElementToIntensityFunctionSlope": "1",
    "ElementToIntensityFunctionOffset": "0",
}
"""Of the line from stored numbers to values, with what says that they are the same."""
MOST_LINES = 4096
MOST_METAIMAGE_AXES = 10  # the length of the arrays that MetaIO fills
NRRD_ENCODINGS: dict[str, Encoding] = {
    "raw": "plain",
    "gzip": "gzip",
    "gz": "gzip",
    "ascii": "text",
    "text": "text",
    "txt": "text",
    "hex": "text",
}


@dataclass(frozen=True, slots=True)
class TextHeader:
    """What the file tells before its voxels.

    encoding: of the voxels.
    data_file: holds the voxels; the header's own file where they follow it.
    offset: the first byte in `data_file` at which the voxels may begin.
    packed_bytes: how many bytes the packed voxels take, where the header says it.
    unit: of lengths. space: what the axes of space are said to be, as NRRD names them without the
    time that may come with them; empty if nothing is said. has_time: whether it does.
    is_exact: whether the voxels begin at `offset` and nowhere behind it.
    """

    encoding: Encoding
    data_file: Path
    offset: int
    packed_bytes: int | None = None
    unit: str = "mm"
    space: str = ""
    has_time: bool = False
    is_exact: bool = False


def read_text_header(path: Path) -> TextHeader:
    """Read a NRRD or MetaImage header; raises ScanError and OSError."""
    with path.open("rb") as file:
        if path.suffix.lower() in NRRD_SUFFIXES:
            return _nrrd(file, path)
        return _metaimage(file, path)


def _nrrd(file: BinaryIO, path: Path) -> TextHeader:
    if not file.readline(LONGEST_LINE_BYTES).startswith(b"NRRD000"):
        raise UnreadableScanError(f"{path} is not a NRRD file although its name says so; check it.")
    fields = {key.lower(): value for key, value in _fields(file, ":", path)}
    _check_places(fields, NRRD_PLACES, path)
    _check_time(fields, path)
    named = fields.get("encoding", "raw").lower()
    if named not in NRRD_ENCODINGS:
        raise UnsupportedScanError(
            f"{path} encodes its voxels as {named}; save it with the encoding gzip or raw."
        )
    encoding = NRRD_ENCODINGS[named]
    skips = any(_skips(fields, key) for key in ("byte skip", "line skip"))
    if encoding == "gzip" and skips:
        raise UnsupportedScanError(
            f"{path} skips bytes before its packed voxels; save it without a byte skip."
        )
    name = fields.get("data file", fields.get("datafile"))
    data_file, offset = (path, file.tell()) if name is None else (_beside(path, name), 0)
    space = fields.get("space", "").lower()
    spatial = _WITH_TIME.get(space, space.removesuffix("-time"))
    return TextHeader(
        encoding,
        data_file,
        offset,
        unit=_nrrd_unit(fields, path),
        space=spatial,
        has_time=spatial != space,
        is_exact=not skips,
    )


_WITH_TIME = {"rast": "ras", "last": "las", "lpst": "lps"}
"""Short names of spaces with time, and of those without."""


def _check_time(fields: dict[str, str], path: Path) -> None:
    """Refuse moments before an axis of space, which ITK would take for the first one of them."""
    kinds = fields.get("kinds", "").lower().split()
    if "time" in kinds and any(kind in _OF_SPACE for kind in kinds[kinds.index("time") :]):
        raise UnsupportedScanError(
            f"{path} puts time before an axis of space; save it with time as the last axis."
        )


_OF_SPACE = ("domain", "space", "none", "???")
"""Kinds of axes, and what says nothing of one, which then is of space too."""


def _nrrd_unit(fields: dict[str, str], path: Path) -> str:
    """The one unit of its lengths: those of directions in space, or else of spacings."""
    keys = ("space units", "units") if "space directions" in fields else ("units", "space units")
    named = next((found for key in keys if (found := _quoted(fields.get(key, "")))), ["mm"])
    if "space directions" not in fields:
        named = named[:3] if len(named) > 3 else named
    if len(set(named)) > 1:
        raise UnsupportedScanError(
            f"{path} gives lengths in several units ({', '.join(sorted(set(named)))}); save it in "
            "millimetres."
        )
    return named[0].lower()


def _quoted(text: str) -> list[str]:
    """The words between quotation marks that are not empty."""
    return [word for word in re.findall(r'"([^"]*)"', text) if word.strip()]


def _skips(fields: dict[str, str], key: str) -> bool:
    return fields.get(key, fields.get(key.replace(" ", ""), "0")) != "0"


def _metaimage(file: BinaryIO, path: Path) -> TextHeader:
    fields: dict[str, str] = {}
    for key, value in _fields(file, "[=:]", path):
        if key in fields and key:
            raise UnreadableScanError(f"{path} gives {key} twice; repair its header.")
        fields[key] = value
    if "ElementDataFile" not in fields or "DimSize" not in fields:
        raise UnreadableScanError(
            f"{path} is not a MetaImage file although its name says so; check it."
        )
    _check_places(fields, METAIMAGE_PLACES, path)
    axes = _number(fields, "NDims", 0, path)
    if not 1 <= axes <= MOST_METAIMAGE_AXES or len(fields["DimSize"].split()) != axes:
        raise UnreadableScanError(
            f"{path} has a damaged header: NDims is {axes} and DimSize is {fields['DimSize']}; "
            "export it again."
        )
    if not _is_true(fields, "BinaryData", default=True):
        raise UnsupportedScanError(f"{path} writes its voxels as text; save it as binary.")
    for key, nothing in METAIMAGE_SCALE.items():
        if _float(fields.get(key, nothing)) != float(nothing):
            raise UnsupportedScanError(
                f"{path} scales its values ({key} = {fields[key]}), which ITK leaves out; save it "
                "with the values themselves."
            )
    return _metaimage_voxels(file, path, fields)


def _metaimage_voxels(file: BinaryIO, path: Path, fields: dict[str, str]) -> TextHeader:
    name = fields["ElementDataFile"]
    local = name.lower() == "local"
    packed = _is_true(fields, "CompressedData", default=False)
    skipped = _number(fields, "HeaderSize", 0, path)
    size = _number(fields, "CompressedDataSize", 0, path)
    if size < 0 or (packed and local and size == 0) or (skipped != 0 and (packed or local)):
        raise UnreadableScanError(
            f"{path} does not say rightly where its voxels begin and end; export it again."
        )
    return TextHeader(
        "zlib" if packed else "plain",
        path if local else _beside(path, name),
        file.tell() if local else max(skipped, 0),
        size or None,
        unit=_metaimage_unit(fields),
        space="lps" if any(key in fields for key in METAIMAGE_DIRECTIONS) else "",
        is_exact=local or skipped >= 0,
    )


def _metaimage_unit(fields: dict[str, str]) -> str:
    """Of lengths; MetaIO knows ? for an unknown one, which is taken as nothing said."""
    unit = fields.get("DistanceUnits", "").lower()
    return unit if unit not in ("", "?") else "mm"


def _check_places(fields: dict[str, str], keys: Sequence[str], path: Path) -> None:
    for key in keys:
        for word in re.findall(r"[^\s(),]+", fields.get(key, "")):
            if word != "none" and not _is_place(word):
                raise UnreadableScanError(
                    f"{path} does not say where its voxels lie: {key} holds {word}; "
                    "repair the geometry in its header."
                )


def _is_place(word: str) -> bool:
    """Whether ITK may see it: over larger numbers it never ends."""
    return abs(_float(word)) < FARTHEST_PLACE_MM


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_true(fields: dict[str, str], key: str, *, default: bool) -> bool:
    return fields.get(key, str(default)).lower() in ("true", "1")


def _number(fields: dict[str, str], key: str, default: int, path: Path) -> int:
    text = fields.get(key, str(default))
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise UnreadableScanError(f"{path} gives {key} as {text!r}, not a number; export it again.")
    return int(text)


def _fields(file: BinaryIO, separator: str, path: Path) -> Iterator[tuple[str, str]]:
    """Key and value of each line, up to the one after which voxels follow."""
    for _ in range(MOST_LINES):
        raw = file.readline(LONGEST_LINE_BYTES)
        line = raw.decode("utf-8", "surrogateescape").strip()
        if not raw or (not line and path.suffix.lower() in NRRD_SUFFIXES):
            return
        if len(raw) > LONGEST_FIELD_BYTES and not FREE_TEXT.match(line):
            raise UnreadableScanError(f"{path} has an overlong header line; repair its header.")
        key, *value = (part.strip() for part in re.split(separator, line, maxsplit=1))
        yield key, "".join(value)
        if key == "ElementDataFile":
            return
    raise UnreadableScanError(f"{path} has a header without an end; export the scan again.")


def _beside(path: Path, name: str) -> Path:
    if "%" in name or re.match(r"LIST(\s|$)", name):
        raise UnsupportedScanError(
            f"{path} spreads its voxels over several files; save it as one .nrrd or .mha file."
        )
    return path.parent / name
