"""Options that the commands of the job queue share."""

from typing import Annotated, TypeAlias

import typer

from ...pipelines.jobs.queue.state import Lane, Priority

QueueOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="FILE|URL",
        envvar="CUDA_CYCLEGAN_QUEUE",
        show_envvar=False,
        help="The job queue: a file on this machine, or postgresql://USER@HOST/DATABASE for "
        "several.  [default: $CUDA_CYCLEGAN_QUEUE, or else a file of your own]",
    ),
]
PriorityOption: TypeAlias = Annotated[
    Priority, typer.Option(metavar="urgent|normal|low", help="Which jobs go first.")
]
WindowOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HH:MM-HH:MM|night",
        help="Start jobs only at these times of day, by the worker's clock; night is 19:00-07:00.",
    ),
]
BatchName: TypeAlias = Annotated[
    str, typer.Option(metavar="TEXT", help="What 'jobs' calls the batch; no patient's name.")
]


def lane_of(priority: Priority, window: str | None) -> Lane:
    """The lane of these options. Raises SettingsError."""
    from ...pipelines.jobs.schedule import Window

    return Lane(priority, str(Window.parse(window)) if window else "")
