"""Storage commitment: objects that a peer asks for, and the report of those stored safely."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..dicom.dataset import PARSING_ERRORS, encoded, items, pydicom, word
from . import commands
from .commands import Field
from .negotiation import COMMITMENT, COMMITMENT_INSTANCE, PLAIN

_ALL_SAFE, _SOME_LOST = 1, 2
_NO_SUCH_OBJECT = 0x0112


@dataclass(frozen=True, slots=True)
class Referenced:
    """An object. sop_class, instance: its UIDs."""

    sop_class: str
    instance: str


@dataclass(frozen=True, slots=True)
class Commitment:
    """Storage commitment request of a peer.

    transaction: UID under which it expects the report. referenced: the requested objects.
    """

    transaction: str
    referenced: tuple[Referenced, ...]


def asked_for(data: bytes, syntax: str) -> Commitment | None:
    """Return the request in a data set; None if that cannot be understood."""
    try:
        found = pydicom.filereader.read_dataset(
            io.BytesIO(data), is_implicit_VR=syntax == PLAIN[1], is_little_endian=True
        )
        referenced = tuple(
            Referenced(word(item, "ReferencedSOPClassUID"), word(item, "ReferencedSOPInstanceUID"))
            for item in items(found, "ReferencedSOPSequence")
        )
        transaction = word(found, "TransactionUID")
    except PARSING_ERRORS:
        return None
    named = [transaction, *(uid for one in referenced for uid in (one.sop_class, one.instance))]
    return Commitment(transaction, referenced) if all(named) else None


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
