"""Search results as tables and as JSON, whose fields are a stable interface for scripts."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...io.formats.registry import SUFFIXES, suffix_of
from ...io.found_headers import FoundHeaders
from ...io.reading import FileHeader
from ...io.volume import Study
from .documents import json_text
from .skipped import skipped_scans
from .tables import Row, TextTable
from .text import alike_lines, counted, flagged, from_here, printable

if TYPE_CHECKING:
    from ...io.dicom.acceptance import Verdict
    from ...io.dicom.series import Series


def lines(found: FoundHeaders, columns: int | None, *, show_phi: bool) -> Iterator[str]:
    """Return one row per study or series.

    columns: of the terminal; None for no limit. show_phi: whether descriptions are shown.
    """
    rows = [_row(series, show_phi=show_phi) for series in found.series]
    rows += [_file_row(study, header, show_phi=show_phi) for study, header in found.files.items()]
    texts = ["description"] if show_phi else []
    rows += [
        Row(_path(skip.path), [format_, "", "", "", "skipped", "", *("" for _ in texts)])
        for skip in found.search.skipped
        if skip.kind and (format_ := SUFFIXES.get(suffix_of(skip.path)))
    ]
    head = Row("study", ["kind", "images", "voxels", "mm", "verdict", "read as", *texts])
    yield from TextTable(head, sorted(rows, key=lambda row: row.name)).lines(columns)


def reasons(found: FoundHeaders) -> Iterator[str]:
    """Return the reasons why scans are rejected or unused, then the totals."""
    search = found.search
    for series in sorted(found.series, key=_name):
        if series.verdict == "refused":
            verb = "failed" if series.is_incomplete else "rejected"
            yield f"{verb}: {_about(_name(series), series.explanation)}"
    for study, header in found.files.items():
        if header.refusal:
            verb = "failed" if header.unreadable else "rejected"
            yield f"{verb}: {_about(_path(study.files[0]), header.refusal)}"
    for skip in search.skipped:
        if skip.missed or skip.kind:
            continue  # reported as a failure, or in a group
        yield f"skipped: {_about(_path(skip.path), skip.reason)}"
    yield from skipped_scans(search.skipped)
    yield from alike_lines("note", _notes(found), "series or files")
    parts = [f"{len(search.studies) - found.refused} to translate"]
    parts += [f"{found.refused} rejected"] if found.refused else []
    parts += [f"{len(search.skipped)} skipped"] if search.skipped else []
    parts += [f"{counted(search.ignored, 'other file')}"] if search.ignored else []
    yield f"Found: {', '.join(parts)}"


def _notes(found: FoundHeaders) -> Iterator[tuple[str, str]]:
    for series in sorted(found.series, key=_name):
        if series.verdict == "skipped":
            continue
        for note in series.notes:
            yield _name(series), printable(note)
    for study, header in found.files.items():
        for note in (*header.notes, *study.notes):
            yield _path(study.files[0]), printable(note)


def _row(series: "Series", *, show_phi: bool) -> Row:
    return Row(
        _name(series),
        [
            printable(series.modality),
            str(series.images),
            *_grid(series.extents, series.spacing),
            _shown(series.verdict),
            series.read_as,
            *([printable(series.description)] if show_phi else []),
        ],
    )


def _file_row(study: Study, header: FileHeader, *, show_phi: bool) -> Row:
    verdict = _shown("refused" if header.refusal else "taken")
    grid = _grid(header.extents, header.spacing)
    texts = [""] if show_phi else []
    cells = [study.format, "", *grid, verdict, printable(study.read_as), *texts]
    return Row(_path(study.files[0]), cells)


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


def text(found: FoundHeaders, *, show_phi: bool) -> str:
    """Encode as a JSON object; show_phi: whether with descriptions and identifiers."""
    search = found.search
    return json_text(
        {
            "schema": SCHEMA,
            "series": [_series(series, show_phi=show_phi) for series in found.series],
            "files": [_file(study, header) for study, header in found.files.items()],
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
            "notes": [flagged(note) for note in search.notes],
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
        "read_as": study.read_as,
    }


def _series(series: "Series", *, show_phi: bool) -> dict[str, Any]:
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
        "read_as": series.read_as,
        "files": series.files,
    }
    if show_phi:
        row |= {
            "description": series.description,
            "study_uid": series.study,
            "series_uid": series.uid,
        }
    return row
