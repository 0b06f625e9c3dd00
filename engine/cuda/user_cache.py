"""The user's cache folder for compiled kernels and tuning results."""

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path | None:
    """Return the user's cache folder, or None if the user has no home.

    On Linux it follows the XDG base directory specification, which ignores a relative path.
    """
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "")
    try:
        base = chosen if chosen.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "cuda-cyclegan"


def write_whole(path: Path, content: bytes) -> None:
    """Atomically write a file that other processes may read; create its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(content)
        Path(part.name).replace(path)
    except OSError:
        if part:
            Path(part.name).unlink(missing_ok=True)
        raise
