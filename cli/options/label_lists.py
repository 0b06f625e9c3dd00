"""Options with several values, as BIDS Apps take them on the command line."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from .help_panels import PanelledCommand


class BidsAppCommand(PanelledCommand):
    """Command whose repeatable options take several values: `--participant-label 01 02`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Raises UsageError."""
        lists = {
            name for one in self.params if getattr(one, "multiple", False) for name in one.opts
        }
        return super().parse_args(ctx, [*_repeated(args, lists)])


def _repeated(words: Iterable[str], lists: Collection[str]) -> Iterator[str]:
    """Yield the words with the name of a list before each of its values, as click takes it."""
    name, is_empty = "", False
    for word in words:
        if word.startswith("-"):
            if is_empty:
                yield name
            name = word if word in lists else ""
            is_empty = bool(name)
            if not name:
                yield word
        elif name:
            yield from (name, word)
            is_empty = False
        else:
            yield word
    if is_empty:
        yield name
