"""Results that repeat that of a different scan, as those of a network that returns one image."""

from collections import defaultdict, deque
from collections.abc import Sequence
from textwrap import wrap

from .report import StudyReport

MOST_BITS = 7
"""Largest number of bits of 128 in which the patterns of repeated results differ."""

_FEWEST_BITS = 14
"""Smallest number of bits in which the patterns of different scans differ."""

_DIGITS = 4
"""Hexadecimal digits of a part of a pattern: of eight parts one is equal if 7 bits differ."""

_KEPT = 16
"""Largest number of results with an equal part that one is compared with."""


def repetitions(rows: Sequence[StudyReport]) -> dict[int, int]:
    """Return results that repeat that of a different scan, by their places, each with the number of
    bits in which their patterns differ.
    """
    near: defaultdict[tuple[int, str], deque[int]] = defaultdict(lambda: deque(maxlen=_KEPT))
    patterns: dict[int, tuple[int, int]] = {}
    found: dict[int, int] = {}
    for at, row in enumerate(rows):
        if not (row.is_done and row.measures and row.measures.patterns):
            continue
        scan, result = row.measures.patterns
        patterns[at] = int(scan, 16), int(result, 16)
        # Patterns that differ in few bits have a part in common, and most others have none.
        parts = [*enumerate(wrap(result, _DIGITS)), (-1, result)]
        others = {other for part in parts for other in near[part]}
        for other in others:
            scans, results = (
                (one ^ two).bit_count()
                for one, two in zip(patterns[at], patterns[other], strict=True)
            )
            if results <= MOST_BITS and scans >= _FEWEST_BITS:
                found[at] = found[other] = results
        for part in parts:
            near[part].append(at)
    return found
