"""Streams whose work is done later, in any order that their events allow."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.volume_on_cpu import StreamAtOnce


@dataclass
class LateEvent:
    """A mark, whose last record is what is waited for."""

    reached: list[bool] = field(default_factory=lambda: [True])

    def record(self, stream: "LateStream") -> None:
        mark = [False]
        self.reached = mark
        stream.add(lambda: mark.__setitem__(0, True))


@dataclass
class LateStream:
    """What is queued, each with the mark that has to be reached before."""

    queued: deque[tuple[list[bool], Callable[[], None]]] = field(default_factory=deque)

    def add(self, work: Callable[[], None]) -> None:
        self.queued.append(([True], work))

    def after(self, event: LateEvent) -> None:
        self.queued.append((event.reached, lambda: None))

    def fill(self, *told: Any) -> None:
        self.add(lambda: StreamAtOnce().fill(*told))

    def download(self, *told: Any) -> None:
        self.add(lambda: StreamAtOnce().download(*told))

    upload = download


@dataclass(frozen=True)
class LateKernels:
    """Launches that are done when the stream comes to them."""

    kernels: Any

    def launch(self, stream: LateStream, launch: Any) -> None:
        stream.add(lambda: self.kernels.launch(stream, launch))


def do_all(streams: Sequence[LateStream]) -> None:
    """All work, of the first stream that need not wait each time."""
    while any(stream.queued for stream in streams):
        ready = (stream for stream in streams if stream.queued and stream.queued[0][0][0])
        _, work = next(ready).queued.popleft()
        work()
