"""The user's cache folder for compiled kernels and tuning results.

A power loss may leave a file there empty or cut, as nothing is flushed to disk. So no content is
used without proof: `read_proven` compares a hash, and JSON is parsed and decoded as a whole.
Anything else counts as missing.
"""

import os
import tempfile
from hashlib import sha256
from pathlib import Path

from ...io.files.regular import read_regular

_PROOF_BYTES = sha256().digest_size


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


def read_proven(path: Path) -> bytes | None:
    """Return the content that `write_proven` wrote; None if it is missing, damaged or foreign."""
    try:
        stored = read_regular(path)
    except OSError:
        return None
    proof, content = stored[:_PROOF_BYTES], stored[_PROOF_BYTES:]
    return content if sha256(content).digest() == proof else None


def write_proven(path: Path, content: bytes) -> None:
    """Write a file as `write_whole` does, with a hash by which `read_proven` knows it."""
    write_whole(path, sha256(content).digest() + content)


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
