"""What a search found, as tables and as JSON, whose fields are a promise to scripts."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...io.dicom.series import Series
from ...io.discovery import Discovery
from .terminal.settings import flagged
from .terminal.tables import Row, TextTable
from .terminal.text import counted, printable


def lines(found: Discovery, columns: int | None) -> Iterator[str]:
    """A row a study or series; columns: width of the terminal, or None for no limit."""
    rows = [_row(series) for series in found.series]
    rows += [
        Row(printable(str(study.files[0])), [study.format, "", "", "", "taken"])
        for study in found.studies
        if study.format != "dicom"
    ]
    head = Row("study", ["kind", "images", "voxels", "mm", "verdict"])
    yield from TextTable(head, sorted(rows, key=lambda row: row.name)).lines(columns)


def reasons(found: Discovery) -> Iterator[str]:
    """Why something is refused or left out, and what all comes to."""
    for series in found.series:
        if series.verdict == "refused":
            yield f"refused: {_name(series)}: {printable(flagged(series.told))}"
    for skip in found.skipped:
        if skip.missed:
            continue  # told as a failure
        yield f"skipped: {printable(str(skip.path))}: {printable(flagged(skip.reason))}"
    for series in found.series:
        if series.verdict == "skipped":
            continue
        for note in series.notes:
            yield f"note: {_name(series)}: {note}"
        if len(series.volumes) > 1:
            yield f"note: {_name(series)}: {len(series.volumes)} volumes; --volume N takes one"
    refused = sum(series.verdict == "refused" for series in found.series)
    parts = [f"{len(found.studies) - refused} to translate"]
    parts += [f"{refused} refused"] if refused else []
    parts += [f"{len(found.skipped)} skipped"] if found.skipped else []
    parts += [f"{counted(found.ignored, 'other file')}"] if found.ignored else []
    yield f"Found: {', '.join(parts)}"


def _row(series: Series) -> Row:
    return Row(
        _name(series),
        [
            printable(series.modality),
            str(series.images),
            "x".join(map(str, series.extents)),
            "x".join(f"{length:.3g}" for length in series.spacing),
            series.verdict,
        ],
    )


def _name(series: Series) -> str:
    return printable(str(Path(series.folder) / series.label))


SCHEMA = "cuda-cyclegan/discovery/1"
"""Raised when a field changes its meaning or goes; new fields may come without it."""


def text(found: Discovery, *, show_phi: bool) -> str:
    """One JSON object. Descriptions and identifiers are in it only where show_phi asks for them."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "series": [_series(series, show_phi) for series in found.series],
            "files": [
                {"path": str(study.files[0]), "format": study.format}
                for study in found.studies
                if study.format != "dicom"
            ],
            "skipped": [
                {"path": str(row.path), "reason": flagged(row.reason), "missed": row.missed}
                for row in found.skipped
            ],
            "ignored": found.ignored,
        },
        indent=2,
    )


def _series(series: Series, show_phi: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "label": series.label,
        "folder": str(series.folder),
        "study": sha256(series.study.encode(errors="replace")).hexdigest()[:8],
        "modality": series.modality,
        "number": series.number,
        "verdict": series.verdict,
        "reason": series.reason and flagged(series.reason),
        "notes": list(series.notes),
        "images": series.images,
        "duplicates": series.duplicates,
        "volumes": len(series.volumes),
        "extents": list(series.extents),
        "spacing": list(series.spacing),
        "files": [str(path) for path in series.files],
    }
    if show_phi:
        told |= {
            "description": series.description,
            "study_uid": series.study,
            "series_uid": series.uid,
        }
    return told
