"""Generators on any device: protocols for patches, sliding windows and whole volumes; and the
generator that threads share, which repeats work in a wider precision after an overflow.
"""

import threading
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from .errors import PrecisionOverflowError
from .network.graph import Graph
from .network.layers import FloatArray, Triple
from .options import Precision, Progress
from .patch_grid import PatchWindow, Timing
from .scaling import Stored


class PatchGenerator(Protocol):
    """A generator of patches, ready to run on a device."""

    @property
    def graph(self) -> Graph:
        """Graph of the network."""
        ...

    @property
    def device(self) -> str:
        """Description of the device, for reports."""
        ...

    def __call__(self, patches: FloatArray) -> FloatArray:
        """Translate patches float32 [N, C, D, H, W] of network intensity, typically [-1, 1].

        Returns [N, C', D, H, W]. Raises PrecisionOverflowError if a result is not finite.
        """
        ...


@runtime_checkable
class WindowStreaming(Protocol):
    """A generator that also cuts and blends patches on its device."""

    def run_window(
        self,
        source: Stored,
        window: PatchWindow,
        target: Stored,
        on_patches: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`; on_patches: called with the number of patches just
        done.

        Both are of VOXEL_TYPES. Raises DeviceMemoryError, before any patch is done, if the device
        has too little memory, and PrecisionOverflowError if a result is not finite.
        """
        ...


@runtime_checkable
class VolumeGenerator(Protocol):
    """A generator for whole-volume inference: one pass over a volume of any extents."""

    @property
    def graph(self) -> Graph:
        """Graph of the network."""
        ...

    @property
    def device(self) -> str:
        """Description of the device, for reports."""
        ...

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target` [C', D, H, W].

        The volume is padded at its end to a multiple of the network's stride, by repeating the last
        voxels, and the result is cropped. on_share: called with the share of the work that is done.
        Raises PatchShapeError, DeviceMemoryError before anything is computed, and
        PrecisionOverflowError if a result is not finite.
        """
        ...


@runtime_checkable
class ReadyBeforehand(Protocol):
    """A generator of volumes that can allocate memory while the voxels are still being read."""

    def make_ready(self, extents: Triple) -> None:
        """Allocate memory for a volume (D, H, W). Raises what `translate_volume` would raise."""
        ...


@runtime_checkable
class Tunable(Protocol):
    """A generator that can search for faster tactics once its work is done."""

    def tune(self, until: float, progress: Progress) -> None:
        """Search tactics for later starts, up to a time of the monotonic clock.

        This generator keeps its own, so that the results of a batch do not depend on when a search
        ends. Layers are completed one by one, and what is known by then is kept. progress: called
        for each layer; an exception that it raises ends the search.
        """
        ...


AnyGenerator: TypeAlias = PatchGenerator | VolumeGenerator
"""A generator of patches or of whole volumes."""


T = TypeVar("T")
OpenInPrecision: TypeAlias = Callable[[Precision], AbstractContextManager[AnyGenerator]]

WIDER: dict[Precision, Precision] = {"fp16": "bf16", "bf16": "fp32", "tf32": "fp32"}
"""Precision to repeat the work in after an overflow in another."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """Result of some work.

    result: returned by the work. precision: in which it succeeded. notes: a line for each
    repetition.
    """

    result: T
    precision: Precision
    notes: tuple[str, ...]


@contextmanager
def shared_generator(
    open_generator: OpenInPrecision, precisions: Collection[Precision]
) -> Generator["SharedGenerator"]:
    """Own a device's open generator until the end of the block.

    precisions: supported by the device.
    """
    with ExitStack() as opened:
        yield SharedGenerator(open_generator, precisions, opened)


class SharedGenerator:
    """A network that is open in one precision at a time, so that a device holds one program.

    Threads share it, and it stays open for the next batch. Work in another precision waits until
    nobody uses the open generator, closes it and opens its own; later work waits for its turn.
    opened: closes the last generator.
    """

    def __init__(
        self,
        open_generator: OpenInPrecision,
        precisions: Collection[Precision],
        opened: ExitStack,
    ) -> None:
        self._open_generator = open_generator
        self._precisions = precisions
        self._opened = opened
        self._open: tuple[Precision, AnyGenerator] | None = None
        self._users = 0
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    def open(self, precision: Precision) -> str:
        """Open the network in a precision; return the description of the device."""
        with self._in_use(precision) as generator:
            return generator.device

    def tune(self, until: float, progress: Progress) -> None:
        """Let the open generator search as `Tunable` describes, while nobody uses it."""
        with self._turn:
            if self._open is not None and isinstance(generator := self._open[1], Tunable):
                generator.tune(until, progress)

    def do(self, work: Callable[[AnyGenerator], T], precision: Precision) -> Outcome[T]:
        """Do work that can be repeated from the start, such as one study.

        After an overflow it is repeated in the next wider precision; any other error passes
        through, also one of opening the generator.
        """
        notes = list[str]()
        while True:
            try:
                with self._in_use(precision) as generator:
                    return Outcome(work(generator), precision, tuple(notes))
            except PrecisionOverflowError as error:
                wider = self._wider(precision)
                if wider is None:
                    raise PrecisionOverflowError.of(precision) from error
                notes.append(
                    f"A value exceeded the range of {precision}; the computation was repeated in "
                    f"{wider}."
                )
                precision = wider

    def _wider(self, precision: Precision) -> Precision | None:
        wider = WIDER.get(precision)
        while wider and wider not in self._precisions:
            wider = WIDER.get(wider)
        return wider

    @contextmanager
    def _in_use(self, precision: Precision) -> Generator[AnyGenerator]:
        with self._turn, self._changed:
            if self._open is not None and self._open[0] == precision:
                generator = self._open[1]
            else:
                self._changed.wait_for(lambda: not self._users)
                generator = self._switch(precision)
            self._users += 1
        try:
            yield generator
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _switch(self, precision: Precision) -> AnyGenerator:
        self._open = None
        self._opened.close()
        generator = self._opened.enter_context(self._open_generator(precision))
        self._open = precision, generator
        return generator
