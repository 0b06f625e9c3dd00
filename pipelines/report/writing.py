"""The batch report as JSON; its fields, told in docs/reports.md, are a promise to scripts."""

import platform
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

from ...engine.cores import usable_cores
from ...engine.probe.gpus import Energy
from ...io.files.machine_limits import physical_memory
from ..host.memory import PeakMemory
from ..program import program_version
from ..settings import TranslateOptions
from ..study.figures import SeamScore
from .report import BatchReport, StudyReport

JsonObject: TypeAlias = dict[str, Any]

SCHEMA = "cuda-cyclegan/translate-report/1"
"""Raised when a field changes its meaning or goes; new fields may come without it."""

LIBRARIES = {
    **{name: (name,) for name in ("numpy", "onnxruntime", "SimpleITK", "nibabel", "pydicom")},
    "cuda-bindings": ("cuda-bindings",),
    "cuDNN": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "cuDNN frontend": ("nvidia-cudnn-frontend",),
}
"""By name, the packages that may hold it."""


def to_json(report: BatchReport) -> JsonObject:
    """The report as JSON values, as docs/reports.md describes them."""
    joules = report.shared_joules()
    return {
        "schema": SCHEMA,
        "program": {"name": "cuda-cyclegan", "version": program_version()},
        "command": list(report.command),
        "libraries": {"python": platform.python_version(), **_library_versions()},
        "machine": _machine(),
        "device": report.device,
        "model": {
            "name": report.model.name,
            "path": str(report.model.path),
            "sha256": report.model.sha256,
            "established": report.model.established,
        },
        "settings": _settings(report.options),
        "output": str(report.output),
        "started": report.started,
        "seconds": report.seconds,
        "runs": report.runs,
        "interrupted": report.interrupted,
        "use": {
            "wall_seconds": report.use.wall,
            "busy_seconds": report.use.busy,
            "computing_seconds": report.use.computing,
            "devices": report.use.devices,
            "overlap": report.use.overlap,
            "computing_share": report.use.computing_share,
        },
        "energy": _energy(report.energy),
        "totals": _totals(report),
        "studies": [
            {**_study(row), "apportioned_joules": joules.get(row.name)} for row in report.studies
        ],
        "skipped": [
            {
                "path": str(skip.path),
                "reason": skip.reason,
                "missed": skip.missed,
                "kind": skip.kind,
            }
            for skip in report.skipped
        ],
        "ignored": report.ignored,
    }


def _energy(energy: Energy | None) -> JsonObject | None:
    return energy and {**asdict(energy), "average_watts": energy.watts}


def _settings(options: TranslateOptions) -> JsonObject:
    if options.precision is None:
        named = replace(options, precision="fp32").settings()
        return {**named.chosen(), "precision": None, "sha256": None}
    settings = options.settings()
    return {**settings.chosen(), "sha256": settings.sha256()}


def _study(row: StudyReport) -> JsonObject:
    failure = row.failure
    return {
        "name": row.name,
        "source": str(row.source),
        "output": str(row.output),
        "status": row.status,
        "class": failure.kind if failure else None,
        "reason": failure.reason if failure else None,
        "failed_in": failure.stage if failure else None,
        "due": row.due,
        "notes": list(row.notes),
        "seconds": row.seconds,
        "stages": dict(row.stages),
        "when": {stage: list(interval) for stage, interval in row.when.items()},
        "voxels": row.voxels,
        "voxels_per_second": row.voxels_per_second,
        "tiles": row.tiles,
        **_peak(row.peak_memory),
        "preview": str(row.preview) if row.preview else None,
        "preview_drawn": row.drawn,
        "seam_score": _seams(row.seams),
        "verified": row.verified and asdict(row.verified),
        "cycle": row.cycle and {**asdict(row.cycle), "marked": row.cycle.is_marked},
        "maps": [str(place) for place in row.maps],
        "sidecars": [str(place) for place in row.sidecars],
        "spread": row.spread and asdict(row.spread),
        "source_content": row.source_content and asdict(row.source_content),
        "volumes": row.volumes,
        "output_content": row.output_content and asdict(row.output_content),
    }


def _totals(report: BatchReport) -> JsonObject:
    rows = report.translated()
    return {
        "studies": len(report.studies) + report.not_reached,
        "translated": len(rows),
        "up_to_date": report.count("up to date"),
        "previews_drawn": report.previews_drawn,
        "failed": report.count("failed"),
        "interrupted": report.count("interrupted"),
        "not_reached": report.not_reached,
        "stages": report.stages(),
        "voxels": sum(row.voxels for row in rows),
        "voxels_per_second": report.voxels_per_second,
        "tiles": sum(row.tiles for row in rows),
        **_peak(report.peak_memory),
        "worst_seam_score": report.worst_seam,
        "cycle_marked": sum(cycle.is_marked for cycle in report.cycles),
        "worst_spread": report.worst_spread,
    }


def _seams(score: SeamScore | None) -> JsonObject | None:
    return score and {**dict(zip("dhw", score.axes, strict=True)), "worst": score.worst}


def _peak(peak: PeakMemory | None) -> JsonObject:
    return {
        "peak_host_bytes": peak.bytes if peak else None,
        "peak_counts_from": None if peak is None else "run" if peak.of_run else "study",
    }


def _library_versions() -> dict[str, str | None]:
    return {
        library: next(filter(None, map(_version, packages)), None)
        for library, packages in LIBRARIES.items()
    }


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine() -> JsonObject:
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": usable_cores(),
        "memory_bytes": physical_memory(),
    }
