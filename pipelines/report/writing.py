"""The batch report as JSON; its fields are a promise to scripts.

schema      this layout's name and version, `SCHEMA`
program     name, version
libraries   version of python, numpy, onnxruntime, SimpleITK, nibabel and pydicom; null if missing
machine     host, system, cores (usable), memory_bytes (in all)
device      in words
model       name, path, sha256 (of the file), established: by what it is known how it computes:
            "reference", "code NAME", "graph", "unproven" or "not recorded"
settings    patch [D, H, W], overlap, blend, precision, volume_index (null: none was chosen),
            keep_private, and their sha256, which together with the model's decides whether a result
            is up to date; precision and sha256 are null for jobs that left it to their workers
output      the folder
started     ISO 8601 with zone; of the first run
seconds     of wall time in all, of all runs together, as in `use`
runs        of the program that the batch took: one that goes on after a stop, or is run again,
            adds what it did to the report of the same model, settings and output
interrupted whether a signal ended the batch
use         wall_seconds, from the first work on a study to the last; busy_seconds, of all stages;
            computing_seconds, in which the devices ran the network; devices, how many; overlap,
            busy by wall; computing_share, of each device's wall seconds
totals      studies, translated, up_to_date, failed, interrupted, not_reached: counts;
            of the translated: stages, voxels, voxels_per_second (by wall_seconds), tiles;
            of all: peak_host_bytes, peak_counts_from, worst_seam_score
studies     in order, each with
    name        place of the result below the output folder
    source      the file, or the first of several
    output      path of the result, made or not
    status      "translated", "up to date", "failed" or "interrupted"
    class       of a failure: "unreadable", "unsupported", "preparation", "engine", "memory",
                "occupied", "write" or "internal"; else null
    reason      of a failure, one sentence; else null
    failed_in   of a failure: the stage, or null if it came before the first; else null
    due         why an older result was made anew, else null
    notes       what to know about how the study was taken, such as that it was resampled
    seconds     in which a stage worked on it; waiting for another study is left out
    stages      seconds of read, prepare, copy (to and from a card), infer, blend, finish and
                write, as far as reached
    when        of the same stages: seconds from the start of the batch to the stage's first moment
                and to its last; studies overlap in time
    voxels      of the source; 0 unless translated
    voxels_per_second   by `seconds`; null unless translated
    tiles       0 unless translated
    peak_host_bytes     largest resident memory of the process while the study, and others beside
                        it, were under way; null if there was no work
    peak_counts_from    "study", or "run" where the system keeps only one mark; or null
    preview             path of the picture beside the result, or null
    seam_score          d, h, w and worst, each null without borders; null if not asked for
    verified            of what was computed a second time: places and tiles, counts; error, the
                        relative one of the worst place; allowed, what precision and voxel type
                        explain; seconds; null if not asked for
skipped     path and reason of what looks like a scan, or was asked for, and is none; missed where
            scans may lie behind it, as behind a link that is not followed
ignored     how many files of other kinds lay in the folders

Numbers are plain seconds, bytes and voxels. Undecodable bytes of a path stand as lone surrogates,
as Python's file functions take them.
"""

import json
import os
import platform
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

from ...engine.cores import usable_cores
from ...io.files.atomic import whole_file
from ..host.memory import PeakMemory
from ..settings import TranslateOptions
from ..study.seam_score import SeamScore
from .report import BatchReport, StudyReport

JsonObject: TypeAlias = dict[str, Any]

SCHEMA = "cuda-cyclegan/translate-report/1"
"""Raised when a field changes its meaning or goes; new fields may come without it."""

LIBRARIES = ("numpy", "onnxruntime", "SimpleITK", "nibabel", "pydicom")


@cache  # which saves a look through all packages, twice a study
def program_version() -> str:
    """Version of this program."""
    return version("cuda-cyclegan")


def write_json(report: BatchReport, target: Path) -> None:
    """Write the report whole or not at all. Raises WriteError."""
    with whole_file(target) as part:
        part.write_text(json.dumps(to_json(report), indent=2) + "\n", encoding="ascii")


def to_json(report: BatchReport) -> JsonObject:
    """The report as JSON values, as the module describes them."""
    return {
        "schema": SCHEMA,
        "program": {"name": "cuda-cyclegan", "version": program_version()},
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
        "totals": _totals(report),
        "studies": [_study(row) for row in report.studies],
        "skipped": [
            {"path": str(skip.path), "reason": skip.reason, "missed": skip.missed}
            for skip in report.skipped
        ],
        "ignored": report.ignored,
    }


def _settings(options: TranslateOptions) -> JsonObject:
    if options.precision is None:
        named = replace(options, precision="fp32").settings()
        return {**asdict(named), "precision": None, "sha256": None}
    settings = options.settings()
    return {**asdict(settings), "sha256": settings.sha256()}


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
        "when": {stage: list(moments) for stage, moments in row.when.items()},
        "voxels": row.voxels,
        "voxels_per_second": row.voxels_per_second,
        "tiles": row.tiles,
        **_peak(row.peak_memory),
        "preview": str(row.preview) if row.preview else None,
        "seam_score": _seams(row.seams),
        "verified": row.verified and asdict(row.verified),
    }


def _totals(report: BatchReport) -> JsonObject:
    rows = report.translated()
    return {
        "studies": len(report.studies) + report.not_reached,
        "translated": len(rows),
        "up_to_date": report.count("up to date"),
        "failed": report.count("failed"),
        "interrupted": report.count("interrupted"),
        "not_reached": report.not_reached,
        "stages": report.stages(),
        "voxels": sum(row.voxels for row in rows),
        "voxels_per_second": report.voxels_per_second,
        "tiles": sum(row.tiles for row in rows),
        **_peak(report.peak_memory),
        "worst_seam_score": report.worst_seam,
    }


def _seams(score: SeamScore | None) -> JsonObject | None:
    return score and {**dict(zip("dhw", score.axes, strict=True)), "worst": score.worst}


def _peak(peak: PeakMemory | None) -> JsonObject:
    return {
        "peak_host_bytes": peak.bytes if peak else None,
        "peak_counts_from": None if peak is None else "run" if peak.of_run else "study",
    }


def _library_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = None
    return versions


def _machine() -> JsonObject:
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
