"""Places among the inputs where scans may have been missed."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...io.links import LEADS_OUT
from .terminal.text import printable

if TYPE_CHECKING:
    from ...io.search import Skipped
    from ...pipelines.report.report import Skip


def missed(skipped: "Iterable[Skip | Skipped]") -> Iterator[str]:
    """A line for each of those places, and how to have what lies there."""
    reasons = {skip.path: skip.reason for skip in skipped if skip.missed}
    for path, reason in reasons.items():
        yield f"failed: {printable(str(path))}: {printable(reason)}"
    if LEADS_OUT in reasons.values():
        yield "Links that lead out of the inputs are followed with --follow-links."
