"""`discover --json`; its fields are a promise to scripts."""

import json
from hashlib import sha256
from typing import Any

from ..io.dicom_series import Series
from ..io.discovery import Discovery

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
            "skipped": [{"path": str(row.path), "reason": row.reason} for row in found.skipped],
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
        "reason": series.reason,
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
