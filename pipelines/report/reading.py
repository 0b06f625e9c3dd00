"""Batch reports back from the JSON that `report.writing` writes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

from msgspec import Meta, Struct, defstruct

from ...engine.decoding import FieldError, Json, decode, parse
from ...engine.options import Precision
from ...engine.probe.gpus import Energy
from ...io.files.documents import read_document
from ..errors import ReportFileError
from ..host.memory import PeakMemory
from ..settings import BEFORE, CHANGING_RESULTS, TranslateOptions, TranslateSettings
from ..stopwatch import STAGES, Stage
from ..study.figures import CycleError, SeamScore, SpreadFigures, Verified
from .report import (
    BatchReport,
    Content,
    Failure,
    FailureClass,
    ModelName,
    Skip,
    StudyReport,
    StudyStatus,
    Use,
)
from .writing import SCHEMA, to_json

_SMALLEST, _LARGEST = 1e-9, 10**15
"""No time, count or size is beyond them; what is would break plots and quotients."""

_Amount: TypeAlias = Annotated[float, Meta(ge=0, le=_LARGEST)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Extent: TypeAlias = Annotated[int, Meta(ge=1, le=_LARGEST)]
_Index: TypeAlias = _Count | None
_Value = TypeVar("_Value")


class _Interval(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    start: _Amount
    stop: _Amount

    def __post_init__(self) -> None:
        if self.stop < self.start:
            raise ValueError("must be a start and an end")


class _Stages(TypedDict, Generic[_Value], total=False):
    receive: _Value
    read: _Value
    prepare: _Value
    copy: _Value
    infer: _Value
    blend: _Value
    finish: _Value
    write: _Value
    send: _Value


class _Seams(Struct, frozen=True):
    d: _Amount | None = None
    h: _Amount | None = None
    w: _Amount | None = None


class _Verified(Struct, frozen=True):
    places: _Count
    tiles: _Count
    error: _Amount
    allowed: _Amount
    seconds: _Amount


class _Cycle(Struct, frozen=True):
    error: _Amount
    unit: _Amount
    back: str
    limit: _Amount | None = None


class _Spread(Struct, frozen=True):
    flips: _Count
    deviation: _Amount


class _Content(Struct, frozen=True):
    files: _Count
    bytes: _Count
    sha256: str


class _Study(Struct, frozen=True, kw_only=True, rename={"failure": "class"}):
    name: str
    source: Path
    output: Path
    status: StudyStatus
    failure: FailureClass | None = None
    reason: str | None = None
    failed_in: Stage | None = None
    due: str | None = None
    notes: tuple[str, ...] = ()
    seconds: _Amount
    stages: _Stages[_Amount]
    when: _Stages[_Interval] | None = None
    voxels: _Count
    tiles: _Count
    peak_host_bytes: _Count | None = None
    peak_counts_from: Literal["study", "run"] | None = None
    preview: str | None = None
    seam_score: _Seams | None = None
    verified: _Verified | None = None
    cycle: _Cycle | None = None
    maps: tuple[Path, ...] = ()
    sidecars: tuple[Path, ...] = ()
    spread: _Spread | None = None
    preview_drawn: bool = False
    source_content: _Content | None = None
    output_content: _Content | None = None
    volumes: _Count = 1

    def __post_init__(self) -> None:
        if self.status == "failed" and None in (self.failure, self.reason):
            raise ValueError("must have a class and a reason, since it failed")


def _settings_of_reports() -> type[Struct]:
    """The settings that change results, within bounds. Reports from before one came lack it."""
    bounded: dict[str, Any] = {
        "patch": tuple[_Extent, _Extent, _Extent],
        "overlap": _Amount,
        "precision": Precision | None,
        "volume_index": _Index,
    }
    settings: list[Any] = []
    for item in fields(TranslateSettings):
        if item.name in CHANGING_RESULTS:
            kind = bounded.get(item.name, item.type)
            is_first = item.name in ("patch", "overlap", "blend")
            settings.append((item.name, kind) if is_first else (item.name, kind, BEFORE[item.name]))
    return defstruct("_Settings", settings, frozen=True)


if TYPE_CHECKING:
    _Settings = TranslateOptions
else:
    _Settings = _settings_of_reports()


class _Use(Struct, frozen=True):
    wall_seconds: _Amount = 0.0
    busy_seconds: _Amount = 0.0
    computing_seconds: _Amount = 0.0
    devices: _Count = 0


class _Energy(Struct, frozen=True):
    joules: _Amount
    seconds: _Amount


class _Totals(Struct, frozen=True):
    not_reached: _Count


class _Program(Struct, frozen=True):
    version: str


class Machine(Struct, frozen=True, rename={"memory": "memory_bytes"}):
    """Where a batch ran. memory: bytes in all.

    host: its name. system: kernel and version. cores: that may be used.
    """

    host: str
    system: str
    cores: _Count
    memory: _Count


class _Report(Struct, frozen=True, kw_only=True):
    """What is read of the file; its fields are described in `report.writing`.

    Those with a default were not there in earlier versions.
    """

    machine: Machine
    libraries: dict[str, str | None]
    program: _Program
    command: tuple[str, ...] = ()
    device: str
    model: ModelName
    settings: _Settings
    output: Path
    started: str
    seconds: _Amount
    runs: _Count = 1
    use: _Use = _Use()
    energy: _Energy | None = None
    totals: _Totals
    studies: tuple[_Study, ...]
    skipped: tuple[Skip, ...]
    ignored: _Count


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report and what only its file says.

    program: version of this program then. libraries: their versions, None if not installed. batch:
    the report. machine: where it ran.
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
    content = _content(file)
    _check_schema(file, content.get("schema"))
    try:
        stored = decode(_Report, content)
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


def as_stored(batch: BatchReport, name: Path) -> StoredReport:
    """A batch of which no file tells yet, as if one of that name had just been written."""
    stored = decode(_Report, to_json(batch))
    return StoredReport(name, batch, stored.program.version, stored.libraries, stored.machine)


def _content(file: Path) -> dict[str, Json]:
    try:
        content = parse(read_document(file), finite=True)
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


def _batch(stored: _Report) -> BatchReport:
    settings = {name: getattr(stored.settings, name) for name in CHANGING_RESULTS}
    options = TranslateOptions(**settings)
    return BatchReport(
        model=stored.model,
        options=replace(options, overlap=_measured(options.overlap)),
        device=stored.device,
        output=stored.output,
        started=stored.started,
        seconds=_measured(stored.seconds),
        use=_use(stored.use),
        studies=tuple(map(_study, stored.studies)),
        skipped=stored.skipped,
        ignored=stored.ignored,
        not_reached=stored.totals.not_reached,
        runs=stored.runs,
        command=stored.command,
        energy=stored.energy and Energy(stored.energy.joules, stored.energy.seconds),
    )


def _use(stored: _Use) -> Use:
    return Use(
        wall=_measured(stored.wall_seconds),
        busy=_measured(stored.busy_seconds),
        computing=_measured(stored.computing_seconds),
        devices=stored.devices,
    )


def _study(stored: _Study) -> StudyReport:
    stages, when = stored.stages, stored.when or {}
    return StudyReport(
        name=stored.name,
        source=stored.source,
        output=stored.output,
        status=stored.status,
        due=stored.due,
        seconds=_measured(stored.seconds),
        stages={s: _measured(took) for s in STAGES if (took := stages.get(s)) is not None},
        when={s: (interval.start, interval.stop) for s in STAGES if (interval := when.get(s))},
        voxels=stored.voxels,
        volumes=max(1, stored.volumes),
        tiles=stored.tiles,
        peak_memory=_peak(stored),
        preview=Path(stored.preview) if stored.preview else None,
        seams=_seams(stored.seam_score),
        verified=_verified(stored.verified),
        cycle=_cycle(stored.cycle),
        maps=stored.maps,
        sidecars=stored.sidecars,
        spread=stored.spread and SpreadFigures(stored.spread.flips, stored.spread.deviation),
        failure=_failure(stored),
        notes=stored.notes,
        drawn=stored.preview_drawn,
        source_content=_content_of(stored.source_content),
        output_content=_content_of(stored.output_content),
    )


def _content_of(stored: _Content | None) -> Content | None:
    return stored and Content(stored.files, stored.bytes, stored.sha256)


def _failure(stored: _Study) -> Failure | None:
    if stored.status != "failed" or stored.failure is None or stored.reason is None:
        return None
    return Failure(stored.failure, stored.reason, stored.failed_in)


def _peak(stored: _Study) -> PeakMemory | None:
    if stored.peak_host_bytes is None:
        return None
    return PeakMemory(stored.peak_host_bytes, of_run=stored.peak_counts_from == "run")


def _seams(stored: _Seams | None) -> SeamScore | None:
    if stored is None:
        return None
    d, h, w = (score and _measured(score) for score in (stored.d, stored.h, stored.w))
    return SeamScore((d, h, w))


def _verified(stored: _Verified | None) -> Verified | None:
    return stored and Verified(
        stored.places, stored.tiles, stored.error, stored.allowed, _measured(stored.seconds)
    )


def _cycle(stored: _Cycle | None) -> CycleError | None:
    return stored and CycleError(stored.error, stored.unit, stored.back, stored.limit)


def _measured(amount: float) -> float:
    return 0.0 if amount < _SMALLEST else amount
