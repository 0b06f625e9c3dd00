"""Identifiers of derived objects: new for a new result, the same when it is made again."""

import uuid
from hashlib import sha256

from .dicom_series import HASH_DIGITS, Series
from .volume import Derivation

FIRST_DERIVED_NUMBER = 10_000
LARGEST_NUMBER = 2**31 - 1


def derived_uid(derivation: Derivation, *parts: str) -> str:
    """A UID of what made the object and which one it is, as 2.25 and a UUID (PS3.5 B.2)."""
    text = "\0".join([derivation.fingerprint, *parts])
    digest = sha256(text.encode(errors="surrogateescape")).digest()
    return f"2.25.{uuid.UUID(bytes=digest[:16], version=5).int}"


def derived_number(series: Series) -> int:
    """A SeriesNumber that says which series it comes from and that no series of its study has."""
    last = series.label.rpartition("-")[2]
    part = int(last) if len(last) < HASH_DIGITS else 0
    wanted = FIRST_DERIVED_NUMBER + 100 * max(series.number, 0) + part
    if wanted > LARGEST_NUMBER:
        wanted = FIRST_DERIVED_NUMBER
    while wanted in series.study_numbers:
        wanted += 1
    return wanted
