"""Device memory to try a layer in before the program that it belongs to is open."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..compiler.memory.trials import between_guards
from ..errors import DeviceMemoryError
from .driver import DeviceBuffer, Stream

NAN = 0xFF
"""Every byte of one, in all precisions."""


@dataclass(frozen=True, slots=True)
class TrialMemory:
    """What trials may take, one after another. bytes: of each at most."""

    bytes: int

    @contextmanager
    def opened(self, stream: Stream, sizes: Mapping[str, int]) -> Generator[Mapping[str, int]]:
        """Device addresses of blocks of so many bytes, by name, with NaN in and around them.

        Raises DeviceMemoryError where they are more than may be taken, or than the card has left.
        """
        arena = between_guards(sizes)
        if arena.bytes > self.bytes:
            raise DeviceMemoryError(
                f"A layer is tried in {-(-arena.bytes // 2**20)} MiB of device memory, but "
                f"{self.bytes >> 20} MiB may be used; use a larger setting vram-limit.",
                wanted=arena.bytes,
                free=self.bytes,
            )
        with DeviceBuffer(arena.bytes) as buffer:
            stream.fill(buffer.address, NAN, arena.bytes)
            yield {name: buffer.address + offset for name, offset in arena.offsets.items()}
