"""The mark in a result's own file: that it is synthetic, and what made it.

A line of at most 79 bytes, which NIfTI and Analyze have room for in `descrip` and which ITK carries
from format to format, and a JSON object with whole names where a format takes more. Neither holds
anything about a patient. `read_mark` finds them in files that other programs wrote again, too.
"""

import json
import re
import unicodedata
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast, get_args

from .files.header_limits import GZIP_MAGIC
from .files.regular import open_regular
from .header_start import HeaderStart, gzip_unpacker
from .maps import MapKind
from .volume import NOTICE, SyntheticMark

PROGRAM = "cuda-cyclegan"
FILE_NOTES = "ITK_FileNotes"
"""Key of the line in NRRD and MetaImage headers and in ITK's images: ITK's own for `descrip`, so it
goes from any of these formats to any other."""
WHOLE_MARK = "cuda_cyclegan"
"""Key of the JSON object there."""
LONGEST_LINE = 79
"""Bytes of `descrip`, whose last one is 0."""

_START = f"synthetic;{PROGRAM} "
"""In each line, before the version; by this alone a line of another version is recognised."""
_KINDS: tuple[MapKind, ...] = get_args(MapKind)
_LINE = re.compile(
    f"{re.escape(_START)}(?P<program>[^;]*);"
    f"(?:(?P<shows>{'|'.join(_KINDS)}) )?(?P<source>[^;]*?)->(?P<target>[^;]*);"
    r"not for diagnosis;(?P<sha256>[0-9a-f]{0,12})(?: (?P<model>.*))?"
)
_SYNTHETIC = "synthetic"
_FIRST_KEYS = f'{{"{_SYNTHETIC}": true, "program": "{PROGRAM} '
"""Of each JSON object, so that one that was cut is recognised."""
_NOTICE_START = NOTICE[:23]
"""What dcm2niix leaves of a DICOM result's comment in `aux_file`; ITK keeps the whole."""
UNREADABLE_MARK = SyntheticMark("", "", "", "", "")
"""Of a file that says it is synthetic in words of another version or of a DICOM result, or in words
that were cut."""

_FIRST_BYTES, _MOST_BYTES = 2048, 1 << 15
"""Bytes of a NIfTI file that are looked at: a header with an extension as it mostly is, and with
the longest names."""
_LONGEST_TEXT_HEADER = 16 << 20
_DESCRIP = {348: slice(148, 228), 540: slice(240, 320)}
"""By the size of a header: that of NIfTI-1 and Analyze, and that of NIfTI-2."""
_AUX_FILE = 24
_OFFSET = {348: ("f", 108), 540: ("q", 168)}
_EXTENSION_HEADER_BYTES = 8
_FIELD = re.compile(rb"\s*[A-Za-z]+\s*[=:]")
"""The beginning of a MetaImage file."""


def line_of(mark: SyntheticMark) -> str:
    """The mark as ASCII in at most 79 bytes.

    Names are shortened to fit, the model's first; its hash, the program and the words that tell the
    image from a scan always have room.
    """
    sides = [_plain(mark.source), _plain(mark.target)]
    kind = f"{mark.shows} " if mark.shows else ""
    program, digest = _plain(mark.program)[:_LONGEST_VERSION], _plain(mark.model_sha256)[:12]

    def line(source: str, target: str, model: str) -> str:
        made = f"{_START}{program};{kind}{source}->{target};not for diagnosis;{digest}"
        return f"{made} {model}".rstrip()

    room = LONGEST_LINE - len(line("", "", ""))
    shorter, longer = sorted(map(len, sides))
    if shorter + longer > room:
        most = max(room // 2, room - shorter)
        sides = [side[:most] for side in sides]
        sides[1] = sides[1][: room - len(sides[0])]
    source, target = sides
    return line(source, target, _plain(mark.model))[:LONGEST_LINE].rstrip()


_LONGEST_VERSION = len("10.12.345")


def _plain(text: str) -> str:
    """Text as printable ASCII without what separates the parts of a line."""
    letters = (char for char in unicodedata.normalize("NFKD", text) if not _is_accent(char))
    ascii_text = "".join(letters).encode("ascii", "replace").decode().replace(";", ",")
    return "".join(char if char.isprintable() else " " for char in ascii_text).strip()


def _is_accent(char: str) -> bool:
    return unicodedata.category(char) == "Mn"


def json_of(mark: SyntheticMark) -> str:
    """The mark as a JSON object on one line of ASCII, with whole names."""
    told = {
        _SYNTHETIC: True,
        "program": f"{PROGRAM} {mark.program}",
        "source": mark.source,
        "target": mark.target,
        "model": mark.model,
        "model_sha256": mark.model_sha256,
        **({"map": mark.shows} if mark.shows else {}),
        "notice": NOTICE,
    }
    return json.dumps(told)


def mark_in_text(text: str) -> SyntheticMark | None:
    """The mark that a text holds or ends with, as a line or as JSON; None without one.

    Names in a line may be shortened. A text that is recognised and no more gives UNREADABLE_MARK.
    """
    if _FIRST_KEYS in text:
        return _mark_in_json(text[text.index(_FIRST_KEYS) :])
    if _START not in text:
        return UNREADABLE_MARK if _NOTICE_START in text else None
    found = _LINE.match(text, text.index(_START))
    if found is None:
        return UNREADABLE_MARK
    return SyntheticMark(
        model=(found["model"] or "").strip(),
        source=found["source"],
        target=found["target"],
        program=found["program"],
        model_sha256=found["sha256"],
        shows=_kind_of(found["shows"]),
    )


def _mark_in_json(text: str) -> SyntheticMark:
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE_MARK

    def word(key: str) -> str:
        value = cast("dict[str, Any]", told).get(key)
        return value if isinstance(value, str) else ""

    return SyntheticMark(
        model=word("model"),
        source=word("source"),
        target=word("target"),
        program=word("program").removeprefix(f"{PROGRAM} "),
        model_sha256=word("model_sha256"),
        shows=_kind_of(word("map")),
    )


def _kind_of(word: str | None) -> MapKind | None:
    return next((kind for kind in _KINDS if kind == word), None)


def read_mark(path: Path) -> SyntheticMark | None:
    """The mark of a NIfTI, Analyze, NRRD or MetaImage file, by its header alone.

    path: of the file that holds the header. None for a real scan, for other kinds of file, and for
    what cannot be read.
    """
    try:
        with open_regular(path) as file:
            if header := HeaderStart.of(_start_of(file.read(_MOST_BYTES))):
                texts = _texts_of_nifti(header)
            else:
                file.seek(0)
                texts = _texts_of_lines(file)
            return _whole_mark(texts)
    except (OSError, zlib.error):
        return None


def _start_of(stored: bytes) -> bytes:
    """The first bytes of a file, unpacked if it is gzip: up to the voxels if these come soon."""
    if not stored.startswith(GZIP_MAGIC):
        return stored
    unpacker = gzip_unpacker()
    start = unpacker.decompress(stored, _FIRST_BYTES)
    if (header := HeaderStart.of(start)) and _end_of_header(header) > _FIRST_BYTES:
        start += unpacker.decompress(unpacker.unconsumed_tail, _MOST_BYTES - _FIRST_BYTES)
    return start


def _whole_mark(texts: Iterator[str]) -> SyntheticMark | None:
    """The mark of a file, with whole names if it has JSON; else one that is recognised."""
    with_json_first = sorted(texts, key=lambda text: _FIRST_KEYS not in text)
    found = [mark for text in with_json_first if (mark := mark_in_text(text)) is not None]
    return next((mark for mark in found if mark != UNREADABLE_MARK), found[0] if found else None)


def _texts_of_nifti(header: HeaderStart) -> Iterator[str]:
    """Extensions, the description, and what follows that."""
    yield from _extensions(header)
    description = _DESCRIP[header.size]
    for field in (description, slice(description.stop, description.stop + _AUX_FILE)):
        yield header.start[field].partition(b"\0")[0].decode("ascii", "replace")


def _extensions(header: HeaderStart) -> Iterator[str]:
    start, size = header.start, header.size
    if not header.magic.startswith(b"n") or not start[size : size + 1].strip(b"\0"):
        return
    end = min(_end_of_header(header), len(start))
    at = size + 4
    while at + _EXTENSION_HEADER_BYTES <= end:
        length, _ = header.numbers("ii", at)
        if length < _EXTENSION_HEADER_BYTES:
            return
        content = start[at + _EXTENSION_HEADER_BYTES : min(at + length, end)]
        yield content.rstrip(b"\0").decode("ascii", "replace")
        at += length


def _end_of_header(header: HeaderStart) -> int:
    """Where the voxels begin, if they follow in the same file; else more than is looked at."""
    (offset,) = header.numbers(*_OFFSET[header.size])
    is_single = header.magic.startswith(b"n+")
    return int(offset) if is_single and header.size < offset < _MOST_BYTES else _MOST_BYTES


def _texts_of_lines(file: BinaryIO) -> Iterator[str]:
    """Values of the fields of a NRRD or MetaImage header."""
    first = file.readline(_MOST_BYTES)
    is_nrrd = first.startswith(b"NRRD")
    if not is_nrrd and not _FIELD.match(first):
        return
    for line in chain([first], iter(lambda: file.readline(_MOST_BYTES), b"")):
        is_end = not line.strip() if is_nrrd else line.startswith(b"ElementDataFile")
        if is_end or file.tell() > _LONGEST_TEXT_HEADER:
            return
        text = line.decode("ascii", "replace").strip()
        yield text.replace("\\\\", "\\") if is_nrrd else text
