"""Lines about many studies, of which those that say the same are one."""

from collections.abc import Iterable, Iterator

MOST_ALIKE = 3
"""Of names with the same words that have a line each."""


def alike_lines(kind: str, told: Iterable[tuple[str, str]], what: str = "studies") -> Iterator[str]:
    """`KIND: NAME: WORDS` for each name and words, in the order in which the words first come.

    what: the names are of.
    """
    alike: dict[str, list[str]] = {}
    for name, words in told:
        alike.setdefault(words, []).append(name)
    for words, names in alike.items():
        if len(names) > MOST_ALIKE:
            names[:] = [f"{len(names)} {what}, {names[0]} to {names[-1]}"]
        yield from (f"{kind}: {name}: {words}" for name in names)
