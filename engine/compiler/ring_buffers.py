"""GPU memory of a sliding window in addition to the program: size and addresses."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod

from ..errors import DeviceMemoryError
from ..patch_grid import PatchGrid, ring_rows


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Device addresses of a sliding window's buffers, and rows of the rings.

    source: ring of voxels to be translated. mean, total: rings of the weighted sums and of their
    weights. weights: of a patch's voxels in the blend. lowest: lowest value of each channel.
    overflowed: a flag. rows: of each ring.
    """

    source: int
    mean: int
    total: int
    weights: int
    lowest: int
    overflowed: int
    rows: int

    def at(self, base: int) -> "RingLayout":
        """Return addresses from offsets."""
        return RingLayout(
            self.source + base,
            self.mean + base,
            self.total + base,
            self.weights + base,
            self.lowest + base,
            self.overflowed + base,
            self.rows,
        )


@dataclass(frozen=True, slots=True)
class RingBuffers:
    """Offsets, bytes in all, and the steps until a ring's row may be reused.

    With a lag of 2, the rows of the steps before and after are copied concurrently with a step's
    work.

    places: as offsets, or as addresses once memory is allocated. lag: those steps.
    """

    places: RingLayout
    bytes: int
    lag: int


def rings(window: PatchGrid, channels: tuple[int, int], most_bytes: int) -> RingBuffers | None:
    """Return the rings for an array within so many bytes; None if a row of tiles does not fit."""
    for spare in (True, False):
        places, size = laid_out(window, ring_rows(window, spare=spare), channels)
        if size <= most_bytes:
            return RingBuffers(places, size, 2 if spare else 1)
    return None


def no_room(window: PatchGrid, channels: tuple[int, int], most_bytes: int) -> DeviceMemoryError:
    """Return the error for an array for which `rings` returns None."""
    _, wanted = laid_out(window, ring_rows(window, spare=False), channels)
    return DeviceMemoryError(
        f"The rows of one row of tiles need {-(-wanted >> 20)} MiB of the card's memory beside the "
        f"program, of which {max(0, most_bytes) >> 20} MiB are left.",
        wanted=wanted,
        free=max(0, most_bytes),
    )


def laid_out(window: PatchGrid, rows: int, channels: tuple[int, int]) -> tuple[RingLayout, int]:
    """Return offsets, and bytes in all."""
    voxels = rows * prod(window.extents[1:])
    given = channels[0] * voxels * window.voxel_bytes
    made, total = channels[1] * voxels * 4, voxels * 4
    sizes = [given, made, total, prod(window.patch) * 4, 4 * channels[0]]
    source, mean, total, weights, lowest, overflowed, end = accumulate(
        (-(-size // 256) * 256 for size in (*sizes, 4)), initial=0
    )
    return RingLayout(source, mean, total, weights, lowest, overflowed, rows), end
