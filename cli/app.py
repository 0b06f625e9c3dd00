"""The command line's entry point."""

import sys
from typing import Annotated

import typer

from . import translate

app = typer.Typer(
    name="cuda-cyclegan",
    help="Translate 3D medical scans with a trained 3D CycleGAN generator.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("translate", epilog=translate.EXAMPLE)(translate.translate)


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
    ] = False,
) -> None:
    if version:
        from ..pipelines.report_json import program_version

        print(f"cuda-cyclegan {program_version()}")
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end a batch.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()
