"""Folders of scans become folders of results."""

import re
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from ...engine.options import NO_LIMITS, CudaLimits
from ...io.choice import Choice
from ..errors import SettingsError
from ..progress.events import Event, Listen
from ..report.report import BatchReport
from ..request import Request
from ..settings import DEFAULTS, TranslateOptions
from ..translate import open_job, run_job

AnyPath: TypeAlias = str | PathLike[str]


def ignore_event(_: Event) -> None:
    """Events that nobody wants to hear of."""


def translate_folder(
    inputs: AnyPath | Sequence[AnyPath],
    model: AnyPath,
    output: AnyPath,
    *,
    device: str = "auto",
    options: TranslateOptions = DEFAULTS,
    modality: Collection[str] = (),
    series: str = "",
    channels: Mapping[str, str] = MappingProxyType({}),
    limits: CudaLimits = NO_LIMITS,
    on_event: Listen = ignore_event,
) -> BatchReport:
    """Translate all scans in files and folders, as the command does, and report on each.

    inputs: scan files, and folders to search for them. model: its file. output: the folder of
    results, which mirrors the inputs; results that are up to date are kept. device: "auto", "cpu",
    "cuda", "cuda:0,1" for several cards, or "onnxruntime:PROVIDER". options: about each study.
    modality, series: of DICOM series, those to take, and a regular expression to find in their
    description or label. channels: patterns by the names of a model's channels, where scans are
    not named after them as in BIDS. limits: of what may be taken of a card. on_event: called with
    each event, one at a time, in the thread that called this.

    A scan that cannot be translated fails alone; its row tells why. What `on_event` raises, and a
    KeyboardInterrupt, ends the batch as soon as results under way are stored, and is raised then;
    the same call goes on where that was. Raises before the first study: ModelFileError,
    DeviceUnavailableError or another EngineError; SettingsError; OutputFolderError; ScanError for
    an input that is missing.

    >>> report = translate_folder("scans", "t1-to-t2.safetensors", "results", device="cpu")
    >>> [(row.name, row.status) for row in report.studies]
    [('a.nii.gz', 'translated'), ('b.nii.gz', 'translated')]
    """
    named = [inputs] if isinstance(inputs, str | PathLike) else inputs
    request = Request(
        tuple(Path(each) for each in named),
        Path(model),
        Path(output),
        device=device,
        limits=limits,
        options=options,
        filters=Choice(
            frozenset(map(str.upper, modality)), _pattern(series), channels=tuple(channels.items())
        ),
    )
    job, caller = open_job(request), _Caller(on_event)
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


def _pattern(series: str) -> "re.Pattern[str] | None":
    try:
        return re.compile(series, re.IGNORECASE) if series else None
    except re.error as error:
        raise SettingsError(f"Setting series={series} is no regular expression: {error}.") from None


class _Caller:
    """Who hears the events; what it raises ends the batch as Ctrl-C would, and is kept."""

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
