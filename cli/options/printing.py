"""Options for the output of a command, shared by commands of every kind."""

from typing import Annotated, TypeAlias

import typer

from ...pipelines.option import Effect
from .help_panels import REPORTS

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON."), Effect.HARMLESS]
Traceback: TypeAlias = Annotated[
    bool, typer.Option("--verbose", help="Print the traceback of a failure."), Effect.WIDENS_PRIVACY
]
FailOnSuspicious: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fail-on-suspicious",
        help="Exit with status 1 if a result is suspicious or could not be measured.",
        rich_help_panel=REPORTS,
    ),
    Effect.HARMLESS,
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
