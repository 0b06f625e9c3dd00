"""Previews on disk, reduced in size for a page that shows many of them."""

from io import BytesIO
from pathlib import Path

from ..study.preview import THUMBNAIL, THUMBNAIL_WIDTH

LARGEST_FILE, LARGEST_EDGE = 4 << 20, 4096
"""Limits in bytes and pixels; this program's previews have a tenth and a quarter of them."""

WIDTH, QUALITY = 800, 70
"""Width in pixels, and WebP's quality: letters and edges stay sharp, in 1/20 of the bytes."""


def thumbnail(file: Path) -> bytes | None:
    """Return a picture for a list as WebP, or None if the file is no preview of reasonable size.

    Previews hold one; of those of earlier versions the whole picture is taken.
    """
    from PIL import Image

    try:
        if not file.name.endswith(".preview.png") or not file.is_file():
            return None
        if file.stat().st_size > LARGEST_FILE:
            return None
        with Image.open(file, formats=["PNG"]) as picture:
            chunks = {kind: content for kind, content, *_ in getattr(picture, "private_chunks", ())}
        return chunks.get(THUMBNAIL) or small_webp(file, THUMBNAIL_WIDTH)
    except (OSError, SyntaxError):  # of a damaged PNG
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
