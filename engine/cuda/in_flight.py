"""Memory and streams of one array in flight, whether it is cut into patches or computed as a whole.

They are kept from one array to the next, and memory grows when a larger array comes.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress

from ..errors import CudaError
from .driver import DeviceBuffer, Stream
from .streaming import PhaseTimes, PinnedSlots


class GrowingBuffer:
    """GPU memory that gives way to a larger block once more is needed."""

    def __init__(self, opened: ExitStack) -> None:
        """opened: frees it."""
        self._opened = opened.enter_context(ExitStack())
        self._buffer: DeviceBuffer | None = None

    @property
    def size(self) -> int:
        """Bytes that are allocated now."""
        return self._buffer.size if self._buffer else 0

    def address_of(self, size: int) -> int:
        """Return the start of at least so many bytes, whose content an earlier array has left.

        Raises DeviceMemoryError.
        """
        if self._buffer is None or self._buffer.size < size:
            self.release()
            self._buffer = self._opened.enter_context(DeviceBuffer(size))
        return self._buffer.address

    def release(self) -> None:
        """Free the memory."""
        self._buffer = None
        self._opened.close()


class InFlight:
    """Owner of what one array at a time needs for its way through the GPU.

    entering, leaving: streams of its copies to and from the GPU. phases: of the last array. memory:
    on the GPU.
    """

    def __init__(self, opened: ExitStack, slots: int = 1) -> None:
        """opened: closes all of it. slots: sets of pinned slots, two if copies of both directions
        overlap.
        """
        self.entering, self.leaving = (opened.enter_context(Stream()) for _ in range(2))
        self.phases = PhaseTimes(opened)
        self.memory = GrowingBuffer(opened)
        self.slots: Sequence[PinnedSlots] = ()
        self._count = slots
        self._pinned = opened.enter_context(ExitStack())

    def pin(self, size: int) -> None:
        """Have pinned slots of at least so many bytes.

        Raises DeviceMemoryError if the host has no memory to pin; then there are none.
        """
        if self.slots and self.slots[0].size >= size:
            return
        self.slots = ()
        self._pinned.close()
        with ExitStack() as opening:
            self.slots = [PinnedSlots(size, opening) for _ in range(self._count)]
            self._pinned.push(opening.pop_all())

    @contextmanager
    def drained(self, computing: Iterable[Stream]) -> Generator[None]:
        """Wait for all work if the block fails, so that its memory may be used again.

        computing: streams besides those of its copies.
        """
        try:
            yield
        except BaseException:
            with suppress(CudaError):  # of a lost context, which is reported anyway
                for stream in (self.entering, *computing, self.leaving):
                    stream.wait()
            raise
