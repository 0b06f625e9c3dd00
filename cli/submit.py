"""`cuda-cyclegan submit`: one job a study into the queue."""

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..engine.devices import Precision
from ..pipelines.queue_state import Priority
from ..pipelines.settings import Blend
from .errors import Exit, complain, told
from .options import parsed_patch
from .queue_options import QueueOption
from .streams import say, tell
from .text import counted

if TYPE_CHECKING:
    from ..pipelines.queue_state import Submitted

EXAMPLE = (
    "Example: cuda-cyclegan submit scans/ --model t1-to-t2.safetensors --output results/ "
    "--window night"
)


def submit(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="Scan files, and folders to search for them."),
    ],
    model: Annotated[
        Path, typer.Option(metavar="FILE", help="Model file, as 'model import' makes it.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the results; mirrors the inputs.")
    ],
    queue: QueueOption = None,
    priority: Annotated[
        Priority, typer.Option(metavar="urgent|normal|low", help="Which jobs go first.")
    ] = "normal",
    window: Annotated[
        str | None,
        typer.Option(
            metavar="HH:MM-HH:MM|night",
            help="Start jobs only at these times of day, by the worker's clock; night is "
            "19:00-07:00.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start no job before HH:MM, or before an ISO date."),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="TEXT", help="What 'jobs' calls this batch; no patient's name.")
    ] = "",
    precision: Annotated[
        Precision | None,
        typer.Option(
            metavar="fp16|bf16|tf32|fp32",
            help="Arithmetic of the network.  [default: fp16 on a GPU, fp32 on the CPU]",
        ),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(metavar="D,H,W", help="Extents of a tile.  [default: the model's]"),
    ] = None,
    overlap: Annotated[
        float,
        typer.Option(
            metavar="0..0.9", min=0.0, max=0.9, help="Share of a tile's edge that neighbours share."
        ),
    ] = 0.25,
    blend: Annotated[
        Blend,
        typer.Option(metavar="gaussian|linear|constant", help="Weights where tiles overlap."),
    ] = "gaussian",
    volume: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Which volume of a 4-D file, counted from 0."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite/--skip-existing",
            help="Make all results anew, or keep those that are up to date.",
        ),
    ] = False,
) -> None:
    """Queue scans for translation, one job a study, and return at once.

    Prints the batch's name. Studies that are queued for the same work already are left out. Exit
    status: 0 queued; 2 wrong usage; 3 no study found.
    """
    chosen = parsed_patch(patch)
    with told(verbose=False):
        from ..pipelines.queue import open_queue
        from ..pipelines.queue_place import queue_place
        from ..pipelines.queue_state import Lane
        from ..pipelines.submission import jobs_of
        from ..pipelines.translate import Request
        from ..pipelines.windows import Window, parse_time

        lane = Lane(priority, str(Window.parse(window)) if window else "")
        not_before = parse_time(at, datetime.now().astimezone()) if at else None
        found = jobs_of(
            Request(
                inputs=tuple(inputs),
                model=model,
                output=output,
                precision=precision,
                patch=chosen,
                overlap=overlap,
                blend=blend,
                volume_index=volume,
                overwrite=overwrite,
            )
        )
        if not found.jobs:
            where = ", ".join(str(path) for path in inputs)
            complain(f"No study found in {where}; name scan files, or folders that hold some.")
            raise typer.Exit(Exit.NO_STUDY)
        with open_queue(queue_place(queue), create=True) as jobs:
            submitted = jobs.submit(found.jobs, lane, name=name, not_before=not_before)
    if submitted.added:
        say(submitted.batch, sys.stdout)
    tell(_outcome(submitted, len(found.skipped)), sys.stderr)


def _outcome(submitted: "Submitted", skipped: int) -> Iterator[str]:
    yield f"{counted(submitted.added, 'study', 'studies')} queued"
    if submitted.known:
        known = counted(submitted.known, "study", "studies")
        yield f"{known} left out: queued for the same work already"
    if skipped:
        yield f"{counted(skipped, 'file')} skipped; 'translate --dry-run' says why"
