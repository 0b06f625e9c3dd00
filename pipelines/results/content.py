"""Files summed up by their bytes, so that anyone can recompute it with sha256sum."""

import hashlib
from collections.abc import Collection

from ..report.report import Content
from .manifest import FileState


def content_of(states: Collection[FileState]) -> Content | None:
    """What files consist of; None without any. docs/reports.md shows how to recompute the hash."""
    if not states:
        return None
    digests = sorted(state.sha256 for state in states)
    if len(digests) > 1:
        lines = "".join(f"{digest}\n" for digest in digests)
        digests = [hashlib.sha256(lines.encode()).hexdigest()]
    return Content(len(states), sum(state.size for state in states), digests[0])
