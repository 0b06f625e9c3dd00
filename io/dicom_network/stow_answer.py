"""Answers to STOW-RS requests, and what they prove about the one object sent (PS3.18, 10.5)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, cast
from xml.etree import ElementTree

from .commands import DimseStatus
from .media_types import MediaType

_STORED, _FAILED, _OTHER_FAILURES = "00081199", "00081198", "0008119A"
_INSTANCE, _WARNING, _FAILURE = "00081155", "00081196", "00081197"
_ALREADY_THERE = (DimseStatus.DUPLICATE, 45070)
"""Failure reasons of an object that the server has: DICOM's, and that of Google's server."""
_REFUSING = (400, 409, 413, 415, 422)

DataSet = Mapping[str, Any]
"""Data set in DICOM's JSON: elements by their tags."""


class Proof(Enum):
    """Kinds of proof. DOUBTFUL: that storing failed, unless a search shows the object."""

    STORED = "stored"
    ALREADY_THERE = "already there"
    FAILED = "failed"
    DOUBTFUL = "doubtful"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class StowAnswer:
    """Meaning of an answer.

    proof: what it proves. words: the server's warning or failure, or why it proves nothing.
    """

    proof: Proof
    words: str = ""


def is_about_objects(status: int) -> bool:
    """Return whether an HTTP status is about the objects that were sent, not about the server."""
    return 200 <= status < 300 or status in _REFUSING


def meaning_of(status: int, media: MediaType, body: bytes, instance: str) -> StowAnswer:
    """Return the meaning of an answer for the object with a UID.

    status: of HTTP, one that `is_about_objects`.
    """
    said = f"it answers STOW-RS with HTTP status {status}"
    unnamed = StowAnswer(Proof.DOUBTFUL, said)
    if status < 300:
        unnamed = StowAnswer(Proof.NOTHING, f"{said}, which does not name the object as stored")
    try:
        answer = _data_set(media, body)
        stored = [item for item in _items(answer, _STORED) if _value(item, _INSTANCE) == instance]
        failed = [item for item in _items(answer, _FAILED) if _value(item, _INSTANCE) == instance]
        failed += _items(answer, _OTHER_FAILURES)  # which has no UID, but one object was sent
        warning = next((_number(item, _WARNING) for item in stored), None)
        reason = next((_number(item, _FAILURE) for item in failed), None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SyntaxError):
        return unnamed
    if stored and (failed or status >= 300):
        return StowAnswer(Proof.NOTHING, f"{said}, which names the object as stored and as failed")
    if stored:
        return StowAnswer(Proof.STORED, "" if warning is None else f"warning {warning:04X}")
    if not failed:
        return unnamed
    if reason in _ALREADY_THERE:
        return StowAnswer(Proof.ALREADY_THERE, f"it answers STOW-RS with failure {reason:04X}")
    if reason is None:
        return StowAnswer(Proof.DOUBTFUL, f"{said}, which names the object as failed")
    # A status of 200 states that all is stored: the sequence may be the wrong one.
    proof = Proof.DOUBTFUL if status == 200 else Proof.FAILED
    return StowAnswer(proof, f"it answers STOW-RS with failure {reason:04X}")


def _data_set(media: MediaType, body: bytes) -> DataSet:
    """Parse an answer. Raises ValueError and other errors if it is not DICOM."""
    if media.is_xml:
        return _from_xml(body)
    if not media.is_json:
        raise ValueError
    found: object = json.loads(body)
    if isinstance(found, list):
        [found] = cast("list[object]", found)
    if not isinstance(found, dict):
        raise ValueError
    return cast("DataSet", found)


def _items(answer: DataSet, tag: str) -> list[DataSet]:
    return list(answer.get(tag, {}).get("Value", []))


def _value(item: DataSet, tag: str) -> Any:
    return next(iter(item.get(tag, {}).get("Value", [])), None)


def _number(item: DataSet, tag: str) -> int | None:
    value = _value(item, tag)
    return None if value is None else int(value)


def _from_xml(body: bytes) -> DataSet:
    """Return a data set of the Native DICOM Model (PS3.19, A.1), as in JSON."""
    root = ElementTree.XML(body, ElementTree.XMLParser(target=_Builder()))
    models = [one for one in root.iter() if _name(one) == "NativeDicomModel"]
    if len(models) != 1:
        raise ValueError
    return dict(_attributes(models[0]))


class _Builder(ElementTree.TreeBuilder):
    def doctype(self, *_: object) -> NoReturn:
        """Refuse a document with entities of its own, which may expand to any length."""
        raise ValueError


def _attributes(parent: ElementTree.Element) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    for element in parent:
        if _name(element) == "DicomAttribute":
            yield element.attrib["tag"].upper(), {"Value": [_of_xml(value) for value in element]}


def _of_xml(value: ElementTree.Element) -> Any:
    return dict(_attributes(value)) if _name(value) == "Item" else (value.text or "").strip()


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
