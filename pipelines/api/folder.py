"""Translation of folders of scans: search, plan and batch."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ...engine.model.model_file import Model
from ...engine.options import NO_LIMITS, CudaLimits, Inference
from ...io.choice import Choice, PathGlobs
from ...io.conversion import AnyPath
from ...io.reading import read_study_header
from ...io.volume import Study
from ..dry_run import DryRow, dry_run
from ..errors import SettingsError
from ..events import Event, Listen
from ..mode_cost import StudyCost
from ..report.report import BatchReport, Failure
from ..request import Request
from ..results.earlier_results import discover_scans
from ..settings import DEFAULTS, TranslateOptions
from ..shard import Shard
from ..translate import Job, open_job, run_job
from .arguments import (
    checked,
    listener,
    mapping_of,
    model_of,
    options_of,
    path_of,
    paths_of,
    record,
    texts_of,
    typed,
)

_IN_MEMORY = Path("in memory")
"""Placeholder in the report for the file of a model without one."""


def ignore_event(_: Event) -> None:
    """Ignore an event."""


def translate_folder(
    inputs: AnyPath | Sequence[AnyPath],
    model: Model | AnyPath,
    output: AnyPath,
    *,
    device: str = "auto",
    options: TranslateOptions = DEFAULTS,
    modality: str | Collection[str] = (),
    series: "str | re.Pattern[str]" = "",
    channels: Mapping[str, str] = MappingProxyType({}),
    include: str | Collection[str] = (),
    exclude: str | Collection[str] = (),
    limits: CudaLimits = NO_LIMITS,
    on_event: Listen = ignore_event,
) -> BatchReport:
    """Translate all scans in files and folders, as the command does, and report on each.

    inputs: scan files, and folders to search for them. model: model or its file. output: folder of
    results, which mirrors the inputs; up-to-date results are kept. device: "auto", "cpu",
    "cuda", "cuda:0,1" for several GPUs, "cuda:0,0" for two processes on one, or
    "onnxruntime:PROVIDER". options: options of each study.
    modality, series: for DICOM series, the modalities to take, and a regular expression to find in
    their description or label. channels: patterns by the names of a model's channels, if scans
    are not named after them as in BIDS. include, exclude: patterns of paths below an input folder
    to take and to leave out. limits: limits on the use of a GPU. on_event: called with each event,
    one at a time, in the calling thread.

    A scan that cannot be translated fails without affecting others; its row has the reason. An
    exception of `on_event`, or a KeyboardInterrupt, ends the batch as soon as results in flight are
    stored, and is raised then; the same call continues from there. Raises before the first study:
    ModelFileError, DeviceUnavailableError or another EngineError; SettingsError; OutputFolderError;
    ScanError for a missing input.

    >>> report = translate_folder("scans", "t1-to-t2.safetensors", "results", device="cpu")
    >>> [(row.name, row.status) for row in report.studies]
    [('a.nii.gz', 'translated'), ('b.nii.gz', 'translated')]
    """
    on_event, model = listener(on_event), model_of(model)
    file = model.path or _IN_MEMORY
    request = _request(
        inputs, file, output, device, options, modality, series, channels, include, exclude, limits
    )
    return _translated(open_job(request, model), on_event)


def _translated(job: Job, on_event: Listen) -> BatchReport:
    caller = _Caller(on_event)
    try:
        report = run_job(job, caller.handle)
    except KeyboardInterrupt:
        if caller.error:
            raise caller.error from None
        raise
    if caller.error:
        raise caller.error
    if report.interrupted:
        raise KeyboardInterrupt
    return report


@dataclass(frozen=True, slots=True)
class FolderShard:
    """Share of the work of `translate_folder`, to be done by `translate_shard` anywhere.

    It can be pickled. number: from 1 to `count`. request: inputs, model file, output and options.
    """

    number: int
    count: int
    request: Request


def shards(
    inputs: AnyPath | Sequence[AnyPath],
    model: AnyPath,
    output: AnyPath,
    count: int,
    *,
    device: str = "auto",
    options: TranslateOptions = DEFAULTS,
    modality: str | Collection[str] = (),
    series: "str | re.Pattern[str]" = "",
    channels: Mapping[str, str] = MappingProxyType({}),
    include: str | Collection[str] = (),
    exclude: str | Collection[str] = (),
    limits: CudaLimits = NO_LIMITS,
) -> list[FolderShard]:
    """Divide the work of `translate_folder` into shards; searches for nothing yet.

    count: number of shards. Other arguments: as of `translate_folder`, with the model's file. All
    machines must find inputs, model and output at these paths. Raises SettingsError.

    >>> parts = shards("scans", "t1-to-t2.safetensors", "in-shards", 2, device="cpu")
    >>> reports = [translate_shard(part) for part in parts]
    >>> sorted(row.name for report in reports for row in report.studies)
    ['a.nii.gz', 'b.nii.gz']
    """
    if typed("count", int, count) < 1:
        raise SettingsError("Argument count must be at least 1.", "count")
    file = path_of("model", model)
    whole = _request(
        inputs, file, output, device, options, modality, series, channels, include, exclude, limits
    )
    each = (Shard(number + 1, count) for number in range(count))
    return [FolderShard(one.number, one.count, replace(whole, shard=one)) for one in each]


def translate_shard(shard: FolderShard, *, on_event: Listen = ignore_event) -> BatchReport:
    """Translate the studies of one shard, while others may run elsewhere; report on each.

    on_event, and all that is raised: as of `translate_folder`. Raises OutputFolderError also if the
    same shard is at work already, or if shards with other options are.

    >>> [part] = shards("scans", "t1-to-t2.safetensors", "one-shard", 1, device="cpu")
    >>> [row.status for row in translate_shard(part).studies]
    ['translated', 'translated']
    """
    request = checked("shard", FolderShard, shard).request
    return _translated(open_job(request), listener(on_event))


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Row of one study in a plan; `pandas.DataFrame` takes a list of them.

    name: path of its result below the output folder. source: its file, or the first of several.
    action: "translate", "keep", "preview" or "sidecar" (both keep a result and write a file next to
    it) or "refuse". reason: why it would fail, or None. seconds: expected time, None if nothing
    like it was measured on this machine yet. host_bytes, device_bytes: memory of host and GPU;
    None if not used or not known. voxels: of the scan. patches: number of them. notes: remarks,
    joined by semicolons. inference: mode of these figures, "patches" or "volume". other_seconds,
    other_host_bytes, other_device_bytes, other_reason: the same figures in the other mode, and why
    the study would fail there; all are None if there is no choice.
    """

    name: str
    source: Path
    action: str
    reason: str | None
    seconds: float | None
    host_bytes: int
    device_bytes: int | None
    voxels: int
    patches: int
    notes: str
    inference: Inference
    other_seconds: float | None
    other_host_bytes: int | None
    other_device_bytes: int | None
    other_reason: str | None


def plan(
    inputs: AnyPath | Sequence[AnyPath],
    model: Model | AnyPath,
    output: AnyPath,
    *,
    device: str = "auto",
    options: TranslateOptions = DEFAULTS,
    modality: str | Collection[str] = (),
    series: "str | re.Pattern[str]" = "",
    channels: Mapping[str, str] = MappingProxyType({}),
    include: str | Collection[str] = (),
    exclude: str | Collection[str] = (),
    limits: CudaLimits = NO_LIMITS,
) -> list[PlannedRow]:
    """Return what `translate_folder` with the same arguments would do, one row per study.

    Reads scans, runs no network and writes nothing. Raises what `translate_folder` raises before
    its first study.

    >>> rows = plan("scans", "t1-to-t2.safetensors", "planned", device="cpu")
    >>> [(row.name, row.action) for row in rows]
    [('a.nii.gz', 'translate'), ('b.nii.gz', 'translate')]
    """
    model = model_of(model)
    file = model.path or _IN_MEMORY
    request = _request(
        inputs, file, output, device, options, modality, series, channels, include, exclude, limits
    )
    job = open_job(request, model)
    return [_planned_row(row, job.options.inference) for row in dry_run(job).rows]


def _planned_row(row: DryRow, inference: Inference) -> PlannedRow:
    cost, other = row.cost, row.other
    elsewhere = other if isinstance(other, StudyCost) else None
    return PlannedRow(
        name=str(row.planned.study.name),
        source=row.planned.study.files[0],
        action="refuse" if row.failure else row.planned.action,
        reason=row.failure.reason if row.failure else None,
        seconds=cost.work.seconds if cost.work else None,
        host_bytes=cost.host_bytes,
        device_bytes=cost.device_bytes,
        voxels=row.voxels * row.count,
        patches=row.patches,
        notes="; ".join(row.notes),
        inference=inference,
        other_seconds=elsewhere.work.seconds if elsewhere and elsewhere.work else None,
        other_host_bytes=elsewhere.host_bytes if elsewhere else None,
        other_device_bytes=elsewhere.device_bytes if elsewhere else None,
        other_reason=other.reason if isinstance(other, Failure) else None,
    )


@dataclass(frozen=True, slots=True)
class FoundStudy:
    """Study that a search found; `pandas.DataFrame` takes a list of them.

    name: path of its result below an output folder. source: its file, or the first of several.
    files: number of them. format, modality: such as "nifti" and "MR"; the modality is empty if it
    is unknown. shape, spacing: of its volumes along i, j and k, in voxels and millimetres; empty if
    the header cannot be read. volumes: number of volumes. reason: why it cannot be translated, or
    None. notes: remarks, joined by semicolons.
    """

    name: str
    source: Path
    files: int
    format: str
    modality: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    volumes: int
    reason: str | None
    notes: str


def discover(
    inputs: AnyPath | Sequence[AnyPath],
    *,
    modality: str | Collection[str] = (),
    series: "str | re.Pattern[str]" = "",
    include: str | Collection[str] = (),
    exclude: str | Collection[str] = (),
) -> list[FoundStudy]:
    """Return the studies in files and folders, one row each; reads headers only.

    inputs and filters: as of `translate_folder`. Raises ScanError for a missing input, and
    SettingsError.

    >>> [(study.name, study.shape) for study in discover("scans")]
    [('a.nii.gz', (20, 18, 16)), ('b.nii.gz', (20, 18, 16))]
    """
    filters = _filters(modality, series, include, exclude)
    found = discover_scans(paths_of("inputs", inputs), None, filters)
    return [_found(study) for study in found.studies]


def _found(study: Study) -> FoundStudy:
    header = read_study_header(study, every_volume=True)
    return FoundStudy(
        name=str(study.name),
        source=study.files[0],
        files=len(study.files),
        format=study.format,
        modality=study.modality,
        shape=header.extents,
        spacing=header.spacing,
        volumes=header.volumes,
        reason=header.refusal,
        notes="; ".join(dict.fromkeys((*study.notes, *header.notes))),
    )


def _request(
    inputs: AnyPath | Sequence[AnyPath],
    model: Path,
    output: AnyPath,
    device: str,
    options: TranslateOptions,
    modality: str | Collection[str],
    series: "str | re.Pattern[str]",
    channels: Mapping[str, str],
    include: str | Collection[str],
    exclude: str | Collection[str],
    limits: CudaLimits,
) -> Request:
    """Return a request of checked arguments. Raises SettingsError."""
    return Request(
        paths_of("inputs", inputs),
        model,
        path_of("output", output),
        device=typed("device", str, device),
        limits=record("limits", CudaLimits, limits),
        options=options_of(options),
        filters=_filters(modality, series, include, exclude, channels),
    )


def _filters(
    modality: str | Collection[str],
    series: "str | re.Pattern[str]",
    include: str | Collection[str],
    exclude: str | Collection[str],
    channels: Mapping[str, str] = MappingProxyType({}),
) -> Choice:
    """Return the filters of a search. Raises SettingsError."""
    return Choice(
        frozenset(map(str.upper, texts_of("modality", modality))),
        _pattern(series),
        channels=tuple(mapping_of("channels", channels).items()),
        globs=PathGlobs(_texts("include", include), _texts("exclude", exclude)),
    )


def _texts(name: str, value: str | Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(texts_of(name, value)))


def _pattern(series: "str | re.Pattern[str]") -> "re.Pattern[str] | None":
    if isinstance(series, re.Pattern):
        return series
    text = typed("series", str, series)
    try:
        return re.compile(text, re.IGNORECASE) if text else None
    except re.error as error:
        raise SettingsError(
            f"Setting series={series} is not a regular expression: {error}.", "series"
        ) from None


class _Caller:
    """Caller's callback for events; its exception ends the batch like Ctrl-C, and is kept."""

    def __init__(self, on_event: Listen) -> None:
        self._on_event = on_event
        self.error: BaseException | None = None

    def handle(self, event: Event) -> None:
        if self.error:
            return
        try:
            self._on_event(event)
        except BaseException as error:
            self.error = error
            raise KeyboardInterrupt from error
