"""Options for the output of a command, shared by commands of every kind."""

from typing import Annotated, TypeAlias

import typer

from ...pipelines.option import Effect
from .help_panels import REPORTS

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON."), Effect.HARMLESS]
Traceback: TypeAlias = Annotated[
    bool, typer.Option("--verbose", help="Print the traceback of a failure."), Effect.WIDENS_PRIVACY
]
AllRows: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--all-rows",
        help="Show every study in the table, also if there are many.",
        rich_help_panel=REPORTS,
    ),
    Effect.HARMLESS,
]
