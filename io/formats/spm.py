"""The .mat file of SPM, with the place of the voxels of an Analyze image."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UnsupportedScanError
from ..files.regular import open_regular
from ..volume import Affine

MAT_SUFFIX = ".mat"
_LARGEST_MAT_BYTES = 1 << 20
_FROM_ONE = np.array([[1.0, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]])
"""SPM counts voxels from 1."""
_HEADER_BYTES, _PACKED = 128, 15
_ORDERS = {b"IM": "<", b"MI": ">"}
"""Orders of bytes, by the end of the header."""
_FLIP = np.diag([-1.0, 1.0, 1.0, 1.0])


def mat_beside(header: Path) -> Path:
    """Return the path of the .mat of a header: x.hdr -> x.mat, x.hdr.gz -> x.mat."""
    name = header.name[: -len(".gz")] if header.suffix.lower() == ".gz" else header.name
    return header.with_name(Path(name).with_suffix(MAT_SUFFIX).name)


def read_mat(mat: Path, volume_index: int) -> Affine | None:
    """Return the voxel to RAS+ map of one volume, from `mat`, or from `M`, which lacks SPM's flip.

    None if the file is no MATLAB file or has neither, such as FSL's of the same name.
    Raises UnsupportedScanError if scipy, which reads such files, is not installed.
    """
    with open_regular(mat) as file:
        contents = file.read(_LARGEST_MAT_BYTES)
    if b"\0" not in contents:
        return None
    try:
        import scipy.io as _scipy_io
    except ImportError:
        raise UnsupportedScanError(
            f"{mat} gives the position of the scan next to it, but scipy is needed to read it; "
            "install scipy (extra spm) or convert the scan to NIfTI."
        ) from None
    scipy_io: Any = _scipy_io  # typed only in part
    try:
        found: dict[str, Any] = scipy_io.loadmat(io.BytesIO(_unpacked(contents)))
        for name, flip in (("mat", np.eye(4)), ("M", _FLIP)):
            if name in found:
                return _affine(found[name], flip, volume_index)
    except Exception:  # SciPy and NumPy have no common class for what is no such file
        return None
    return None


def _unpacked(contents: bytes) -> bytes:
    """Return a MATLAB 5 file with its variables uncompressed; other versions are unchanged.

    After a header come elements: kind, length, so many bytes. scipy would unpack one of any size.
    Raises ValueError if they are too large, zlib.error if they are damaged.
    """
    order = _ORDERS.get(contents[_HEADER_BYTES - 2 : _HEADER_BYTES])
    if order is None:
        return contents
    tag = struct.Struct(f"{order}II")
    parts, at, left = [contents[:_HEADER_BYTES]], _HEADER_BYTES, _LARGEST_MAT_BYTES
    while at + tag.size <= len(contents):
        kind, length = tag.unpack_from(contents, at)
        end = at + tag.size + length
        part = contents[at:end]
        if kind == _PACKED:
            unpacker = zlib.decompressobj()
            part = unpacker.decompress(part[tag.size :], left + 1)
        left -= len(part)
        if left < 0:
            raise ValueError("its variables are larger than any that describe positions")
        parts.append(part)
        at = end
    return b"".join(parts)


def _affine(stored: Any, flip: Affine, volume_index: int) -> Affine | None:
    matrices = np.asarray(stored, dtype=np.float64)
    matrices = matrices.reshape(*matrices.shape, *(1 for _ in range(3 - matrices.ndim)))
    if matrices.shape[:2] != (4, 4) or not np.isfinite(matrices).all():
        return None
    matrix = matrices[:, :, min(volume_index, matrices.shape[2] - 1)]
    if np.linalg.matrix_rank(matrix) < 4:
        return None
    return flip @ matrix @ _FROM_ONE
