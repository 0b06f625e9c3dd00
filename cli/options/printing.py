"""Options for the output of a command, shared by commands of every kind."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ...pipelines.option import Effect
from .help_panels import REPORTS


def _print_version(asked: bool) -> None:
    if asked:
        from ...pipelines.program import program_version

        print(f"cuda-cyclegan {program_version()}")
        raise typer.Exit


Version: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    Effect.HARMLESS,
]
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
OnlyPlan: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="List what would be done, like 'plan'.", rich_help_panel=REPORTS
    ),
    Effect.HARMLESS,
]
ReportFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.json",
        help="Write a JSON report, or continue that of this batch; - prints it.",
        rich_help_panel=REPORTS,
    ),
    Effect.WRITES,
]
Quiet: TypeAlias = Annotated[
    bool,
    typer.Option("--quiet", help="Print only failures.", rich_help_panel=REPORTS),
    Effect.HARMLESS,
]
