"""Output files named by the user: never overwritten without consent, never half written."""

from pathlib import Path

from ...io.files.documents import why_not_writable, would_replace
from ..errors import OccupiedError


def check_free(target: Path, *, replace: bool, sources: tuple[Path, ...]) -> None:
    """Raise OccupiedError for a source, an existing file to keep, or a target never written to."""
    if reason := why_not_writable(target):
        raise OccupiedError(f"{target} {reason}.")
    if any(source.exists() and target.exists() and target.samefile(source) for source in sources):
        raise OccupiedError(f"{target} would be overwritten by its own result; choose another.")
    if would_replace(target) and not replace:
        raise OccupiedError(f"{target} already exists; choose another name or use setting force.")
