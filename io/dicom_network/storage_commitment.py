"""Storage commitment: requests for it, and reports of the objects that are stored safely."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dicom.dataset import PARSING_ERRORS, DataSet, decoded, encoded, items, number, pydicom, word
from . import commands
from .commands import Field
from .negotiation import COMMITMENT, COMMITMENT_INSTANCE, PLAIN

_ALL_SAFE, _SOME_LOST = 1, 2
_NO_SUCH_OBJECT = 0x0112
_REQUEST = 1
"""The one action of the service."""


@dataclass(frozen=True, slots=True)
class Referenced:
    """An object. sop_class, instance: its UIDs."""

    sop_class: str
    instance: str


@dataclass(frozen=True, slots=True)
class Commitment:
    """Storage commitment request.

    transaction: UID under which the report is expected. referenced: the requested objects.
    """

    transaction: str
    referenced: tuple[Referenced, ...]


@dataclass(frozen=True, slots=True)
class CommitmentReport:
    """Storage commitment report of a peer.

    transaction: UID of the request. safe: UIDs of the objects that it has stored safely. failed:
    FailureReason by UID of the others.
    """

    transaction: str
    safe: frozenset[str]
    failed: Mapping[str, int]


def asked_for(data: bytes, syntax: str) -> Commitment | None:
    """Return the request in a data set; None if that cannot be understood."""
    try:
        found = _read(data, syntax)
        referenced = tuple(
            Referenced(word(item, "ReferencedSOPClassUID"), word(item, "ReferencedSOPInstanceUID"))
            for item in items(found, "ReferencedSOPSequence")
        )
        transaction = word(found, "TransactionUID")
    except PARSING_ERRORS:
        return None
    named = [transaction, *(uid for one in referenced for uid in (one.sop_class, one.instance))]
    return Commitment(transaction, referenced) if all(named) else None


def report_in(data: bytes, syntax: str) -> CommitmentReport | None:
    """Return the report in a data set; None if that cannot be understood."""
    try:
        found = _read(data, syntax)
        safe = {word(one, _INSTANCE) for one in items(found, "ReferencedSOPSequence")}
        failed = {
            word(one, _INSTANCE): int(number(one, "FailureReason"))
            for one in items(found, "FailedSOPSequence")
        }
        transaction = word(found, "TransactionUID")
    except PARSING_ERRORS:
        return None
    return (
        CommitmentReport(transaction, frozenset(safe - failed.keys()), failed)
        if transaction
        else None
    )


def _read(data: bytes, syntax: str) -> DataSet:
    return decoded(data, is_implicit=syntax == PLAIN[1])


_INSTANCE = "ReferencedSOPInstanceUID"


def request_of(asked: Commitment, syntax: str, message: int) -> tuple[bytes, bytes]:
    """Return the command and the data set of a request. message: its number."""
    dataset = pydicom.Dataset()
    dataset.TransactionUID = asked.transaction
    dataset.ReferencedSOPSequence = [*_items(asked.referenced)]
    command = {
        commands.REQUESTED_CLASS: COMMITMENT,
        commands.FIELD: Field.ACTION,
        commands.MESSAGE: message,
        commands.DATA_SET: commands.WITH_DATA_SET,
        commands.REQUESTED_INSTANCE: COMMITMENT_INSTANCE,
        commands.ACTION: _REQUEST,
    }
    return commands.encoded(command), encoded(dataset, is_implicit=syntax == PLAIN[1])


def report_of(
    asked: Commitment, safe: Sequence[Referenced], syntax: str, message: int
) -> tuple[bytes, bytes]:
    """Return the command and the data set of the report; all others are reported as missing.

    message: its number on the association.
    """
    kept = set(safe)
    lost = [one for one in asked.referenced if one not in kept]
    dataset = pydicom.Dataset()
    dataset.TransactionUID = asked.transaction
    if safe:
        dataset.ReferencedSOPSequence = [*_items(safe)]
    if lost:
        dataset.FailedSOPSequence = [*_items(lost, _NO_SUCH_OBJECT)]
    command = {
        commands.SOP_CLASS: COMMITMENT,
        commands.FIELD: Field.EVENT_REPORT,
        commands.MESSAGE: message,
        commands.DATA_SET: commands.WITH_DATA_SET,
        commands.INSTANCE: COMMITMENT_INSTANCE,
        commands.EVENT: _SOME_LOST if lost else _ALL_SAFE,
    }
    return commands.encoded(command), encoded(dataset, is_implicit=syntax == PLAIN[1])


def _items(objects: Iterable[Referenced], failure: int | None = None) -> Iterable[Any]:
    for one in objects:
        item = pydicom.Dataset()
        item.ReferencedSOPClassUID = one.sop_class
        item.ReferencedSOPInstanceUID = one.instance
        if failure is not None:
            item.FailureReason = failure
        yield item
