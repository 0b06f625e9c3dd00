"""Tables as lines of text, as wide as the terminal they go to."""

from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_UNBOUNDED = 10_000


def rendered(table: "Table", columns: int | None) -> Iterator[str]:
    """The table's lines; columns: width of the terminal, or None for no limit."""
    from rich.console import Console

    console = Console(file=StringIO(), width=columns or _UNBOUNDED)
    with console.capture() as capture:
        console.print(table)
    return map(str.rstrip, capture.get().splitlines())
