"""Rejection notes on earlier results, once their destination has one that replaces them.

Which result is replaced follows from records and objects, never from names: both were sent to the
same destination, made with the same model file, and the later one of all images of the earlier one.
"""

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...io.dicom.derived.rejection_note import rejection_note, sources_of
from ...io.errors import UnreadableScanError, WriteError
from ...io.files.atomic import whole_file
from .inbox import SUFFIX
from .records import SeriesRecord, StudyRecord

_WHY = "A later result of the same study, made of more of its images, replaces these."


def rejection_notes(
    record: StudyRecord, sent: SeriesRecord, folder: Path, now: float
) -> Iterator[SeriesRecord]:
    """Write the notes that are due now that a result is sent, and yield their records.

    A note is the same one if this is repeated. record: of the study. folder: of its results. now:
    seconds since 1970. Raises UnreadableScanError if objects are not there any more, or OSError.
    """
    known = {one.rejects for one in record.series}
    for other in record.series:
        if not _is_like(other, sent):
            continue
        earlier, later = sorted((other, sent), key=lambda one: one.round)
        if earlier.place in known:
            continue
        rejected = _files(folder, earlier)
        sources = sources_of(rejected)
        if sources and sources <= sources_of(_files(folder, later)):
            known.add(earlier.place)
            note = _record_of(earlier, later, now)
            _write(folder / note.place / f"0001{SUFFIX}", rejected)
            yield note


def _write(path: Path, rejected: Sequence[Path]) -> None:
    """Write a note. Raises UnreadableScanError or OSError."""
    note = rejection_note(rejected, _WHY)
    try:
        with whole_file(path) as part:
            note.save_as(part, enforce_file_format=True)
    except WriteError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


def _is_like(one: SeriesRecord, other: SeriesRecord) -> bool:
    """Whether both are results of one model that one destination has, of different translations."""
    return (
        one.round != other.round
        and bool(one.model)
        and (one.model, one.destination) == (other.model, other.destination)
        and not (one.rejects or other.rejects)
    )


def _record_of(earlier: SeriesRecord, later: SeriesRecord, now: float) -> SeriesRecord:
    """Return the record of a note, which is sent as a result is."""
    return SeriesRecord(
        label=f"rejected-{earlier.round}-{earlier.label}",
        round=later.round,
        files="",
        images=1,
        job="",
        key="",
        state="sending",
        queued=now,
        done=now,
        received=(now, now),
        rejects=earlier.place,
    )


def _files(folder: Path, series: SeriesRecord) -> Sequence[Path]:
    found = [
        file for place in series.places for file in sorted((folder / place).glob(f"*{SUFFIX}"))
    ]
    if not found:
        raise UnreadableScanError(f"the objects of {series.place} are no longer here")
    return found
