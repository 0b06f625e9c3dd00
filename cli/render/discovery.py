"""Search results as tables and as JSON, whose fields are a stable interface for scripts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...io.discovery import Discovery
from ...io.errors import UnsupportedScanError
from ...io.formats.registry import SUFFIXES, suffix_of
from ...io.reading import FileHeader, read_study_header
from ...io.volume import Study
from .documents import json_text
from .skipped import skipped_scans
from .tables import Row, TextTable
from .text import alike_lines, counted, flagged, from_here, printable

if TYPE_CHECKING:
    from ...io.dicom.acceptance import Verdict
    from ...io.dicom.series import Series


@dataclass(frozen=True, slots=True)
class Found:
    """Search result with the header of each study that is no DICOM series.

    search: result of the search. headers: of each such study. show_phi: whether descriptions and
    identifiers are shown. volume_index: which volume of a file with several is used.
    """

    search: Discovery
    headers: Mapping[Study, FileHeader]
    show_phi: bool = False
    volume_index: int | None = None

    @property
    def series(self) -> "tuple[Series, ...]":
        """All series, with the notes and errors of their studies."""
        studies = {
            id(scan.series): study for study in self.search.studies for scan in study.channels
        }
        unused = {skip.path: skip.reason for skip in self.search.skipped}
        return tuple(
            self._row_of(each, studies.get(id(each)), unused.get(each.files[0]))
            for each in self.search.series
        )

    @property
    def refused(self) -> int:
        """Studies that cannot be translated."""
        verdicts = {series.files: series.verdict for series in self.series}
        return sum(
            "refused" in [verdicts[scan.files] for scan in study.channels]
            if study.format == "dicom"
            else self.headers[study].refusal is not None
            for study in self.search.studies
        )

    @property
    def failures(self) -> int:
        """Series and files that cannot be read completely."""
        series = sum(each.is_incomplete for each in self.search.series)
        return series + sum(header.unreadable is not None for header in self.headers.values())

    def _row_of(self, series: "Series", study: Study | None, unused: str | None) -> "Series":
        """Return a series with its notes; unused: why the model uses it in no study."""
        if study is None:
            if unused is None or series.verdict == "skipped":
                return series
            return replace(series, verdict="skipped", reason=unused)
        series = replace(series, notes=study.notes)
        if series.verdict != "taken":
            return series
        if study.blocker:
            return replace(series, verdict="refused", reason=study.blocker.reason)
        try:
            series.volume(Path(series.label), self.volume_index)
        except UnsupportedScanError as error:
            return replace(series, verdict="refused", reason=str(error).rstrip("."))
        return series


def looked_at(
    search: Discovery,
    *,
    show_phi: bool,
    volume_index: int | None = None,
    every_volume: bool = False,
) -> Found:
    """Read the headers of all files that were found; every_volume: whether all volumes of a file
    are used.
    """
    files = (study for study in search.studies if study.format != "dicom")
    headers = {
        study: read_study_header(study, volume_index, every_volume=every_volume) for study in files
    }
    return Found(search, headers, show_phi, volume_index)


def lines(found: Found, columns: int | None) -> Iterator[str]:
    """Return one row per study or series. columns: of the terminal; None for no limit."""
    rows = [_row(series, found.show_phi) for series in found.series]
    rows += [_file_row(study, header, found.show_phi) for study, header in found.headers.items()]
    texts = ["description"] if found.show_phi else []
    rows += [
        Row(_path(skip.path), [format_, "", "", "", "skipped", *("" for _ in texts)])
        for skip in found.search.skipped
        if skip.kind and (format_ := SUFFIXES.get(suffix_of(skip.path)))
    ]
    head = Row("study", ["kind", "images", "voxels", "mm", "verdict", *texts])
    yield from TextTable(head, sorted(rows, key=lambda row: row.name)).lines(columns)


def reasons(found: Found) -> Iterator[str]:
    """Return the reasons why scans are rejected or unused, then the totals."""
    search = found.search
    for series in sorted(found.series, key=_name):
        if series.verdict == "refused":
            verb = "failed" if series.is_incomplete else "refused"
            yield f"{verb}: {_about(_name(series), series.explanation)}"
    for study, header in found.headers.items():
        if header.refusal:
            verb = "failed" if header.unreadable else "refused"
            yield f"{verb}: {_about(_path(study.files[0]), header.refusal)}"
    for skip in search.skipped:
        if skip.missed or skip.kind:
            continue  # reported as a failure, or in a group
        yield f"skipped: {_about(_path(skip.path), skip.reason)}"
    yield from skipped_scans(search.skipped)
    yield from alike_lines("note", _notes(found), "series or files")
    parts = [f"{len(search.studies) - found.refused} to translate"]
    parts += [f"{found.refused} refused"] if found.refused else []
    parts += [f"{len(search.skipped)} skipped"] if search.skipped else []
    parts += [f"{counted(search.ignored, 'other file')}"] if search.ignored else []
    yield f"Found: {', '.join(parts)}"


def _notes(found: Found) -> Iterator[tuple[str, str]]:
    for series in sorted(found.series, key=_name):
        if series.verdict == "skipped":
            continue
        for note in series.notes:
            yield _name(series), printable(note)
    for study, header in found.headers.items():
        for note in (*header.notes, *study.notes):
            yield _path(study.files[0]), printable(note)


def _row(series: "Series", show_phi: bool) -> Row:
    return Row(
        _name(series),
        [
            printable(series.modality),
            str(series.images),
            *_grid(series.extents, series.spacing),
            _shown(series.verdict),
            *([printable(series.description)] if show_phi else []),
        ],
    )


def _file_row(study: Study, header: FileHeader, show_phi: bool) -> Row:
    verdict = _shown("refused" if header.refusal else "taken")
    grid = _grid(header.extents, header.spacing)
    texts = [""] if show_phi else []
    return Row(_path(study.files[0]), [study.format, "", *grid, verdict, *texts])


def _shown(verdict: "Verdict") -> str:
    return "accepted" if verdict == "taken" else verdict


def _grid(extents: Iterable[int], spacing: Iterable[float]) -> tuple[str, str]:
    return "x".join(map(str, extents)), "x".join(f"{length:.3g}" for length in spacing)


def _name(series: "Series") -> str:
    return _path(Path(series.folder) / series.label)


def _path(path: Path) -> str:
    return from_here(printable(str(path)))


def _about(name: str, reason: str) -> str:
    """Return a reason after the name of what it is about, unless it begins with that name."""
    words = from_here(printable(flagged(reason)))
    return words if words.startswith(name) else f"{name}: {words}"


SCHEMA = "cuda-cyclegan/discovery/1"
"""Version of the layout: raised when a field changes its meaning or disappears, not for new fields.
"""


def text(found: Found) -> str:
    """Encode as a JSON object, with descriptions and identifiers only if they are to be shown."""
    search = found.search
    return json_text(
        {
            "schema": SCHEMA,
            "series": [_series(series, found.show_phi) for series in found.series],
            "files": [_file(study, header) for study, header in found.headers.items()],
            "skipped": [
                {
                    "path": row.path,
                    "reason": flagged(row.reason),
                    "missed": row.missed,
                    "kind": row.kind,
                }
                for row in search.skipped
            ],
            "ignored": search.ignored,
        }
    )


def _file(study: Study, header: FileHeader) -> dict[str, Any]:
    channels = [{"name": scan.channel, "path": scan.files[0]} for scan in study.scans]
    return {
        "path": study.files[0],
        **({"channels": channels} if channels else {}),
        "format": study.format,
        "verdict": "refused" if header.refusal else "taken",
        "reason": header.refusal and flagged(header.refusal),
        "failed": header.unreadable is not None,
        "volumes": header.volumes,
        "extents": header.extents,
        "spacing": header.spacing,
        "notes": [*header.notes, *study.notes],
    }


def _series(series: "Series", show_phi: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "label": series.label,
        "folder": series.folder,
        "study": sha256(series.study.encode(errors="replace")).hexdigest()[:8],
        "modality": series.modality,
        "number": series.number,
        "verdict": series.verdict,
        "reason": series.reason and flagged(series.reason),
        "failed": series.is_incomplete,
        "kind": series.kind,
        "notes": series.notes,
        "images": series.images,
        "duplicates": series.duplicates,
        "volumes": len(series.volumes),
        "extents": series.extents,
        "spacing": series.spacing,
        "files": series.files,
    }
    if show_phi:
        row |= {
            "description": series.description,
            "study_uid": series.study,
            "series_uid": series.uid,
        }
    return row
