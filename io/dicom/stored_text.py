"""Text as a file stores it: bytes are passed on unchanged, whatever character set is declared.

pydicom decodes text and encodes it again. Text in another character set than declared, such as
Latin letters declared as UTF-8, changes, so that two patients may get one identifier; correct text
may get other escape sequences.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pydicom.charset import decode_bytes, default_encoding, encode_string, python_encoding
from pydicom.config import IGNORE
from pydicom.datadict import dictionary_has_tag, dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.valuerep import TEXT_VR_DELIMS, PersonName

from .dataset import PARSING_ERRORS, pydicom

_KINDS = frozenset({"SH", "LO", "ST", "LT", "UC", "UT", "PN"})
"""VRs to which SpecificCharacterSet applies (PS3.5 6.1.2.3)."""
_KNOWN = frozenset(python_encoding.values())
_ESCAPE = b"\x1b"
_FOREIGN = re.compile("[\x1b\x80-\x9f\ufffd]")
"""Traces of bytes that are not as declared: escapes of other sets, control characters, and the
replacement for a character that cannot be decoded.
"""


class StoredText(DataElement):
    """Element of text that is not plain ASCII, with the bytes of its file.

    stored: those bytes, without padding. is_sound: whether they are text in the character set that
    is declared; if not, the value has a character for each byte, so that no two texts are alike.
    """

    def __init__(self, decoded: DataElement, stored: bytes, encodings: Sequence[str]) -> None:
        self.stored = stored
        self.is_sound = _is_sound(stored, encodings)
        self._encodings = list(encodings)
        value: Any = decoded.value if self.is_sound else stored.decode("ascii", "surrogateescape")
        super().__init__(decoded.tag, decoded.VR, value, validation_mode=IGNORE)

    def as_stored(self) -> DataElement:
        """Return the element with its bytes as its value, which are written as they are."""
        return _of_bytes(self, self.stored)

    def with_text(self, text: Any) -> DataElement:
        """Return the element with another text, in the character set of this one."""
        values = [text] if isinstance(text, str | PersonName) else list(text)
        return _of_bytes(self, b"\\".join(self._encoded(str(value)) for value in values))

    def _encoded(self, text: str) -> bytes:
        groups = text.split("=") if self.VR == "PN" else [text]
        return b"=".join(encode_string(group, self._encodings) for group in groups)


def keep_stored_text(dataset: Any) -> Any:
    """The data set, just read, whose elements of text that is not plain ASCII are `StoredText`.

    Items of its sequences are excluded, as they are read on demand.
    """
    encodings, are_known = _encodings(dataset)
    for tag in _not_plain(dataset, any_text=not are_known):
        raw = dataset.get_item(tag)
        with suppress(*PARSING_ERRORS):
            if _may_be_text(raw):
                decoded = pydicom.dataelem.convert_raw_data_element(
                    raw, encoding=encodings, ds=dataset
                )
                if decoded.VR in _KINDS:
                    dataset[tag] = StoredText(decoded, raw.value.rstrip(b" \0"), encodings)
    return dataset


def as_stored(element: Any) -> Any:
    """Return an element to be written elsewhere, and all within it, with text as it was stored."""
    if isinstance(element, StoredText):
        return element.as_stored()
    if element.VR == "SQ":
        for item in element.value:
            all_as_stored(item)
    return element


def all_as_stored(dataset: Any) -> Any:
    """Return the data set, just read, with text as it was stored at any depth."""
    keep_stored_text(dataset)
    for tag in list(dataset.keys()):
        with suppress(*PARSING_ERRORS):
            dataset[tag] = as_stored(dataset[tag])
    return dataset


def encode_own_text(dataset: Any) -> None:
    """Give text in ASCII as bytes, so that no declared character set changes it when written."""
    for tag in list(dataset.keys()):
        element = dataset.get_item(tag)
        if element.is_raw:
            continue
        if element.VR == "SQ":
            for item in element.value:
                encode_own_text(item)
        elif element.VR in _KINDS and not element.is_empty and not _is_encoded(element):
            values = element.value if element.VM > 1 else [element.value]
            text = "\\".join(map(str, values))
            if text.isascii():
                dataset[tag] = _of_bytes(element, text.encode())


def _is_encoded(element: Any) -> bool:
    first = element.value[0] if element.VM > 1 else element.value
    return isinstance(first.original_string if element.VR == "PN" else first, bytes)


def _of_bytes(element: DataElement, stored: bytes) -> DataElement:
    return DataElement(element.tag, element.VR, stored, validation_mode=IGNORE)


def _encodings(dataset: Any) -> tuple[list[str], bool]:
    """Return Python's names of encodings, and whether they are DICOM's; the default if not.

    pydicom accepts any name of a Python encoding, such as UTF-16, in which ASCII has other bytes.
    """
    declared = dataset.original_character_set or default_encoding
    encodings = [declared] if isinstance(declared, str) else list(declared)
    are_known = all(each in _KNOWN for each in encodings)
    return (encodings if are_known else [default_encoding]), are_known


def _not_plain(dataset: Any, *, any_text: bool) -> Iterator[Any]:
    """Tags of the elements that are not decoded yet and hold more than ASCII without escapes;
    any_text: of all that are not decoded yet.
    """
    for tag in list(dataset.keys()):
        raw = dataset.get_item(tag)
        stored = raw.value if raw.is_raw else None
        if isinstance(stored, bytes) and (any_text or not stored.isascii() or _ESCAPE in stored):
            yield tag


def _may_be_text(raw: Any) -> bool:
    if raw.VR not in (None, "UN"):
        return raw.VR in _KINDS
    if dictionary_has_tag(raw.tag):
        return dictionary_VR(raw.tag) in _KINDS
    return raw.tag.is_private


def _is_sound(stored: bytes, encodings: Sequence[str]) -> bool:
    """Return whether bytes are text in an encoding. Without a declaration, or with one unknown to
    DICOM, that is ASCII. No character set has letters among the control characters from 0x80.
    """
    first = "ascii" if encodings[0] == default_encoding else encodings[0]
    try:
        stored.partition(_ESCAPE)[0].decode(first)
        text = decode_bytes(stored, encodings, TEXT_VR_DELIMS)
    except (UnicodeError, LookupError):
        return False
    return not _FOREIGN.search(text)
