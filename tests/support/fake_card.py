"""A card in host memory whose queues run in any order that their events allow."""

import ctypes
import random
from collections import deque
from typing import Any

import numpy as np

from cuda_cyclegan.engine.compiler.launches.launch import Launch
from cuda_cyclegan.engine.compiler.launches.voxels.sliding_window import (
    BlendArguments,
    CutArguments,
    StoreVoxelsArguments,
)
from cuda_cyclegan.engine.scaling import VOXEL_TYPES, Scaling


class Card:
    """Runs what is queued only when somebody waits, and then in a random order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._streams: list[FakeStream] = []

    def stream(self) -> "FakeStream":
        stream = FakeStream(self)
        self._streams.append(stream)
        return stream

    def run_until(self, is_done: Any) -> None:
        while not is_done():
            ready = [stream for stream in self._streams if stream.is_ready]
            assert ready, "every queue waits for another"
            self._random.choice(ready).step()


class FakeStream:
    def __init__(self, card: Card) -> None:
        self._card = card
        self.queue: deque[Any] = deque()

    def __enter__(self) -> "FakeStream":
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def is_ready(self) -> bool:
        return bool(self.queue) and (
            not isinstance(self.queue[0], FakeMark) or self.queue[0].is_reached
        )

    def step(self) -> None:
        work = self.queue.popleft()
        if not isinstance(work, FakeMark):
            work()

    def wait(self) -> None:
        self._card.run_until(lambda: not self.queue)

    def after(self, event: "FakeEvent") -> None:
        assert event.mark is not None, "nobody has recorded this event yet"
        self.queue.append(event.mark)

    def upload(self, target: int, source: int, size: int) -> None:
        self.queue.append(lambda: ctypes.memmove(target, source, size))

    download = upload

    def upload_now(self, target: int, content: bytes) -> None:
        self.queue.append(lambda: ctypes.memmove(target, content, len(content)))
        self.wait()

    def fill(self, target: int, byte: int, size: int) -> None:
        self.queue.append(lambda: ctypes.memset(target, byte, size))


class FakeMark:
    """One recording of an event."""

    is_reached = False


class FakeEvent:
    mark: FakeMark | None = None
    _stream: FakeStream

    def __enter__(self) -> "FakeEvent":
        return self

    def __exit__(self, *_: object) -> None: ...

    def record(self, stream: FakeStream) -> None:
        mark = self.mark = FakeMark()
        self._stream = stream
        stream.queue.append(lambda: setattr(mark, "is_reached", True))

    def wait(self) -> None:
        mark = self.mark
        assert mark is not None
        self._stream._card.run_until(lambda: mark.is_reached)

    def seconds_since(self, _: "FakeEvent") -> float:
        return 0.0


class FakeBuffer:
    """Device or pinned memory, poisoned as both are full of anything at first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = np.full(size // 4 + 1, np.nan, np.float32)
        self.address = self._memory.ctypes.data

    def __enter__(self) -> "FakeBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self._memory[:] = np.nan

    def array(self, shape: tuple[int, ...], kind: Any = np.float32) -> Any:
        return np.frombuffer(self._memory, kind, int(np.prod(shape))).reshape(shape)


class FakeKernels:
    """The kernels of sliding_window.cu in numpy, on addresses."""

    def launch(self, stream: FakeStream, launch: Launch) -> None:
        values: Any = type(launch.arguments).from_buffer_copy(launch.arguments)
        run = {"cut": cut, "blend": blend, "store_voxels": store_voxels}[launch.kernel]
        stream.queue.append(lambda: run(values, launch.grid[2]))


def floats(address: int, *shape: int) -> Any:
    return numbers(address, "float32", *shape)


def numbers(address: int, kind: str, *shape: int) -> Any:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    memory = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, kind).reshape(shape)


def cut(p: CutArguments, channels: int) -> None:
    depth, height, width = p.extents
    kind = VOXEL_TYPES[p.scaling.voxel]
    ring = scaling_of(p).forward(numbers(p.ring, kind, channels, p.rows, height, width))
    patch = patches_at(p, channels)
    at = [np.arange(o, o + e) for o, e in zip(p.origin, p.patch_extents, strict=True)]
    places = [within(a, e, p.fill) for a, e in zip(at, p.extents, strict=True)]
    patch[:] = ring[:, places[0] % p.rows][:, :, places[1]][:, :, :, places[2]]
    if p.fill == 2:
        inside = [(a >= 0) & (a < e) for a, e in zip(at, (depth, height, width), strict=True)]
        outside = ~np.multiply.outer(np.multiply.outer(*inside[:2]), inside[2])
        for channel in range(channels):
            patch[channel][outside] = floats(p.lowest, channels)[channel]


def store_voxels(p: StoreVoxelsArguments, _: int) -> None:
    kind = VOXEL_TYPES[p.scaling.voxel]
    if kind != "float32":
        assert (p.lowest, p.highest) == (np.iinfo(kind).min, np.iinfo(kind).max)
    network = floats(p.mean, p.count)
    if np.isfinite(network).all():
        scaling_of(p).store(network, numbers(p.stored, kind, p.count))
    else:
        ctypes.c_int.from_address(p.overflowed).value = 1


def scaling_of(p: Any) -> Scaling:
    given = p.scaling
    return Scaling(given.centre, given.radius, bool(given.clips), given.lowest)


def patches_at(p: Any, channels: int) -> Any:
    """A patch of the network's axes, seen along the array's."""
    flat = floats(p.patch, channels, int(np.prod([*p.patch_extents])))
    steps = [4 * step for step in (flat.shape[1], *p.patch_steps)]
    return np.lib.stride_tricks.as_strided(flat, (channels, *p.patch_extents), steps)


def within(position: Any, extent: int, fill: int) -> Any:
    if fill != 0 or extent == 1:
        return np.clip(position, 0, extent - 1)
    period = 2 * (extent - 1)
    folded = np.abs(position) % period
    return np.where(folded < extent, folded, period - folded)


def blend(p: BlendArguments, _: int) -> None:
    _, height, width = p.extents
    box = tuple(slice(f, f + c) for f, c in zip(p.first, p.count, strict=True))
    rows = (np.arange(p.place[0], p.place[0] + p.count[0])) % p.rows
    plane = tuple(slice(o, o + c) for o, c in zip(p.place[1:], p.count[1:], strict=True))
    total = floats(p.total, p.rows, height, width)
    weights = floats(p.weights, *p.patch_extents)[box]
    total[rows, *plane] += weights
    share = weights / total[rows, *plane]
    for channel, patch in enumerate(patches_at(p, p.channels)):
        mean = floats(p.mean, p.channels, p.rows, height, width)[channel]
        mean[rows, *plane] += (patch[box] - mean[rows, *plane]) * share
    if ctypes.c_int.from_address(p.overflow).value:
        ctypes.c_int.from_address(p.overflowed).value = 1


class FakeProgram:
    """Translates what lies at `patches` by a function of [N, C, D, H, W], as one run."""

    def __init__(
        self, stream: FakeStream, shape: tuple[int, ...], function: Any, channels: int = 1
    ) -> None:
        """channels: of what comes out."""
        self._stream, self._shape, self._function = stream, shape, function
        self._made = shape[0], channels, *shape[2:]
        sizes = [int(np.prod(each)) * 4 for each in (shape, self._made)]
        self._buffers = [*map(FakeBuffer, sizes), FakeBuffer(4)]
        self.patches, self.translated, self.overflow = (b.address for b in self._buffers)
        self._buffers[0].array(shape)[:] = 0
        ctypes.c_int.from_address(self.overflow).value = 0

    def launch(self) -> None:
        self._stream.queue.append(self._run)

    def _run(self) -> None:
        made = self._function(floats(self.patches, *self._shape).copy())
        floats(self.translated, *self._made)[:] = made
        ctypes.c_int.from_address(self.overflow).value = int(not np.isfinite(made).all())
