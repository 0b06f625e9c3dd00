"""Previews on disk, for a page that shows them."""

from .reading import StoredReport
from .report import StudyReport

LARGEST = 4 << 20
"""Bytes; a preview of this program has a tenth of it."""

_PNG = b"\x89PNG\r\n\x1a\n"


def preview_png(stored: StoredReport, row: StudyReport) -> bytes | None:
    """A study's preview, or None if it is not there or no longer a PNG of reasonable size.

    A relative path counts from the working directory, or else from the report's folder.
    """
    if row.preview is None or not row.preview.name.endswith(".preview.png"):
        return None
    for file in (row.preview, stored.file.parent / row.preview):
        try:
            if file.is_file() and file.stat().st_size <= LARGEST:
                content = file.read_bytes()
                return content if content.startswith(_PNG) else None
        except OSError:
            continue
    return None
