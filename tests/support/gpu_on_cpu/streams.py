"""Streams, events and graphs of the stand-in, at once or in any order that events allow."""

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

Work = Callable[[], object]


@dataclass
class Mark:
    """One recording of an event."""

    is_reached: bool = False

    def reach(self) -> None:
        self.is_reached = True


class Gpu:
    """Streams and the order in which their work is done.

    choose: of the streams that need not wait for an event, the one that goes on. Without it work is
    done when it is queued; with it, only when somebody waits.
    """

    def __init__(self, choose: Callable[[Sequence["Stream"]], "Stream"] | None = None) -> None:
        self._choose = choose
        self._streams: list[Stream] = []
        self._lock = threading.RLock()

    @classmethod
    def in_random_order(cls, seed: int) -> Self:
        return cls(random.Random(seed).choice)

    @classmethod
    def first_stream_first(cls) -> Self:
        """Each stream goes as far ahead of those opened after it as events let it."""
        return cls(lambda ready: ready[0])

    @property
    def is_at_once(self) -> bool:
        return self._choose is None

    def stream(self) -> "Stream":
        stream = Stream(self)
        self._streams.append(stream)
        return stream

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Do work until a condition holds; threads that wait at the same time take turns."""
        while self._choose:
            with self._lock:
                if is_done():
                    return
                ready = [stream for stream in self._streams if stream.is_ready]
                assert ready, "every stream waits for another"
                self._choose(ready).step()

    def finish(self) -> None:
        """Do all that is queued."""
        self.run_until(lambda: not any(stream.queue for stream in self._streams))


class Stream:
    """A queue of work; of a GPU of its own, at once, if none is given."""

    def __init__(self, gpu: Gpu | None = None) -> None:
        self.gpu = gpu or Gpu()
        self.queue: deque[Mark | Work] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Work) -> None:
        if self.gpu.is_at_once:
            work()
        else:
            self.queue.append(work)

    @property
    def is_ready(self) -> bool:
        if not self.queue:
            return False
        first = self.queue[0]
        return first.is_reached if isinstance(first, Mark) else True

    def step(self) -> None:
        work = self.queue.popleft()
        if not isinstance(work, Mark):
            work()

    def wait(self) -> None:
        self.gpu.run_until(lambda: not self.queue)

    def after(self, event: "Event") -> None:
        """Wait for the last recording of an event; as of CUDA's, for nothing if there is none."""
        if not event.mark.is_reached:
            self.queue.append(event.mark)

    def copy(self, target: int, source: int, size: int) -> None:
        self.submit(lambda: ctypes.memmove(target, source, size))

    upload = download = copy

    def upload_now(self, target: int, content: bytes | memoryview) -> None:
        self.submit(lambda: ctypes.memmove(target, bytes(content), memoryview(content).nbytes))
        self.wait()

    def fill(self, target: int, byte: int, size: int) -> None:
        self.submit(lambda: ctypes.memset(target, byte, size))

    def times(self, queue: Callable[[], None], repeats: int) -> list[float]:
        """Each run takes as long; one shows that it can be queued."""
        queue()
        self.wait()
        return [1e-5] * repeats


@dataclass
class Event:
    mark: Mark = field(default_factory=lambda: Mark(is_reached=True))
    stream: Stream = field(default_factory=Stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def record(self, stream: Stream) -> None:
        self.mark, self.stream = Mark(), stream
        stream.submit(self.mark.reach)

    def wait(self) -> None:
        mark = self.mark
        self.stream.gpu.run_until(lambda: mark.is_reached)

    def seconds_since(self, _: "Event") -> float:
        return 0.0


class Graph:
    """Work that is queued anew whenever the graph is launched."""

    def __init__(self, _stream: Stream, queue_work: Callable[[], None]) -> None:
        self.launch = queue_work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
