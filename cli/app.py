"""The command line's entry point."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..pipelines.host.processes import collect_seldom
from .command_table import CommandTable
from .errors import Exit, complain, errors_reported
from .options.printing import Version
from .render.terminal import LastingStream, replace_streams

EXAMPLE = """\b
Examples:
  cuda-cyclegan model import latest_net_G_A.pth --output t1-to-t2.safetensors
  cuda-cyclegan translate scans --model t1-to-t2.safetensors --output results
  cuda-cyclegan doctor

'cuda-cyclegan COMMAND --help' shows the options of a command.
Results are synthetic and not for diagnosis.
"""

app = typer.Typer(
    name="cuda-cyclegan",
    cls=CommandTable,
    help="Translate 3D medical scans with a trained 3D CycleGAN generator.",
    epilog=EXAMPLE,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    context: typer.Context,
    _version: Version = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Config file with defaults of options.  [default: the user's and this folder's "
            "cuda-cyclegan.toml]",
        ),
    ] = None,
) -> None:
    from .options.config import config_defaults

    with errors_reported(verbose=False):
        context.default_map = config_defaults(context, config)


def main() -> None:
    """Run the command line. Until this handles Ctrl-C, `__main__` does."""
    collect_seldom()
    output = replace_streams()
    try:
        app()
    except SystemExit as leaving:
        _exit_immediately(leaving, output)


def _exit_immediately(leaving: SystemExit, output: LastingStream) -> NoReturn:
    """End the process without unloading libraries one by one, which takes 0.1 s, and without
    waiting for threads of a stopped batch, which may be in the middle of anything.
    """
    status = leaving.code if isinstance(leaving.code, int) else leaving.code is not None
    output.flush()
    if output.lost:
        complain(
            f"Standard output was not written completely ({output.lost.strerror}); free disk "
            "space or redirect it elsewhere."
        )
        status = status or Exit.SOME_FAILED
    sys.stderr.flush()
    os._exit(status)
