"""The numbers of one graphics card that a program is fitted to."""

from dataclasses import dataclass

WGMMA_CAPABILITY = (9, 0)
"""The only compute capability with products by warp groups."""

_RESERVED = 1 << 10
"""Bytes of shared memory that the driver keeps of each block, on every card that keeps any."""


@dataclass(frozen=True, slots=True)
class CardProperties:
    """As the card's driver tells them, or as described for a card that is not there."""

    capability: tuple[int, int]
    """Compute capability, major and minor."""
    multiprocessors: int
    """How many there are."""
    l2_bytes: int
    """Of the cache that all multiprocessors share."""
    shared_per_block: int
    """Bytes of shared memory that a block may have at most, if it asks for them."""
    shared_per_multiprocessor: int
    """Bytes of shared memory that the blocks of a multiprocessor have together."""

    def resident_blocks(self, shared: int) -> int:
        """Blocks of so many bytes of shared memory each that a multiprocessor has room for."""
        return self.shared_per_multiprocessor // (shared + _RESERVED)

    @property
    def shared_of_a_lone_block(self) -> int:
        """Bytes of shared memory of a block that leave its multiprocessor no room for another."""
        return self.shared_per_multiprocessor // 2 - _RESERVED + 1
