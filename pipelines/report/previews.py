"""Previews on disk, reduced in size for a page that shows many of them."""

from io import BytesIO
from pathlib import Path

from .codec import StoredReport
from .report import StudyReport

LARGEST_FILE, LARGEST_EDGE = 4 << 20, 4096
"""Limits in bytes and pixels; this program's previews have a tenth and a quarter of them."""

WIDTH, QUALITY = 800, 70
"""Width in pixels, and WebP's quality: letters and edges stay sharp, in 1/20 of the bytes."""


THUMBNAIL_WIDTH = 420


def thumbnail(file: Path) -> bytes | None:
    """Return a preview's picture for a list as WebP; None if it cannot be shown."""
    try:
        if not file.is_file() or file.stat().st_size > LARGEST_FILE:
            return None
        return small_webp(file, THUMBNAIL_WIDTH)
    except OSError:
        return None


def small_preview(stored: StoredReport, row: StudyReport) -> bytes | None:
    """Return a study's preview as WebP, or None if it is missing or not a PNG of reasonable size.

    A relative path is resolved against the working directory, or else the report's folder.
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


def small_webp(file: Path | BytesIO, width: int = WIDTH) -> bytes | None:
    """Return a PNG as WebP, or None if it is too large; raises OSError if it is not a picture."""
    from PIL import Image

    with Image.open(file, formats=["PNG"]) as picture:
        if max(picture.size) > LARGEST_EDGE:
            return None
        small = picture.convert("RGB")
    if small.width > width:
        height = max(1, round(small.height * width / small.width))
        small = small.resize((width, height), Image.Resampling.LANCZOS)
    stored = BytesIO()
    small.save(stored, "WEBP", quality=QUALITY, method=2)
    return stored.getvalue()
