"""Options that the commands of the job queue share."""

import re
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ...pipelines.jobs.queue.schedule import Priority, SchedulingClass
from ...pipelines.option import Effect, Option, Rules, Shown
from ..render.service_log import LogFormat
from ..render.terminal import print_sentences
from .help_panels import QUEUE, REPORTS
from .values import wrong_value


def _warn_of_password(
    context: typer.Context, option: typer.CallbackParam, queue: str | None
) -> str | None:
    """Warn of a typed password, which all users of a machine can read in its process list."""
    from ...pipelines.jobs.queue.location import has_password

    source = context.get_parameter_source(option.name or "")
    if queue and source and source.name == "COMMANDLINE" and has_password(queue):
        warning = (
            "Warning: other users of this machine can read the password of --queue in the list of "
            "processes; keep it in ~/.pgpass, or the URL in CUDA_CYCLEGAN_QUEUE or in your own "
            "cuda-cyclegan.toml."
        )
        print_sentences([warning], sys.stderr)
    return queue


def typed_queue(context: typer.Context, queue: str | None) -> list[str]:
    """Return the option, if it was typed, for use in other commands, without a password."""
    from ...pipelines.jobs.queue.location import has_password, queue_place

    source = context.get_parameter_source("queue")
    if not queue or source is None or source.name != "COMMANDLINE":
        return []
    return ["--queue", str(queue_place(queue)) if has_password(queue) else queue]


BATCH = re.compile(r"[A-Za-z0-9-]+")

QueueOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="FILE|URL",
        envvar="CUDA_CYCLEGAN_QUEUE",
        show_envvar=False,
        callback=_warn_of_password,
        help="Job queue: a file on this machine, or postgresql://USER@HOST/DATABASE for several "
        "machines.  [default: $CUDA_CYCLEGAN_QUEUE, or a file in your home]",
        rich_help_panel=QUEUE,
    ),
    Effect.REDIRECTS,
]
PriorityOption: TypeAlias = Annotated[
    Priority,
    Option(
        "Priority of the jobs.",
        Shown("Queue", metavar="urgent|normal|low"),
        Rules(Effect.HARMLESS, of_route=True),
    ),
]
WindowOption: TypeAlias = Annotated[
    str | None,
    Option(
        "Start jobs only at these times of day on the worker's clock; night is 19:00-07:00.",
        Shown("Queue", metavar="HH:MM-HH:MM|night"),
        Rules(Effect.HARMLESS, of_route=True),
    ),
]
LogFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        metavar="FILE",
        help="Also write the log to this file; at 10 MiB it is rotated, and ten files are kept.",
        rich_help_panel=REPORTS,
    ),
    Effect.WRITES,
]
LogFormatOption: TypeAlias = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", metavar="text|json", help="Lines of that file.", rich_help_panel=REPORTS
    ),
    Effect.HARMLESS,
]
OnFailureOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--on-failure",
        metavar="COMMAND",
        help="Run this after failures, with their counts in the environment.",
        rich_help_panel=REPORTS,
    ),
    Effect.LOADS_CODE,
]
BatchName: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help="Name of the batch in 'jobs'; must not identify a patient.",
        rich_help_panel=QUEUE,
    ),
    Effect.HARMLESS,
]


def checked_batch(text: str) -> str:
    """Return a batch's name, or "" for all. Others are never printed: one may be an address."""
    if text and not BATCH.fullmatch(text):
        raise wrong_value("--only", "it is not a batch name as printed by 'submit'.")
    return text


def scheduling_of(priority: Priority, window: str | None) -> SchedulingClass:
    """Return the scheduling class of these options. Raises SettingsError."""
    from ...pipelines.jobs.queue.schedule import StartWindow

    return SchedulingClass(priority, str(StartWindow.parse(window)) if window else "")
