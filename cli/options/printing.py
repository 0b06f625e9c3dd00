"""What a command prints: options that commands of every kind take."""

from typing import Annotated, TypeAlias

import typer

from ...pipelines.option import Effect

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON, for scripts."), Effect.HARMLESS
]
Traceback: TypeAlias = Annotated[
    bool, typer.Option("--verbose", help="Print the traceback of a failure."), Effect.WIDENS_PRIVACY
]
