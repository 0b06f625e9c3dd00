"""Batch reports as JSON and back; docs/report-json.md describes the fields, a promise to scripts.

The stored form is derived from the records in `report`; `_FIELDS`, `_Row` and `_File` state where
it differs. Figures that are computed from others are written and not read.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Meta, Struct

from ...engine.cores import usable_cores
from ...engine.decoding import FieldError, Json, decode, encode, encode_record, parse
from ...engine.model.calibration import UsualMeasure
from ...io.files.documents import read_document
from ...io.files.machine_limits import physical_memory
from ..errors import ReportFileError, SettingsError
from ..host.memory import PeakMemory
from ..program import program_version
from ..settings import BEFORE, CHANGING_RESULTS, TranslateOptions
from ..stopwatch import STAGES, Stage
from ..study.figures import CycleError, Measures, SpreadFigures
from .report import BatchReport, Failure, FailureClass, StudyReport, StudyStatus, Use
from .suspicion import Suspicion, suspicions_in

JsonObject: TypeAlias = dict[str, Any]

SCHEMA = "cuda-cyclegan/translate-report/1"
"""Schema version, raised when a field is removed or changes its meaning, not for new fields."""

LIBRARIES = {
    **{name: (name,) for name in ("numpy", "onnxruntime", "SimpleITK", "nibabel", "pydicom")},
    "cuda-bindings": ("cuda-bindings",),
    "cuDNN": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "cuDNN frontend": ("nvidia-cudnn-frontend",),
}
"""Packages that may contain a library, by its name."""

_FIRST = (
    *("name", "source", "output", "status", "class", "reason", "failed_in", "due", "notes"),
    *("seconds", "stages", "when", "voxels", "voxels_per_second", "tiles", "peak_host_bytes"),
    *("peak_counts_from", "preview", "preview_drawn", "seam_score", "verified", "cycle", "maps"),
    *("sidecars", "spread", "source_content", "volumes", "output_content"),
)
"""Order of the fields of a stored study, before those of later versions."""

_SMALLEST, _LARGEST = 1e-9, 10**15
"""Bounds of times, counts and sizes; values beyond them would break plots and quotients."""
_LARGEST_FIGURE = 1e100
"""Bound of figures in the unit of an image, whose voxels reach 3e38; their squares are finite."""

_Amount: TypeAlias = Annotated[float, Meta(ge=0, le=_LARGEST)]
_Figure: TypeAlias = Annotated[float, Meta(ge=0, le=_LARGEST_FIGURE)]
_Signed: TypeAlias = Annotated[float, Meta(ge=-_LARGEST_FIGURE, le=_LARGEST_FIGURE)]
_Number: TypeAlias = Annotated[float, Meta()]
_Pattern: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Extent: TypeAlias = Annotated[int, Meta(ge=1, le=_LARGEST)]
_Value = TypeVar("_Value")


def to_json(report: BatchReport) -> JsonObject:
    """Encode a report as JSON values."""
    joules = report.shared_joules()
    energy, judged = report.energy, suspicions_in(report)
    return {
        "schema": SCHEMA,
        "program": {"name": "cuda-cyclegan", "version": program_version()},
        "command": list(report.command),
        "libraries": _libraries(),
        "machine": encode(_this_machine()),
        "device": report.device,
        "model": encode(report.model),
        "settings": _settings(report.options),
        "output": str(report.output),
        "started": report.started,
        "seconds": report.seconds,
        "runs": report.runs,
        "interrupted": report.interrupted,
        "use": {
            **_renamed(report.use),
            "overlap": report.use.overlap,
            "computing_share": report.use.computing_share,
        },
        "energy": energy and {**encode_record(energy), "average_watts": energy.watts},
        "totals": {**_totals(report), **_judged(report, judged)},
        "studies": [
            {
                **_study(row),
                "apportioned_joules": joules.get(row.name),
                "suspicion": _suspicion(found),
            }
            for row, found in zip(report.studies, judged, strict=True)
        ],
        "skipped": [encode(skip) for skip in report.skipped],
        "ignored": report.ignored,
    }


def _renamed(record: object) -> JsonObject:
    others = _FIELDS[type(record)]
    return {
        others.get(name, _AS_IN_RECORD).name or name: value
        for name, value in encode_record(record).items()
    }


def _settings(options: TranslateOptions) -> JsonObject:
    if options.precision is None:
        named = replace(options, precision="fp32").resolved()
        return {**named.chosen(), "precision": None, "sha256": None}
    resolved = options.resolved()
    return {**resolved.chosen(), "sha256": resolved.fingerprint()}


def _study(row: StudyReport) -> JsonObject:
    failure, seams, cycle = row.failure, row.seams, row.cycle
    values = _renamed(row)
    del values["failure"], values["peak_memory"]
    values |= {
        "class": failure.kind if failure else None,
        "reason": failure.reason if failure else None,
        "failed_in": failure.stage if failure else None,
        "voxels_per_second": row.voxels_per_second,
        **_peak(row.peak_memory),
        "seam_score": seams and {**dict(zip("dhw", seams.axes, strict=True)), "worst": seams.worst},
        "cycle": cycle and {**encode_record(cycle), "marked": cycle.is_marked},
    }
    return {name: values.pop(name) for name in _FIRST} | values


def _suspicion(found: Suspicion) -> JsonObject:
    """Encode a judgement, which is computed again whenever a report is read."""
    return {
        "state": found.state,
        "far": _finite(found.far),
        "why": found.why or None,
        "findings": [
            {
                "measure": one.key,
                "value": one.value,
                "low": _finite(one.low),
                "high": _finite(one.high),
            }
            for one in found.findings
        ],
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _judged(report: BatchReport, found: Sequence[Suspicion]) -> JsonObject:
    done = [one for row, one in zip(report.studies, found, strict=True) if row.is_done]
    return {
        "suspicious": sum(one.is_suspicious for one in done),
        "not_judged": sum(one.state == "not judged" for one in done),
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


def _peak(peak: PeakMemory | None) -> JsonObject:
    return {
        "peak_host_bytes": peak.bytes if peak else None,
        "peak_counts_from": None if peak is None else "run" if peak.of_run else "study",
    }


def _libraries() -> dict[str, str | None]:
    found = {
        library: next(filter(None, map(_version, packages)), None)
        for library, packages in LIBRARIES.items()
    }
    return {"python": platform.python_version(), **found}


@cache
def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # late: plans do not need it

    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine that ran a batch.

    host: its name. system: kernel and version. cores: number of usable cores. memory_bytes: total
    memory; None if the system does not report it.
    """

    host: str
    system: str
    cores: int
    memory_bytes: int | None


def _this_machine() -> Machine:
    return Machine(platform.node(), platform.platform(), usable_cores(), physical_memory())


@dataclass(frozen=True, slots=True)
class StoredReport:
    """Report with the data that only its file contains.

    file: its path. name: the one that is shown. program: version of this program then.
    libraries: their versions, None if not installed. batch: the report. machine: machine that ran
    it.
    """

    file: Path
    name: str
    batch: BatchReport
    program: str
    libraries: Mapping[str, str | None]
    machine: Machine


def as_stored(batch: BatchReport, name: Path) -> StoredReport:
    """Return a batch that has no file yet as if one of that name had just been written."""
    return StoredReport(name, name.name, batch, program_version(), _libraries(), _this_machine())


def read_report(file: Path) -> StoredReport:
    """Read the report in a file; fields unknown to this version are ignored.

    Raises ReportFileError for a file that is foreign, of a newer layout, or damaged.
    """
    content = _content(file)
    _check_schema(file, content.get("schema"))
    try:
        stored = decode(_report_type(), _prepared(content))
        batch = msgspec.convert(stored, BatchReport, from_attributes=True)
        _check_intervals(batch)
    except FieldError as error:
        raise ReportFileError(
            f"{file} is damaged: its field {error.path} {error.reason}; write the report again."
        ) from error
    except SettingsError as error:
        raise ReportFileError(f"{file} is damaged: {error} Write the report again.") from error
    return StoredReport(
        file, file.name, batch, stored.program.version, stored.libraries, stored.machine
    )


def _content(file: Path) -> dict[str, Json]:
    try:
        content = parse(read_document(file), finite=True)
    except OSError as error:
        raise ReportFileError(f"{file} cannot be read: {error.strerror}.") from error
    except FieldError as error:
        raise ReportFileError(
            f"{file} is not JSON; give a file that 'translate setting report' wrote."
        ) from error
    if not isinstance(content, dict):
        raise ReportFileError(
            f"{file} contains no JSON object; give a file that 'translate setting report' wrote."
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
        f"{file} is not a report of a batch; give a file that 'translate setting report' wrote."
    )


_MEASURED = frozenset({"seconds", "stages", "use", "seam_score", "overlap"})


def _prepared(value: Json, *, is_measured: bool = False) -> Json:
    """Order stages, and take measured numbers that are too small to divide by as 0."""
    if isinstance(value, dict):
        known = {**value, **{name: _known_stages(value[name]) for name in _BY_STAGE & value.keys()}}
        return {
            name: _prepared(item, is_measured=is_measured or name in _MEASURED)
            for name, item in known.items()
        }
    if isinstance(value, list):
        return [_prepared(item) for item in value]
    is_tiny = is_measured and isinstance(value, float) and 0 <= value < _SMALLEST
    return 0.0 if is_tiny else value


_BY_STAGE = frozenset({"stages", "when"})


def _known_stages(found: Json) -> Json:
    """Order values by stage, and drop stages of later versions."""
    if not isinstance(found, dict):
        return found
    return {stage: found[stage] for stage in STAGES if stage in found}


def _check_intervals(batch: BatchReport) -> None:
    for index, row in enumerate(batch.studies):
        for stage, (start, stop) in row.when.items():
            if stop < start:
                raise FieldError(f"studies[{index}].when.{stage}", "must be a start and an end")


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


class _Seams(Struct):
    d: _Amount | None = None
    h: _Amount | None = None
    w: _Amount | None = None

    @property
    def axes(self) -> tuple[float | None, float | None, float | None]:
        return self.d, self.h, self.w


class _Row(Struct, kw_only=True, rename={"kind": "class"}):
    """Fields of a stored study that are records in a `StudyReport`."""

    status: StudyStatus
    kind: FailureClass | None = None
    reason: str | None = None
    failed_in: Stage | None = None
    peak_host_bytes: _Count | None = None
    peak_counts_from: Literal["study", "run"] | None = None

    def __post_init__(self) -> None:
        if self.status == "failed" and None in (self.kind, self.reason):
            raise ValueError("must have a class and a reason, since it failed")

    @property
    def failure(self) -> Failure | None:
        if self.status != "failed" or self.kind is None or self.reason is None:
            return None
        return Failure(self.kind, self.reason, self.failed_in)

    @property
    def peak_memory(self) -> PeakMemory | None:
        if self.peak_host_bytes is None:
            return None
        return PeakMemory(self.peak_host_bytes, of_run=self.peak_counts_from == "run")


class _Program(Struct):
    version: str


class _Totals(Struct):
    not_reached: _Count


class _File(Struct, kw_only=True):
    """Fields of a stored report that a `BatchReport` lacks or has elsewhere."""

    machine: Machine
    libraries: dict[str, str | None]
    program: _Program
    totals: _Totals

    @property
    def not_reached(self) -> int:
        return self.totals.not_reached


@dataclass(frozen=True, slots=True)
class _Stored:
    """Field as files have it, where it differs from that of its record.

    name: its name there. type: its type there. is_in_all: whether every file has it, although the
    record has a default.
    """

    name: str | None = None
    type: Any = None
    is_in_all: bool = False


_AS_IN_RECORD = _Stored()
_FIELDS: dict[type, Mapping[str, _Stored]] = {
    BatchReport: {"options": _Stored("settings"), "ignored": _Stored(is_in_all=True)},
    StudyReport: {
        "seconds": _Stored(is_in_all=True),
        "stages": _Stored(type=_Stages[_Amount], is_in_all=True),
        "when": _Stored(type=_Stages[tuple[_Amount, _Amount]]),
        "voxels": _Stored(is_in_all=True),
        "tiles": _Stored(is_in_all=True),
        "seams": _Stored("seam_score", _Seams | None),
        "drawn": _Stored("preview_drawn"),
        "volumes": _Stored(type=_Extent),
    },
    Measures: {
        "mirrored": _Stored(type=_Signed | None),
        "levels": _Stored(type=tuple[tuple[_Signed, _Signed, _Signed], ...]),
        "patterns": _Stored(type=tuple[_Pattern, _Pattern] | None),
    },
    UsualMeasure: {"median": _Stored(type=_Signed)},
    Use: {
        "wall": _Stored("wall_seconds"),
        "busy": _Stored("busy_seconds"),
        "computing": _Stored("computing_seconds"),
    },
    TranslateOptions: {
        "patch": _Stored(type=tuple[_Extent, _Extent, _Extent], is_in_all=True),
        # Of any length: with a fixed one msgspec confuses the bounds of this union's members.
        "overlap": _Stored(type=float | tuple[float, ...], is_in_all=True),
        "blend": _Stored(is_in_all=True),
        "precision": _Stored(is_in_all=True),
        "nan_to": _Stored(type=_Number | None),
    },
}
"""Fields that files have otherwise than their records, by record."""

_OF_IMAGES = (Measures, UsualMeasure, SpreadFigures, CycleError)
"""Records whose numbers are `_Figure`, not `_Amount`."""

_BASES: dict[type, type[Struct]] = {StudyReport: _Row, BatchReport: _File}
_FORMS: dict[Any, Any] = {tuple: tuple, UnionType: Union}


@cache
def _report_type() -> Any:
    return _stored(BatchReport)


def _stored(kind: Any, number: Any = _Amount) -> Any:
    """Return the stored form of a type: structs for records, and bounds for all numbers.

    number: form of a float.
    """
    if kind in (int, float):
        return _Count if kind is int else number
    if not (isinstance(kind, type) and is_dataclass(kind)):
        form = _FORMS.get(get_origin(kind))
        members = tuple(_stored(each, number) for each in get_args(kind))
        return form[members] if form else cast("Any", kind)
    number = _Figure if kind in _OF_IMAGES else _Amount
    base = _BASES.get(kind)
    bases, is_settings = (base,) if base else None, issubclass(kind, TranslateOptions)
    others = _FIELDS.get(kind, {})
    stored = [
        (
            item.name,
            _stored(others.get(item.name, _AS_IN_RECORD).type or item.type, number),
            _default(item, BEFORE.get(item.name) if is_settings else item.default, others),
        )
        for item in fields(kind)
        if not hasattr(base, item.name) and (not is_settings or item.name in CHANGING_RESULTS)
    ]
    names = {name: other.name for name, other in others.items() if other.name}
    return msgspec.defstruct(kind.__name__, stored, bases=bases, rename=names, kw_only=True)


def _default(item: Field[Any], default: Any, others: Mapping[str, _Stored]) -> Any:
    if others.get(item.name, _AS_IN_RECORD).is_in_all:
        return msgspec.NODEFAULT
    if item.default_factory is not MISSING:
        return msgspec.field(default_factory=item.default_factory)
    return msgspec.NODEFAULT if default is MISSING else default


def job_row(row: StudyReport) -> JsonObject:
    """Encode a study's row as the queue stores it: without paths, which the job contains."""
    stored = encode_record(row)
    del stored["source"], stored["output"], stored["name"]
    if row.failure:
        del stored["failure"]["passes"]  # what may pass has not ended
    return stored


def row_of_job(stored: Mapping[str, Json], name: str, source: Path, output: Path) -> StudyReport:
    """Decode the output of `job_row`; raises FieldError.

    Fields and stages of newer versions are ignored.
    """
    stages = {name: _known_stages(stored.get(name, {})) for name in _BY_STAGE}
    known = decode(StudyReport, {**stored, **stages, "name": "", "source": "", "output": ""})
    return replace(known, name=name, source=source, output=output)
