"""What a card does at most, measured on it in the arithmetic that a network runs in."""

from collections.abc import Callable
from contextlib import ExitStack
from math import prod

import numpy as np

from .convolutions import Cudnn
from .cuda_driver import Context, DeviceBuffer, Stream
from .errors import CudaError, DeviceMemoryError
from .kernel_images import Kernels
from .measured import Ceilings
from .plan_search import PlanSearch, Search
from .precision import Precision
from .steps import NUMBER_BYTES, Convolution
from .tuning import TuningCache
from .weight_layout import encoded

_EDGES = ((8, 32, 32), (4, 32, 32))
"""Extents whose product is the edge of the square matrices; the first that there is room for."""

_COPIED = 1 << 30
_LEAST_COPIED = 64 << 20
"""Bytes of a copy at most and at least: several times what the caches of any card hold."""

_WORKSPACE = 64 << 20
_REPEATS = 20
_SECONDS = 10.0


def measure_ceilings(index: int, precision: Precision, room: int) -> Ceilings | None:
    """The ceilings of one card with `room` bytes to measure in; None if that is too little."""
    with Context(index) as context, Stream() as stream:
        try:
            return Ceilings(
                _matrix_rate(context, stream, precision, room), _bandwidth(stream, room)
            )
        except (CudaError, DeviceMemoryError):
            return None


def _matrix_rate(context: Context, stream: Stream, precision: Precision, room: int) -> float:
    """FLOP/s of the fastest plan for a product of square matrices.

    A convolution of single voxels is one: its voxels are the rows, its channels the columns.
    """
    shapes = [_product(extents, precision) for extents in _EDGES]
    shape = next((shape for shape in shapes if _bytes(shape) <= room), None)
    if shape is None:
        raise DeviceMemoryError("There is no room for a matrix product.")
    with ExitStack() as opened:
        library = opened.enter_context(Cudnn(stream))
        kernels = opened.enter_context(Kernels(precision, context.capability, None))
        search = PlanSearch(library, kernels, stream, TuningCache(None, {}))
        algorithm = search.algorithms([shape], _WORKSPACE, Search("quick", _SECONDS))[shape]
        size = _matrix_bytes(shape)
        buffer = opened.enter_context(DeviceBuffer(3 * size + _WORKSPACE))
        source, weight, target, workspace = (buffer.address + i * size for i in range(4))
        noise = np.random.default_rng(0).normal(size=size // NUMBER_BYTES[precision])
        for place in (source, weight):
            stream.upload_now(place, encoded(noise.astype(np.float32), precision))
        places = source, weight, target, workspace
        seconds = _seconds(stream, lambda: search.run(shape, algorithm, places))
    return 2 * prod(shape.source_extents) * shape.source_channels**2 / seconds


def _product(extents: tuple[int, int, int], precision: Precision) -> Convolution:
    edge, one, none = prod(extents), (1, 1, 1), (0, 0, 0)
    return Convolution(1, extents, edge, extents, edge, one, one, none, none, precision)


def _matrix_bytes(shape: Convolution) -> int:
    return shape.source_channels**2 * NUMBER_BYTES[shape.precision]


def _bytes(shape: Convolution) -> int:
    return 3 * _matrix_bytes(shape) + _WORKSPACE


def _bandwidth(stream: Stream, room: int) -> float:
    """Bytes a second, read and written, of copies within the card's memory."""
    size = min(_COPIED, room // 2 // 512 * 512)
    if size < _LEAST_COPIED:
        raise DeviceMemoryError("There is no room for a copy.")
    with DeviceBuffer(2 * size) as buffer:
        first, second = buffer.address, buffer.address + size
        noise = np.random.default_rng(0).bytes(_LEAST_COPIED)
        for place in range(first, first + size - _LEAST_COPIED + 1, _LEAST_COPIED):
            stream.upload_now(place, noise)
        seconds = _seconds(stream, lambda: stream.copy(second, first, size))
    return 2 * size / seconds


def _seconds(stream: Stream, queue: Callable[[], None]) -> float:
    """Seconds of the fastest of several runs."""
    times: list[float] = []
    for _ in range(_REPEATS + 1):
        with stream.timed() as elapsed:
            queue()
        times.append(elapsed[0] / 1000)
    return min(times[1:])
