"""Names that are too long for their column: their middle goes."""

from collections.abc import Collection, Sequence

from rich.cells import cell_len

GONE = "…"
NARROWEST = 12
"""Columns below which a name is not told from others."""


def shortened(text: str, width: int) -> str:
    """At most `width` columns; the middle goes first, since names differ at their ends."""
    if cell_len(text) <= width:
        return text
    tail = _end_of(text, 2 * width // 3)
    return f"{_begin_of(text, width - 1 - cell_len(tail))}{GONE}{tail}"


def told_apart(names: Sequence[str], width: int) -> list[str]:
    """Each as `shortened`, but with what tells it from those that would look the same."""
    short = [shortened(name, width) for name in names]
    alike: dict[str, set[str]] = {}
    for name, shown in zip(names, short, strict=True):
        alike.setdefault(shown, set()).add(name)
    return [
        shown if len(alike[shown]) == 1 else _from_difference(name, alike[shown], width)
        for name, shown in zip(names, short, strict=True)
    ]


def _from_difference(name: str, alike: Collection[str], width: int) -> str:
    """The beginning, and what stands where names of equal ends begin to differ."""
    head = _begin_of(name, width // 4)
    at = max(_common(alike) - width // 4, len(head))
    rest = width - cell_len(head) - 1
    if cell_len(name[at:]) <= rest:
        return f"{head}{GONE}{_end_of(name, rest)}"
    return f"{head}{GONE}{_begin_of(name[at:], rest - 1)}{GONE}"


def _common(names: Collection[str]) -> int:
    """Letters with which all of them begin."""
    first, last = min(names), max(names)
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)


def _begin_of(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[:-1]
    return text


def _end_of(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[1:]
    return text
