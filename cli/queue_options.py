"""Options that all commands of the job queue share."""

from typing import Annotated

import typer

QueueOption = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="FILE|URL",
        envvar="CUDA_CYCLEGAN_QUEUE",
        show_envvar=False,
        help="The job queue: a file on this machine, or postgresql://USER@HOST/DATABASE for "
        "several.  [default: a file of your own; or $CUDA_CYCLEGAN_QUEUE]",
    ),
]
