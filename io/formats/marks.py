"""Mark in the file of a result: that it is synthetic, and its origin.

A line of at most 79 bytes, which fits into `descrip` of NIfTI and Analyze and which ITK carries
from format to format, and a JSON object with whole names if a format allows more. Neither holds
anything about a patient. `read_labels` of io/labels.py finds them in files that other programs
wrote again, too.
"""

import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, cast, get_args

from ..maps import MapKind
from ..volume import NOTICE, PROGRAM, SyntheticMark

FILE_NOTES = "ITK_FileNotes"
"""Key of the line in NRRD and MetaImage headers and in ITK's images: ITK's own for `descrip`, so it
goes from any of these formats to any other."""
WHOLE_MARK = "cuda_cyclegan"
"""Key of the JSON object there."""
LONGEST_LINE = 79
"""Bytes of `descrip`, whose last one is 0."""

_START = f"synthetic;{PROGRAM} "
"""Start of each line, before the version; by this alone a line of another version is recognised."""
_KINDS: tuple[MapKind, ...] = get_args(MapKind)
_LINE = re.compile(
    f"{re.escape(_START)}(?P<program>[^;]*);"
    f"(?:(?P<shows>{'|'.join(_KINDS)}) )?(?P<source>[^;]*?)->(?P<target>[^;]*);"
    r"not for diagnosis;(?P<sha256>[0-9a-f]{0,12})(?: (?P<model>.*))?"
)
_SYNTHETIC = "synthetic"
_FIRST_KEYS = f'{{"{_SYNTHETIC}": true, "program": "{PROGRAM} '
"""Start of each JSON object, so that one that was cut is recognised."""
_NOTICE_START = NOTICE[:23]
"""Text that dcm2niix leaves of a DICOM result's comment in `aux_file`; ITK keeps the whole."""
UNREADABLE_MARK = SyntheticMark("", "", "", "", "")
"""Mark of a file that says it is synthetic in words of another version or of a DICOM result, or in
words that were cut."""


def line_of(mark: SyntheticMark) -> str:
    """Return the mark as ASCII in at most 79 bytes.

    Names are shortened to fit, the model's first; its hash, the program and the words that
    distinguish the image from a scan always fit.
    """
    sides = [_plain(mark.source), _plain(mark.target)]
    kind = f"{mark.shows} " if mark.shows else ""
    program, digest = _plain(mark.program)[:_LONGEST_VERSION], _plain(mark.model_sha256)[:12]

    def line(source: str, target: str, model: str) -> str:
        text = f"{_START}{program};{kind}{source}->{target};not for diagnosis;{digest}"
        return f"{text} {model}".rstrip()

    space = LONGEST_LINE - len(line("", "", ""))
    shorter, longer = sorted(map(len, sides))
    if shorter + longer > space:
        most = max(space // 2, space - shorter)
        sides = [side[:most] for side in sides]
        sides[1] = sides[1][: space - len(sides[0])]
    source, target = sides
    return line(source, target, _plain(mark.model))[:LONGEST_LINE].rstrip()


_LONGEST_VERSION = len("10.12.345")


def _plain(text: str) -> str:
    """Return text as printable ASCII without the separators of a line's parts."""
    letters = (char for char in unicodedata.normalize("NFKD", text) if not _is_accent(char))
    ascii_text = "".join(letters).encode("ascii", "replace").decode().replace(";", ",")
    return "".join(char if char.isprintable() else " " for char in ascii_text).strip()


def _is_accent(char: str) -> bool:
    return unicodedata.category(char) == "Mn"


def json_of(mark: SyntheticMark) -> str:
    """Return the mark as a JSON object on one line of ASCII, with whole names."""
    fields = {
        _SYNTHETIC: True,
        "program": f"{PROGRAM} {mark.program}",
        "source": mark.source,
        "target": mark.target,
        "model": mark.model,
        "model_sha256": mark.model_sha256,
        **({"map": mark.shows} if mark.shows else {}),
        "notice": NOTICE,
    }
    return json.dumps(fields)


def mark_in_text(text: str) -> SyntheticMark | None:
    """Return the mark that a text holds or ends with, as a line or as JSON; None without one.

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
        fields: Any = json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE_MARK

    def word(key: str) -> str:
        value = cast("dict[str, Any]", fields).get(key)
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


def mark_in_texts(texts: Iterable[str]) -> SyntheticMark | None:
    """Return the mark of a header, with whole names if it has JSON, else one that is recognised.

    texts: of its fields. None if none of them is a mark.
    """
    with_json_first = sorted(texts, key=lambda text: _FIRST_KEYS not in text)
    found = [mark for text in with_json_first if (mark := mark_in_text(text)) is not None]
    return next((mark for mark in found if mark != UNREADABLE_MARK), found[0] if found else None)
