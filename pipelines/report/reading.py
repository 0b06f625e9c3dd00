"""Batch reports back from the JSON that `report_json` writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ...engine.options import Precision
from ..errors import ReportFileError
from ..host.memory import PeakMemory
from ..settings import Blend, TranslateSettings
from ..stopwatch import STAGES, Stage
from ..study.seam_score import SeamScore
from .fields import Fields, read_fields
from .report import BatchReport, Failure, FailureClass, ModelName, Skip, Status, StudyReport, Use
from .writing import SCHEMA

_STATUSES: tuple[Status, ...] = get_args(Status)
_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)
_BLENDS: tuple[Blend, ...] = get_args(Blend)
_PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a batch ran. memory: bytes in all."""

    host: str
    system: str
    cores: int
    memory: int


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report and what only its file says.

    program: version of this program then. libraries: their versions, None if not installed.
    """

    file: Path
    batch: BatchReport
    program: str
    libraries: Mapping[str, str | None]
    machine: Machine


def read_report(file: Path) -> StoredReport:
    """The report in a file; fields that this version does not know are passed over.

    Raises ReportFileError for a file that is foreign, of a newer layout, or damaged.
    """
    fields = read_fields(file)
    _check_schema(fields)
    machine = fields.inner("machine")
    libraries = fields.inner("libraries")
    return StoredReport(
        file=file,
        batch=_batch(fields),
        program=fields.inner("program").text("version"),
        libraries={name: libraries.text_or_none(name) for name in libraries.content},
        machine=Machine(
            machine.text("host"),
            machine.text("system"),
            machine.whole("cores"),
            machine.whole("memory_bytes"),
        ),
    )


def _check_schema(fields: Fields) -> None:
    schema = fields.content.get("schema")
    kind, _, number = SCHEMA.rpartition("/")
    if schema == SCHEMA:
        return
    if isinstance(schema, str) and schema.rpartition("/")[0] == kind:
        raise ReportFileError(
            f"{fields.file} has layout {schema.rpartition('/')[2]} and this version reads layout "
            f"{number}; use the version of cuda-cyclegan that wrote it, or a newer one."
        )
    raise ReportFileError(
        f"{fields.file} is no report of a batch; name a file that 'translate setting report' wrote."
    )


def _batch(fields: Fields) -> BatchReport:
    model = fields.inner("model")
    return BatchReport(
        model=ModelName(model.text("name"), Path(model.text("path")), model.text("sha256")),
        settings=_settings(fields.inner("settings")),
        device=fields.text("device"),
        output=Path(fields.text("output")),
        started=fields.text("started"),
        seconds=fields.number("seconds"),
        use=_use(fields.inner("use")) if "use" in fields.content else Use(0.0, 0.0, 0.0, 0),
        studies=tuple(_study(row) for row in fields.each("studies")),
        skipped=tuple(
            Skip(Path(row.text("path")), row.text("reason"), row.flag("missed"))
            for row in fields.each("skipped")
        ),
        ignored=fields.whole("ignored"),
        not_reached=fields.inner("totals").whole("not_reached"),
    )


def _use(fields: Fields) -> Use:
    return Use(
        wall=fields.number("wall_seconds"),
        busy=fields.number("busy_seconds"),
        computing=fields.number("computing_seconds"),
        devices=fields.whole("devices"),
    )


def _settings(fields: Fields) -> TranslateSettings:
    depth, height, width = fields.wholes("patch", 3)
    return TranslateSettings(
        patch=(depth, height, width),
        overlap=fields.number("overlap"),
        blend=fields.word("blend", _BLENDS),
        precision=fields.word("precision", _PRECISIONS),
        volume_index=fields.whole_or_none("volume_index"),
        keep_private=fields.content.get("keep_private") is True,
    )


def _study(fields: Fields) -> StudyReport:
    status: Status = fields.word("status", _STATUSES)
    stages = fields.inner("stages")
    preview = fields.text_or_none("preview")
    return StudyReport(
        name=fields.text("name"),
        source=Path(fields.text("source")),
        output=Path(fields.text("output")),
        status=status,
        due=fields.text_or_none("due"),
        seconds=fields.number("seconds"),
        stages={stage: stages.number(stage) for stage in STAGES if stage in stages.content},
        when=_when(fields.inner_or_none("when")),
        voxels=fields.whole("voxels"),
        tiles=fields.whole("tiles"),
        peak_memory=_peak(fields),
        preview=Path(preview) if preview else None,
        seams=_seams(fields.inner_or_none("seam_score")),
        failure=_failure(fields) if status == "failed" else None,
        notes=fields.texts("notes") if "notes" in fields.content else (),
    )


def _when(fields: Fields | None) -> dict[Stage, tuple[float, float]]:
    if fields is None:  # from before it was recorded
        return {}
    return {stage: fields.pair(stage) for stage in STAGES if stage in fields.content}


def _failure(fields: Fields) -> Failure:
    return Failure(
        fields.word("class", _CLASSES),
        fields.text("reason"),
        fields.word_or_none("failed_in", STAGES),
    )


def _peak(fields: Fields) -> PeakMemory | None:
    peak = fields.whole_or_none("peak_host_bytes")
    if peak is None:
        return None
    counts_from = fields.word("peak_counts_from", ("study", "run"))
    return PeakMemory(peak, of_run=counts_from == "run")


def _seams(fields: Fields | None) -> SeamScore | None:
    if fields is None:
        return None
    d, h, w = (fields.number_or_none(axis) for axis in "dhw")
    return SeamScore((d, h, w))
