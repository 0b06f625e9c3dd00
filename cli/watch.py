"""`cuda-cyclegan watch`: studies that arrive in a folder become jobs."""

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..io.choice import FEWEST_SLICES
from ..io.errors import ScanError
from ..pipelines.errors import QueueLostError
from ..pipelines.settings import Extras
from .errors import told
from .filters import AllowUneven, Filters, KeepPrivate, MinSlices, Modality, SeriesPattern
from .options import parsed_patch
from .queue_options import BatchName, PriorityOption, QueueOption, WindowOption, lane_of
from .signals import stop_signals
from .streams import say
from .text import counted, printable
from .translate_options import (
    Arithmetic,
    Blending,
    ModelFile,
    Output,
    Overlap,
    Overwrite,
    Patch,
    Preview,
    ResultFormat,
    Seams,
    VolumeIndex,
)

if TYPE_CHECKING:
    from ..pipelines.queue import Queue
    from ..pipelines.queue_job import StudyJob
    from ..pipelines.queue_state import Lane
    from ..pipelines.submission import Submission

EXAMPLE = """\b
Example:
  cuda-cyclegan watch /incoming --model t1-to-t2.safetensors --output results
"""

LOOK_SECONDS = 5.0


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", exists=True, file_okay=False, help="Where studies arrive."
        ),
    ],
    model: ModelFile,
    output: Output,
    queue: QueueOption = None,
    settle: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, help="Take a study when it has not changed for so long."
        ),
    ] = 30.0,
    priority: PriorityOption = "normal",
    window: WindowOption = None,
    name: BatchName = "",
    precision: Arithmetic = None,
    patch: Patch = None,
    overlap: Overlap = 0.25,
    blend: Blending = "gaussian",
    volume: VolumeIndex = None,
    modality: Modality = "",
    series: SeriesPattern = "",
    min_slices: MinSlices = FEWEST_SLICES,
    allow_uneven: AllowUneven = False,
    output_format: ResultFormat = "same",
    keep_private_tags: KeepPrivate = False,
    overwrite: Overwrite = False,
    preview: Preview = False,
    seam_score: Seams = False,
) -> None:
    """Queue studies as they arrive in a folder, until stopped.

    A study is taken once none of its files has changed for --settle seconds, and again if it
    changes later. Stop with Ctrl-C or SIGTERM; jobs that are queued by then stay queued.
    """
    filters = Filters(modality, series, min_slices, allow_uneven, show_phi=False)
    choice = filters.choice(output_format, keep_private=keep_private_tags)
    extents = parsed_patch(patch)
    with stop_signals(), told(verbose=False):
        from ..pipelines.queue import open_queue
        from ..pipelines.queue_place import queue_place
        from ..pipelines.submission import jobs_of
        from ..pipelines.translate import Request
        from ..pipelines.watching import Arrivals

        request = Request(
            inputs=(folder,),
            model=model,
            output=output,
            precision=precision,
            patch=extents,
            overlap=overlap,
            blend=blend,
            volume_index=volume,
            choice=choice,
            overwrite=overwrite,
            extras=Extras(preview=preview, seam_score=seam_score),
        )
        lane = lane_of(priority, window)
        arrivals, refused = Arrivals(settle), set[str]()
        with open_queue(queue_place(queue), create=True) as jobs:
            while True:
                try:
                    found = jobs_of(request)
                    _tell_refused(found, refused)
                    _take(arrivals.complete(found.jobs), jobs, lane, name)
                except (ScanError, QueueLostError, OSError) as error:
                    _log(str(error))
                time.sleep(min(LOOK_SECONDS, max(settle / 2, 0.2)))


def _tell_refused(found: "Submission", told: set[str]) -> None:
    """Once for each study that cannot be done along with another."""
    for study, reason in found.refused.items():
        if study not in told:
            told.add(study)
            _log(f"{study} is not queued: {reason}")


def _take(ready: "list[StudyJob]", jobs: "Queue", lane: "Lane", name: str) -> None:
    if ready:
        submitted = jobs.submit(ready, lane, name=name)
        if submitted.added:
            _log(f"{submitted.batch}: {counted(submitted.added, 'study', 'studies')} queued")


def _log(text: str) -> None:
    say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {printable(text)}", sys.stderr)
