"""Whether two files hold the same object, though it came in another encoding.

An archive hands on what a scanner sent, in a transfer syntax and with lengths of its own choice.
"""

from pathlib import Path
from typing import Any

from ..dicom.library import PARSING_ERRORS, encoded, tag_of
from ..dicom.parsing import is_of_pixels, read_partial
from ..dicom.stored_text import all_as_stored
from ..files.regular import open_regular

_HOW_IT_WAS_PACKED = tag_of("DerivationDescription")
"""Where dcmtk, and so Orthanc, says by what method and how well."""


def is_same_object(one: Path, other: Path) -> bool:
    """Whether headers are equal, and the pixels too where they are in one transfer syntax.

    In two, they are not looked at: whoever changes an image gives it another UID (PS3.3,
    C.12.1.1), and decoders are not for a process that listens to strangers. Raises OSError.
    """
    try:
        (syntax, header, start), (syntax_of_other, header_of_other, start_of_other) = (
            _header(path) for path in (one, other)
        )
    except PARSING_ERRORS:
        return False
    if header != header_of_other:
        return False
    return syntax != syntax_of_other or _from(one, start) == _from(other, start_of_other)


def _header(path: Path) -> tuple[str, bytes, int]:
    """Transfer syntax, header in one encoding for all, and where all else begins in the file."""
    with open_regular(path) as file:
        dataset = read_partial(file, is_of_pixels)
        start = file.tell()
    dataset.pop(_HOW_IT_WAS_PACKED, None)
    all_as_stored(dataset)
    dataset.walk(_tell_length)
    dataset.set_original_encoding(True, True, dataset.original_character_set)
    return str(dataset.file_meta.TransferSyntaxUID), encoded(dataset, is_implicit=True), start


def _from(path: Path, start: int) -> bytes:
    with open_regular(path) as file:
        file.seek(start)
        return file.read()


def _tell_length(_dataset: Any, element: Any) -> None:
    """Of a sequence and its items, which may have an end mark in its place."""
    if element.VR == "SQ":
        element.is_undefined_length = False
        for item in element.value:
            item.is_undefined_length_sequence_item = False
