"""Translation of folders of scans to folders of results."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ...engine.model.model_file import Model
from ...engine.options import NO_LIMITS, CudaLimits
from ...io.choice import Choice, PathGlobs
from ...io.conversion import AnyPath
from ..errors import SettingsError
from ..events import Event, Listen
from ..report.report import BatchReport
from ..request import Request
from ..settings import DEFAULTS, TranslateOptions
from ..translate import open_job, run_job
from .arguments import (
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
    "cuda", "cuda:0,1" for several GPUs, or "onnxruntime:PROVIDER". options: options of each study.
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
    on_event, opened = listener(on_event), model_of(model)
    request = Request(
        paths_of("inputs", inputs),
        opened.path or _IN_MEMORY,
        path_of("output", output),
        device=typed("device", str, device),
        limits=record("limits", CudaLimits, limits),
        options=options_of(options),
        filters=Choice(
            frozenset(map(str.upper, texts_of("modality", modality))),
            _pattern(series),
            channels=tuple(mapping_of("channels", channels).items()),
            globs=PathGlobs(_texts("include", include), _texts("exclude", exclude)),
        ),
    )
    job, caller = open_job(request, opened), _Caller(on_event)
    try:
        report = run_job(job, caller.hear)
    except KeyboardInterrupt:
        if caller.error:
            raise caller.error from None
        raise
    if caller.error:
        raise caller.error
    if report.interrupted:
        raise KeyboardInterrupt
    return report


def _texts(name: str, given: str | Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(texts_of(name, given)))


def _pattern(series: "str | re.Pattern[str]") -> "re.Pattern[str] | None":
    if isinstance(series, re.Pattern):
        return series
    text = typed("series", str, series)
    try:
        return re.compile(text, re.IGNORECASE) if text else None
    except re.error as error:
        raise SettingsError(f"Setting series={series} is no regular expression: {error}.") from None


class _Caller:
    """Caller's callback for events; its exception ends the batch like Ctrl-C, and is kept."""

    def __init__(self, on_event: Listen) -> None:
        self._on_event = on_event
        self.error: BaseException | None = None

    def hear(self, event: Event) -> None:
        if self.error:
            return
        try:
            self._on_event(event)
        except BaseException as error:
            self.error = error
            raise KeyboardInterrupt from error
