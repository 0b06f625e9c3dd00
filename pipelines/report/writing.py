"""The batch report as JSON, in the layout that `report_layout` describes."""

import json
import os
import platform
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, TypeAlias, cast

from ...engine.cores import usable_cores
from ...engine.decoding import encode
from ...io.files.atomic import whole_file
from ..host.memory import PeakMemory
from ..report_layout import (
    MachineLayout,
    ModelLayout,
    Moments,
    ProgramLayout,
    ReportLayout,
    SeamLayout,
    SettingsLayout,
    SkipLayout,
    StageMoments,
    StageSeconds,
    StudyLayout,
    TotalsLayout,
    UseLayout,
)
from ..study.seam_score import SeamScore
from .report import BatchReport, StudyReport

LIBRARIES = ("numpy", "onnxruntime", "SimpleITK", "nibabel", "pydicom")

_Peak: TypeAlias = tuple[int | None, Literal["study", "run"] | None]


@cache  # which saves a look through all packages, twice a study
def program_version() -> str:
    """Version of this program."""
    return version("cuda-cyclegan")


def write_json(report: BatchReport, target: Path) -> None:
    """Write the report whole or not at all. Raises WriteError."""
    with whole_file(target) as part:
        part.write_text(json.dumps(encode(_layout(report)), indent=2) + "\n", encoding="ascii")


def _layout(report: BatchReport) -> ReportLayout:
    model, use, settings = report.model, report.use, report.options.settings()
    return ReportLayout(
        program=ProgramLayout(version=program_version()),
        libraries={"python": platform.python_version(), **_library_versions()},
        machine=_machine(),
        device=report.device,
        model=ModelLayout(model.name, str(model.path), model.sha256),
        settings=SettingsLayout(**asdict(settings), sha256=settings.sha256()),
        output=str(report.output),
        started=report.started,
        seconds=report.seconds,
        interrupted=report.interrupted,
        use=UseLayout(
            wall_seconds=use.wall,
            busy_seconds=use.busy,
            computing_seconds=use.computing,
            devices=use.devices,
            overlap=use.overlap,
            computing_share=use.computing_share,
        ),
        totals=_totals(report),
        studies=tuple(map(_study, report.studies)),
        skipped=tuple(
            SkipLayout(str(skip.path), skip.reason, skip.missed) for skip in report.skipped
        ),
        ignored=report.ignored,
    )


def _study(row: StudyReport) -> StudyLayout:
    failure = row.failure
    peak, counts_from = _peak(row.peak_memory)
    when = {stage: Moments(*moments) for stage, moments in row.when.items()}
    return StudyLayout(
        name=row.name,
        source=str(row.source),
        output=str(row.output),
        status=row.status,
        failure=failure.kind if failure else None,
        reason=failure.reason if failure else None,
        failed_in=failure.stage if failure else None,
        due=row.due,
        notes=row.notes,
        seconds=row.seconds,
        stages=cast("StageSeconds", row.stages),
        when=cast("StageMoments", when),
        voxels=row.voxels,
        voxels_per_second=row.voxels_per_second,
        tiles=row.tiles,
        peak_host_bytes=peak,
        peak_counts_from=counts_from,
        preview=str(row.preview) if row.preview else None,
        seam_score=_seams(row.seams),
    )


def _totals(report: BatchReport) -> TotalsLayout:
    rows = report.translated()
    peak, counts_from = _peak(report.peak_memory)
    return TotalsLayout(
        studies=len(report.studies) + report.not_reached,
        translated=len(rows),
        up_to_date=report.count("up to date"),
        failed=report.count("failed"),
        interrupted=report.count("interrupted"),
        not_reached=report.not_reached,
        stages=cast("StageSeconds", report.stages()),
        voxels=sum(row.voxels for row in rows),
        voxels_per_second=report.voxels_per_second,
        tiles=sum(row.tiles for row in rows),
        peak_host_bytes=peak,
        peak_counts_from=counts_from,
        worst_seam_score=report.worst_seam,
    )


def _seams(score: SeamScore | None) -> SeamLayout | None:
    return score and SeamLayout(*score.axes, worst=score.worst)


def _peak(peak: PeakMemory | None) -> _Peak:
    """Bytes, and since when."""
    return (None, None) if peak is None else (peak.bytes, "run" if peak.of_run else "study")


def _library_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = None
    return versions


def _machine() -> MachineLayout:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MachineLayout(platform.node(), platform.platform(), usable_cores(), memory)
