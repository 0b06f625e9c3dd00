"""The reference pair that a user's training code computed, read from an .npz file as plain data."""

import io
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ModelFileError
from .graph import FloatArray

npy_format: Any = np.lib.format  # numpy leaves its header readers untyped

_LARGEST_ARRAY = 512 << 20
_MEMBERS = ("input", "output")


def read_reference(path: Path) -> tuple[FloatArray, FloatArray]:
    """Input and output, each [1, C, D, H, W] float32.

    Raises ModelFileError unless the file holds exactly these two arrays of finite numbers.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = {item.filename: item.file_size for item in archive.infolist()}
            if set(found) != {f"{name}.npy" for name in _MEMBERS}:
                raise ModelFileError("it must hold 'input' and 'output' and nothing else")
            if max(found.values()) > _LARGEST_ARRAY:
                raise ModelFileError(f"its arrays may take {_LARGEST_ARRAY >> 20} MiB at most")
            pair = [_array(name, archive.read(f"{name}.npy")) for name in _MEMBERS]
    except OSError as error:
        raise ModelFileError(f"Reference {path} cannot be read ({error.strerror}).") from error
    except (ModelFileError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise ModelFileError(
            f"Reference {path} is not usable: {error}; make one with the script that "
            "'cuda-cyclegan model reference-script' prints."
        ) from error
    return pair[0], pair[1]


def _array(name: str, content: bytes) -> FloatArray:
    stream = io.BytesIO(content)
    try:
        version = npy_format.read_magic(stream)
        if version != (1, 0):
            raise ValueError("it is of an unusual version")
        shape, fortran, dtype = npy_format.read_array_header_1_0(stream)
    except ValueError as error:
        raise ModelFileError(f"{name!r} is no plain NumPy array ({error})") from error
    data = content[stream.tell() :]
    if dtype.kind != "f" or len(shape) != 5 or shape[0] != 1 or min(shape) < 1:
        raise ModelFileError(
            f"{name!r} must be floating point of shape [1, C, D, H, W], not {dtype} of "
            f"{'x'.join(map(str, shape)) or 'no axes'}"
        )
    if prod(shape) * dtype.itemsize != len(data):
        raise ModelFileError(f"{name!r} holds more or fewer numbers than its header says")
    values = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(values).all():
        raise ModelFileError(f"{name!r} holds numbers that are not finite")
    return values
