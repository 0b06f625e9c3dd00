"""Headers of the studies that a search found: which can be translated, and why others cannot."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .discovery import Discovery
from .errors import UnsupportedScanError, unexpected
from .reading import FileHeader, read_study_header
from .volume import Study

if TYPE_CHECKING:
    from .dicom.series import Series


@dataclass(frozen=True, slots=True)
class FoundHeaders:
    """Search result with the headers of its studies.

    search: result of the search. series: all DICOM series, with the notes and errors of their
    studies. files: header of each study that is no DICOM series.
    """

    search: Discovery
    series: "tuple[Series, ...]"
    files: Mapping[Study, FileHeader]

    @property
    def refused(self) -> int:
        """Studies that cannot be translated."""
        verdicts = {series.files: series.verdict for series in self.series}
        return sum(
            "refused" in [verdicts[scan.files] for scan in study.channels]
            if study.is_dicom
            else self.files[study].refusal is not None
            for study in self.search.studies
        )

    @property
    def failures(self) -> int:
        """Series and files that cannot be read completely."""
        series = sum(each.is_incomplete for each in self.search.series)
        return series + sum(header.unreadable is not None for header in self.files.values())


def read_headers(
    search: Discovery, volume_index: int | None, *, every_volume: bool
) -> FoundHeaders:
    """Read the headers of all files that a search found.

    volume_index: volume to translate of a file with several. every_volume: whether all are.
    """
    studies = {id(scan.series): study for study in search.studies for scan in study.channels}
    unused = {skip.path: skip.reason for skip in search.skipped}
    series = (
        _judged(each, studies.get(id(each)), unused.get(each.files[0]), volume_index)
        for each in search.series
    )
    files = {
        study: read_study_header(study, volume_index, every_volume=every_volume)
        for study in search.studies
        if not study.is_dicom
    }
    return FoundHeaders(search, tuple(series), files)


def _read_as(study: Study, series: "Series") -> str:
    scans = [scan for scan in study.channels if scan.series is series]
    return scans[0].read_as if scans else ""


def _judged(
    series: "Series", study: Study | None, unused: str | None, volume_index: int | None
) -> "Series":
    """Return a series with its notes and error; unused: why the model uses it in no study."""
    if study is None:
        if unused is None or series.verdict == "skipped":
            return series
        return replace(series, verdict="skipped", reason=unused)
    series = replace(series, notes=study.notes, read_as=_read_as(study, series))
    if series.verdict != "taken":
        return series
    if study.blocker:
        return replace(series, verdict="refused", reason=study.blocker.reason)
    try:
        series.volume(Path(series.label), volume_index)
    except UnsupportedScanError as error:
        return replace(series, verdict="refused", reason=str(error).rstrip("."))
    except Exception as error:  # as in a batch, a failure affects only its study
        return replace(series, verdict="refused", reason=unexpected(error).rstrip("."))
    return series
