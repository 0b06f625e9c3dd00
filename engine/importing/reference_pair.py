"""Reference pairs, a patch and the training code's output for it, read from .npz and .pt files."""

import io
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...io.files.regular import open_regular
from ..errors import CheckpointError, ModelFileError
from ..network.graph import times
from ..network.layers import FloatArray
from .checkpoint_file import read_checkpoint
from .torch_files import ZIP_FAULTS, StoredTensor

_npy_format: Any = np.lib.format  # numpy leaves its header readers untyped

_LARGEST_ARRAY = 512 << 20
_MEMBERS = ("input", "output")
_WANTED = "it must contain exactly 'input' and 'output'"


def read_reference(path: Path) -> tuple[FloatArray, FloatArray]:
    """Read a reference pair from .npz or .pt: input and output, each [1, C, D, H, W] float32.

    Raises ModelFileError unless the file holds exactly these two arrays of finite numbers.
    """
    try:
        if not path.is_file():
            raise ModelFileError("the file does not exist")
        source, target = _numpy_pair(path) if _is_npz(path) else _torch_pair(path)
    except OSError as error:
        raise ModelFileError(f"Reference {path} cannot be read ({error.strerror}).") from error
    except (ModelFileError, CheckpointError) as error:
        reason = str(error).removeprefix(f"{path}: ").rstrip(".")
        raise ModelFileError(
            f"Reference {path} is not usable: {reason}; create one with the script printed by "
            "'cuda-cyclegan model reference-script'."
        ) from error
    return source, target


def _is_npz(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(256)
    return start.startswith(b"PK") and b".npy" in start


def _numpy_pair(path: Path) -> tuple[FloatArray, FloatArray]:
    source, target = map(_numpy_array, _MEMBERS, _unzipped(path))
    return source, target


def _unzipped(path: Path) -> list[bytes]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sorted(entry.filename for entry in entries) != [f"{name}.npy" for name in _MEMBERS]:
                raise ModelFileError(_WANTED)
            if max(entry.file_size for entry in entries) > _LARGEST_ARRAY:
                raise ModelFileError(f"its arrays may have at most {_LARGEST_ARRAY >> 20} MiB")
            return [archive.read(f"{name}.npy") for name in _MEMBERS]
    except (*ZIP_FAULTS, zlib.error) as error:
        raise ModelFileError(f"it is damaged ({error})") from error


def _torch_pair(path: Path) -> tuple[FloatArray, FloatArray]:
    contents = read_checkpoint(path).contents
    source, target = (contents.get(name) for name in _MEMBERS)
    if not isinstance(source, StoredTensor) or not isinstance(target, StoredTensor):
        raise ModelFileError(_WANTED)
    for name, tensor in zip(_MEMBERS, (source, target), strict=True):
        _check_shape(name, tensor.element, tensor.shape)
    return source.read("'input'"), target.read("'output'")


def _numpy_array(name: str, content: bytes) -> FloatArray:
    stream = io.BytesIO(content)
    try:
        version = _npy_format.read_magic(stream)
        if version != (1, 0):
            raise ValueError("it is of an unusual version")
        shape, fortran, dtype = _npy_format.read_array_header_1_0(stream)
    except ValueError as error:
        raise ModelFileError(f"{name!r} is not a plain NumPy array ({error})") from error
    data = content[stream.tell() :]
    _check_shape(name, dtype.name, shape)
    if prod(shape) * dtype.itemsize != len(data):
        raise ModelFileError(f"{name!r} has more or fewer numbers than its header states")
    values = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(values).all():
        raise ModelFileError(f"{name!r} contains numbers that are not finite")
    return values


def _check_shape(name: str, element: str, shape: tuple[int, ...]) -> None:
    if prod(shape) > _LARGEST_ARRAY // 4:
        raise ModelFileError(f"its arrays may have at most {_LARGEST_ARRAY >> 20} MiB")
    if "float" not in element or len(shape) != 5 or shape[0] != 1 or min(shape) < 1:
        raise ModelFileError(
            f"{name!r} must be floating point of shape [1, C, D, H, W], not {element} of "
            f"{times(shape) or 'no axes'}"
        )
