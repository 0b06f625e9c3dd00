"""Options of the commands that show studies to a reader and store the reader's marks."""

from typing import Annotated, TypeAlias

import typer

from ...pipelines.option import Effect
from .values import wrong_value

LONGEST_NAME = 100


def _checked_name(name: str | None) -> str | None:
    if name is None:
        return None
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise wrong_value("--reader", f"a name has 1 to {LONGEST_NAME} printable characters.")
    return name.strip()


ReaderName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="NAME",
        callback=_checked_name,
        help="Name under which marks are stored, for a login that readers share.  [default: login]",
    ),
    Effect.WRITES,
]
ShowMarks: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--show-marks",
        help="Show the marks of other readers at once, for consensus reading; by default only "
        "after the own mark.",
    ),
    Effect.WIDENS_PRIVACY,
]
Browser: TypeAlias = Annotated[
    bool,
    typer.Option("--browser/--no-browser", help="Open the page in the browser."),
    Effect.HARMLESS,
]
