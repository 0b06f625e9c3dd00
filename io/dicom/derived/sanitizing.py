"""Values of a source that DICOM does not allow: cut, rewritten or omitted in the result.

Sources break the rules of PS3.5 6.2 often, and a PACS may refuse a result that repeats it. A note
gives the attribute's name, never its value, which may name a patient.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydicom.config import IGNORE
from pydicom.datadict import dictionary_VM, keyword_for_tag
from pydicom.valuerep import PersonName, format_number_as_ds

from ..dataset import PARSING_ERRORS, DataSet, pydicom, word
from ..stored_text import StoredText, as_stored, keep_stored_text

_MOST_CHARACTERS = {"LO": 64, "SH": 16, "ST": 1024, "LT": 10240}
_NAME_GROUP, _NAME_GROUPS = 64, 3
_DECIMAL, _WHOLE, _UID = 16, 12, 64
_KEPT_WHATEVER_IT_IS = ("PatientID", "IssuerOfPatientID")
"""The result would belong to another patient, or to none."""
_AS_THEY_ARE = ("SpecificCharacterSet",)
_IDENTIFIERS = re.compile(r"ID$|^AccessionNumber$|CodeValue$")
"""Elements whose value identifies something: cut or altered, it would identify another."""
_ENUMERATED = {
    "PatientSex": "M F O",
    "Laterality": "R L",
    "ImageLaterality": "R L U B",
    "FrameLaterality": "R L U B",
    "TypeOfPatientID": "TEXT RFID BARCODE",
    "QualityControlSubject": "YES NO",
    "PatientIdentityRemoved": "YES NO",
    "PatientSexNeutered": "ALTERED UNALTERED",
    "AnatomicalOrientationType": "BIPED QUADRUPED",
    "LongitudinalTemporalInformationModified": "UNMODIFIED MODIFIED REMOVED",
    "MRAcquisitionType": "2D 3D",
}
_CODES = ("CodeValue", "LongCodeValue", "URNCodeValue")
_OMITTED = "omitted"


@dataclass(frozen=True, slots=True)
class _Sanitized:
    """Sanitized element. value: None if nothing can be kept. fault: None if it is unchanged."""

    value: Any
    fault: str | None = None


def kept(source: DataSet, keywords: Iterable[str]) -> DataSet:
    """Return a new data set of those elements that the source has, as DICOM allows them."""
    return sanitized_elements(source, keywords)[0]


def sanitizing_notes(found: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note about what is changed in a result, or none."""
    if not found:
        return ()
    changes = ", ".join(f"{keyword} ({fault})" for keyword, fault in sorted(found.items()))
    return (f"its header violates the DICOM standard; changed in the result: {changes}",)


def sanitized_elements(source: DataSet, keywords: Iterable[str]) -> tuple[DataSet, dict[str, str]]:
    """Return the elements as `kept` does, and the faults by keyword of those that it changed."""
    elements, wrong = pydicom.Dataset(), dict[str, str]()
    for keyword in keywords:
        try:
            if keyword in source:
                _add(source[keyword], keyword, elements, wrong)
        except PARSING_ERRORS:
            wrong[keyword] = f"{_OMITTED}, not parsable"
    return elements, wrong


def _add(element: Any, keyword: str, elements: DataSet, wrong: dict[str, str]) -> None:
    if element.VR == "SQ":
        items = list[DataSet]()
        for item in (_item(item, wrong) for item in element.value):
            if not _is_incomplete_code(item, keyword):
                items.append(item)
            elif item:
                wrong[keyword] = f"{_OMITTED}, not a complete code"
        if items:
            setattr(elements, keyword, items)
        return
    found = _sanitized(element, keyword)
    if found.fault is not None:
        wrong[keyword] = found.fault
    if found.fault is None or found.value == element.value:
        elements[keyword] = as_stored(element)
    elif found.value is not None:
        elements[keyword] = (
            element.with_text(found.value)
            if isinstance(element, StoredText)
            else pydicom.DataElement(element.tag, element.VR, found.value, validation_mode=IGNORE)
        )


def _item(item: DataSet, wrong: dict[str, str]) -> DataSet:
    """Return an item with its standard elements sanitized and its private ones unchanged.

    Private elements that cannot be parsed are omitted without a note, as outside of items.
    """
    elements = pydicom.Dataset()
    keep_stored_text(item)
    for tag in list(item.keys()):
        try:
            element = item[tag]
            if element.keyword:
                _add(element, element.keyword, elements, wrong)
            else:
                elements[tag] = as_stored(element)
        except PARSING_ERRORS:
            if keyword := keyword_for_tag(tag):
                wrong[keyword] = f"{_OMITTED}, not parsable"
    return elements


def _is_incomplete_code(item: DataSet, keyword: str) -> bool:
    """Return whether an item of a code sequence lacks what makes it one (PS3.3 8.8)."""
    if not keyword.endswith("CodeSequence"):
        return False
    return not word(item, "CodeMeaning") or not any(word(item, code) for code in _CODES)


def _sanitized(element: Any, keyword: str) -> _Sanitized:
    if isinstance(element, StoredText) and not element.is_sound:
        return _Sanitized(
            element.value, "kept byte for byte although not valid in its character set"
        )
    if element.is_empty or element.VR not in _RULES or keyword in _AS_THEY_ARE:
        return _Sanitized(element.value)
    several = not isinstance(element.value, str | PersonName) and element.VM > 1
    values = list(element.value) if several else [element.value]
    if several and dictionary_VM(element.tag) == "1":
        if element.VR not in (*_MOST_CHARACTERS, "PN"):
            return _Sanitized(None, f"{_OMITTED}, multiple values")
        if _IDENTIFIERS.search(keyword):
            return _whole_or_not(element.value, keyword, "with multiple values")
        values = ["/".join(map(str, values))]
    done = [_RULES[element.VR](value, keyword) for value in values]
    several_in_one = several and len(done) == 1
    fault = next((one.fault for one in done if one.fault), None)
    fault = fault or ("multiple values joined into one" if several_in_one else None)
    if any(one.value is None for one in done):
        return _Sanitized(None, fault)
    return _Sanitized(done[0].value if len(done) == 1 else [one.value for one in done], fault)


def _text(vr: str) -> Callable[[Any, str], _Sanitized]:
    most, paragraphs = _MOST_CHARACTERS[vr], vr in ("ST", "LT")

    def sanitize(value: Any, keyword: str) -> _Sanitized:
        text = str(value)
        if _IDENTIFIERS.search(keyword):
            return _identifier(text, keyword, most)
        plain = text if paragraphs else "".join(" " if _is_control(c) else c for c in text)
        if len(plain.strip()) <= most:
            return _Sanitized(plain, None if plain == text else "control characters removed")
        return _Sanitized(plain.strip()[:most].rstrip(), f"truncated to {most} characters")

    return sanitize


def _identifier(text: str, keyword: str, most: int) -> _Sanitized:
    if len(text.strip()) > most:
        return _whole_or_not(text, keyword, f"longer than {most} characters")
    if any(map(_is_control, text)):
        return _whole_or_not(text, keyword, "with control characters")
    return _Sanitized(text)


def _whole_or_not(value: Any, keyword: str, why: str) -> _Sanitized:
    """Return an identifier as it is, or not at all."""
    if keyword in _KEPT_WHATEVER_IT_IS:
        return _Sanitized(value, f"kept although {why}")
    return _Sanitized(None, f"{_OMITTED}, {why}")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def _name(value: Any, _: str) -> _Sanitized:
    groups = str(value).split("=")
    cut = [group[:_NAME_GROUP].rstrip() for group in groups[:_NAME_GROUPS]]
    if cut == [group.rstrip() for group in groups]:
        return _Sanitized(value)
    return _Sanitized("=".join(cut), f"truncated to {_NAME_GROUP} characters")


def _code(value: Any, keyword: str) -> _Sanitized:
    text = str(value).strip(" \0")
    allowed = _ENUMERATED.get(keyword, "").split()
    capitals = text.upper()
    if not re.fullmatch(r"[A-Z0-9_ ]{0,16}", capitals) or (
        allowed and text and capitals not in allowed
    ):
        return _Sanitized(None, f"{_OMITTED}, not a valid code")
    return _Sanitized(capitals, None if capitals == text else "converted to upper case")


def _decimal(value: Any, _: str) -> _Sanitized:
    if not math.isfinite(value):
        return _Sanitized(None, f"{_OMITTED}, not a number")
    if len(str(getattr(value, "original_string", value)).strip()) <= _DECIMAL:
        return _Sanitized(value)
    rounded = format_number_as_ds(float(value))
    if not math.isfinite(float(rounded)):  # the largest floats, rounded up
        return _Sanitized(None, f"{_OMITTED}, not a number")
    return _Sanitized(rounded, f"rounded to {_DECIMAL} characters")


def _whole(value: Any, _: str) -> _Sanitized:
    fits = len(str(value)) <= _WHOLE and -(2**31) <= int(value) < 2**31
    return _Sanitized(value) if fits else _Sanitized(None, f"{_OMITTED}, number too large")


def _uid(value: Any, _: str) -> _Sanitized:
    if len(value) <= _UID and re.fullmatch(r"[0-9.]*", value):
        return _Sanitized(value)
    return _Sanitized(value, "kept although not a valid UID")


def _age(value: Any, _: str) -> _Sanitized:
    found = re.fullmatch(r"(\d{1,3})([DWMY])", str(value).strip())
    if not found:
        return _Sanitized(None, f"{_OMITTED}, not an age")
    age = found[1].zfill(3) + found[2]
    return _Sanitized(age, None if age == value else "padded to 3 digits")


def _date(value: Any, _: str) -> _Sanitized:
    text = str(value).strip()
    digits = re.sub(r"^(\d{4})[.](\d\d)[.](\d\d)$", r"\1\2\3", text)  # as ACR-NEMA wrote it
    try:
        datetime.strptime(digits, "%Y%m%d")
    except ValueError:
        return _Sanitized(None, f"{_OMITTED}, not a date")
    if not re.fullmatch(r"\d{8}", digits):
        return _Sanitized(None, f"{_OMITTED}, not a date")
    return _Sanitized(digits, None if digits == text else "rewritten in DICOM date format")


def _time(value: Any, _: str) -> _Sanitized:
    text = str(value).strip()
    digits = re.sub(r"^(\d\d):(\d\d):?(\d\d)?", r"\1\2\3", text)  # as ACR-NEMA wrote it
    digits = re.sub(r"(\.\d{6})\d+$", r"\1", digits)
    if not re.fullmatch(r"([01]\d|2[0-3])([0-5]\d(([0-5]\d|60)(\.\d{1,6})?)?)?", digits):
        return _Sanitized(None, f"{_OMITTED}, not a time of day")
    return _Sanitized(digits, None if digits == text else "rewritten in DICOM time format")


_RULES: dict[str, Callable[[Any, str], _Sanitized]] = {
    **{vr: _text(vr) for vr in _MOST_CHARACTERS},
    "PN": _name,
    "CS": _code,
    "DS": _decimal,
    "IS": _whole,
    "UI": _uid,
    "AS": _age,
    "DA": _date,
    "TM": _time,
}
