"""Batch reports back from the files that `report_json` writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...engine.decoding import FieldError, Json, decode, parse
from ..errors import ReportFileError
from ..host.memory import PeakMemory
from ..report_layout import SCHEMA, MachineLayout, ReportLayout, SeamLayout, StudyLayout, UseLayout
from ..settings import TranslateOptions
from ..stopwatch import STAGES
from ..study.seam_score import SeamScore
from .report import BatchReport, Failure, ModelName, Skip, StudyReport, Use

_SMALLEST = 1e-9
"""What is smaller was not measured, and would break plots and quotients."""


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report and what only its file says.

    program: version of this program then. libraries: their versions, None if not installed.
    """

    file: Path
    batch: BatchReport
    program: str
    libraries: Mapping[str, str | None]
    machine: MachineLayout


def read_report(file: Path) -> StoredReport:
    """The report in a file; fields that this version does not know are passed over.

    Raises ReportFileError for a file that is foreign, of a newer layout, or damaged.
    """
    content = _content(file)
    _check_schema(file, content.get("schema"))
    try:
        stored = decode(ReportLayout, content)
    except FieldError as error:
        raise ReportFileError(
            f"{file} is damaged: its field {error.path} {error.reason}; write the report again."
        ) from error
    return StoredReport(
        file=file,
        batch=_batch(stored),
        program=stored.program.version,
        libraries=stored.libraries,
        machine=stored.machine,
    )


def _content(file: Path) -> dict[str, Json]:
    try:
        content = parse(file.read_bytes(), finite=True)
    except OSError as error:
        raise ReportFileError(f"{file} cannot be read: {error.strerror}.") from error
    except FieldError as error:
        raise ReportFileError(
            f"{file} is not JSON; name a file that 'translate setting report' wrote."
        ) from error
    if not isinstance(content, dict):
        raise ReportFileError(
            f"{file} holds no JSON object; name a file that 'translate setting report' wrote."
        )
    return content


def _check_schema(file: Path, schema: Json) -> None:
    kind, _, number = SCHEMA.rpartition("/")
    if schema == SCHEMA:
        return
    if isinstance(schema, str) and schema.rpartition("/")[0] == kind:
        raise ReportFileError(
            f"{file} has layout {schema.rpartition('/')[2]} and this version reads layout "
            f"{number}; use the version of cuda-cyclegan that wrote it, or a newer one."
        )
    raise ReportFileError(
        f"{file} is no report of a batch; name a file that 'translate setting report' wrote."
    )


def _batch(stored: ReportLayout) -> BatchReport:
    model, settings = stored.model, stored.settings
    return BatchReport(
        model=ModelName(model.name, Path(model.path), model.sha256),
        options=TranslateOptions(
            patch=settings.patch,
            overlap=_measured(settings.overlap),
            blend=settings.blend,
            precision=settings.precision,
            volume_index=settings.volume_index,
            keep_private=settings.keep_private,
        ),
        device=stored.device,
        output=Path(stored.output),
        started=stored.started,
        seconds=_measured(stored.seconds),
        use=_use(stored.use),
        studies=tuple(map(_study, stored.studies)),
        skipped=tuple(Skip(Path(skip.path), skip.reason, skip.missed) for skip in stored.skipped),
        ignored=stored.ignored,
        not_reached=stored.totals.not_reached,
    )


def _use(stored: UseLayout) -> Use:
    return Use(
        wall=_measured(stored.wall_seconds),
        busy=_measured(stored.busy_seconds),
        computing=_measured(stored.computing_seconds),
        devices=stored.devices,
    )


def _study(stored: StudyLayout) -> StudyReport:
    stages, when = stored.stages, stored.when or {}
    return StudyReport(
        name=stored.name,
        source=Path(stored.source),
        output=Path(stored.output),
        status=stored.status,
        due=stored.due,
        seconds=_measured(stored.seconds),
        stages={s: _measured(took) for s in STAGES if (took := stages.get(s)) is not None},
        when={s: (moment.start, moment.stop) for s in STAGES if (moment := when.get(s))},
        voxels=stored.voxels,
        tiles=stored.tiles,
        peak_memory=_peak(stored),
        preview=Path(stored.preview) if stored.preview else None,
        seams=_seams(stored.seam_score),
        failure=_failure(stored),
        notes=stored.notes,
    )


def _failure(stored: StudyLayout) -> Failure | None:
    if stored.status != "failed" or stored.failure is None or stored.reason is None:
        return None
    return Failure(stored.failure, stored.reason, stored.failed_in)


def _peak(stored: StudyLayout) -> PeakMemory | None:
    if stored.peak_host_bytes is None:
        return None
    return PeakMemory(stored.peak_host_bytes, of_run=stored.peak_counts_from == "run")


def _seams(stored: SeamLayout | None) -> SeamScore | None:
    if stored is None:
        return None
    d, h, w = (score and _measured(score) for score in (stored.d, stored.h, stored.w))
    return SeamScore((d, h, w))


def _measured(amount: float) -> float:
    return 0.0 if amount < _SMALLEST else amount
