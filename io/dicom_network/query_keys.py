"""Keys of a search for studies by C-FIND, and their matching (PS3.4, C.2.2.2).

A peer need not support all of them, and answers as if a key that it ignores had not been there.
"""

import re

MODALITIES = "ModalitiesInStudy"
_DATES = ("StudyDate", "PatientBirthDate")
_UNCHECKED = ("StudyTime",)
"""Every peer supports this key, and its ranges have many spellings."""
STUDY_KEYS = (
    *("StudyDate", "StudyTime", "StudyDescription", "StudyID", "StudyInstanceUID"),
    *("AccessionNumber", MODALITIES, "ReferringPhysicianName", "PatientID", "PatientName"),
    *("PatientBirthDate", "PatientSex"),
)
"""Keys that a search may have."""


def alternatives(pattern: str) -> list[str]:
    """Return the values of a key, any of which may match: separated by a backslash or a comma."""
    return [one.strip() for one in re.split(r"[\\,]", pattern)]


def is_universal(pattern: str) -> bool:
    """Whether a key matches everything, and also what has no value."""
    return not pattern.strip("*")


def is_match(keyword: str, pattern: str, value: str) -> bool:
    """Return whether a value matches a key, in any case of letters, as many peers match."""
    if is_universal(pattern) or keyword in _UNCHECKED:
        return True
    if keyword in _DATES:
        return _is_in_range(value, pattern)
    if keyword in (MODALITIES, "StudyInstanceUID"):
        return any(_is_like(value, one) for one in alternatives(pattern))
    return _is_like(value.rstrip("^ "), pattern.rstrip("^ "))


def _is_in_range(value: str, pattern: str) -> bool:
    first, dash, last = (part.strip() for part in pattern.partition("-"))
    if not dash:
        return value == first
    return bool(value) and (first or value) <= value <= (last or value)


def _is_like(value: str, pattern: str) -> bool:
    wildcards = {"*": ".*", "?": "."}
    expression = "".join(wildcards.get(one, re.escape(one)) for one in pattern)
    return re.fullmatch(expression, value, re.IGNORECASE | re.DOTALL) is not None
