"""Tensors of an ONNX file as arrays, from its own bytes or from a file beside it."""

from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from ....io.files.regular import open_regular
from ...errors import CheckpointError, quoted
from ...network.graph import LARGEST_WEIGHTS
from .wire import once

Array: TypeAlias = npt.NDArray[Any]

_BYTES: dict[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
    TensorProto.DOUBLE: 8,
    TensorProto.INT64: 8,
    TensorProto.INT32: 4,
    TensorProto.INT16: 2,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
    TensorProto.BOOL: 1,
}
"""Element types, each with the bytes of one."""


class TensorReader:
    """Reads the tensors of one file; together they may be no larger than a model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = LARGEST_WEIGHTS

    def read(self, tensor: TensorProto) -> Array:
        """Numbers as float32, int64 or bool; raises CheckpointError."""
        name, shape = quoted(tensor.name), tuple(tensor.dims)
        width = _BYTES.get(tensor.data_type)
        if width is None:
            raise CheckpointError(f"Tensor {name} is of an element type that is not supported.")
        if any(extent < 0 for extent in shape) or len(shape) > 8:
            raise CheckpointError(f"Tensor {name} has a shape that makes no sense.")
        count = prod(shape)
        self._left -= count * max(width, 4)
        if self._left < 0:
            raise CheckpointError(
                f"The tensors take more than {LARGEST_WEIGHTS >> 30} GiB, and no model may."
            )
        array = self._external(tensor, count * width) if _is_external(tensor) else tensor
        return _plain(_array(array, tensor, name))

    def _external(self, tensor: TensorProto, size: int) -> bytes:
        name = quoted(tensor.name)
        entries = ((one.key, one.value) for one in tensor.external_data)
        place = once(f"entries for the numbers of {name}", entries)
        path = self._beside(place.get("location", ""), name)
        try:
            offset, length = int(place.get("offset", "0")), int(place.get("length", str(size)))
            if offset < 0 or length != size or offset + size > path.stat().st_size:
                raise ValueError
            with open_regular(path) as file:
                file.seek(offset)
                content = file.read(size)
        except (OSError, ValueError, OverflowError) as error:
            raise _cut_short(name, path) from error
        if len(content) != size:
            raise _cut_short(name, path)
        return content

    def _beside(self, location: str, name: str) -> Path:
        """A file in the folder of the ONNX file, or below it."""
        refusal = CheckpointError(
            f"The numbers of {name} lie in {quoted(location)}, which is not in the folder of the "
            "ONNX file; put it there, or export into one file."
        )
        if "\0" in location or not location:
            raise refusal
        folder = self._folder.resolve()
        path = (folder / location).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise refusal
        return path


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _cut_short(name: str, path: Path) -> CheckpointError:
    return CheckpointError(
        f"The numbers of {name} are not where they must be in {path.name}; copy or export again."
    )


def _array(source: TensorProto | bytes, tensor: TensorProto, name: str) -> Array:
    if isinstance(source, bytes):
        held = TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=source)
        return _array(held, held, name)
    try:
        return numpy_helper.to_array(source)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"Tensor {name} holds more or fewer numbers than its shape says."
        ) from error


def _plain(array: Array) -> Array:
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)
