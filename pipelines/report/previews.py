"""Previews on disk, made small for a page that shows many of them."""

from io import BytesIO
from pathlib import Path

from .codec import StoredReport
from .report import StudyReport

LARGEST_FILE, LARGEST_EDGE = 4 << 20, 4096
"""Bytes and pixels; a preview of this program has a tenth of the one and a quarter of the other."""

WIDTH, QUALITY = 800, 70
"""Pixels across, and WebP's quality: letters and edges stay sharp, in a twentieth of the bytes."""


def small_preview(stored: StoredReport, row: StudyReport) -> bytes | None:
    """A study's preview as WebP, or None if it is not there or no longer a PNG of reasonable size.

    A relative path counts from the working directory, or else from the report's folder.
    """
    if row.preview is None or not row.preview.name.endswith(".preview.png"):
        return None
    for file in (row.preview, stored.file.parent / row.preview):
        try:
            if file.is_file() and file.stat().st_size <= LARGEST_FILE:
                return small_webp(file)
        except OSError:
            continue
    return None


def small_webp(file: Path | BytesIO) -> bytes | None:
    """A PNG as WebP, or None if it is too large; raises OSError for what is no picture."""
    from PIL import Image

    with Image.open(file, formats=["PNG"]) as picture:
        if max(picture.size) > LARGEST_EDGE:
            return None
        small = picture.convert("RGB")
    if small.width > WIDTH:
        height = max(1, round(small.height * WIDTH / small.width))
        small = small.resize((WIDTH, height), Image.Resampling.LANCZOS)
    stored = BytesIO()
    small.save(stored, "WEBP", quality=QUALITY, method=2)
    return stored.getvalue()
