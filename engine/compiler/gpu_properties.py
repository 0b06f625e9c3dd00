"""Properties of one GPU to which a program is fitted."""

from dataclasses import dataclass

WGMMA_CAPABILITY = (9, 0)
"""The only compute capability with warpgroup matrix products (wgmma)."""

_RESERVED = 1 << 10
"""Bytes of shared memory that the driver reserves per block, on every GPU where it reserves any."""


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """GPU properties as reported by its driver, or as described for a GPU that is not present."""

    capability: tuple[int, int]
    """Compute capability, major and minor."""
    multiprocessors: int
    """Number of multiprocessors."""
    l2_bytes: int
    """Bytes of the L2 cache that all multiprocessors share."""
    shared_per_block: int
    """Most bytes of shared memory per block, if it requests them."""
    shared_per_multiprocessor: int
    """Bytes of shared memory that all blocks of a multiprocessor share."""

    def resident_blocks(self, shared: int) -> int:
        """Return how many blocks of `shared` bytes of shared memory fit on a multiprocessor."""
        return self.shared_per_multiprocessor // (shared + _RESERVED)

    @property
    def shared_of_a_lone_block(self) -> int:
        """Bytes of shared memory of a block that prevent a second block on its multiprocessor."""
        return self.shared_per_multiprocessor // 2 - _RESERVED + 1
