"""Division of an axis of a tensor among blocks that loop along it."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...network.layers import Triple
from ..card_properties import CardProperties

_FILLED = 0.8  # least share of the GPU that is busy, if there are enough blocks


def cheapest_walk(
    extent: int, beside: int, at_once: int, beginning: float, offered: Iterable[int]
) -> int:
    """Return the steps of each loop, of those offered, that finish all loops along an axis soonest.

    extent: steps along the axis. beside: loops that each of these steps is for. at_once: loops that
    run concurrently on the GPU; the others follow, wave by wave. beginning: fixed cost of a loop,
    counted in steps.
    """

    def duration(steps: int) -> float:
        waves = -(-beside * -(-extent // steps) // at_once)
        return waves * (steps + beginning)

    return min(offered, key=duration)


@dataclass(frozen=True, slots=True)
class Walks:
    """Division of a tensor. grid: tiles across, loops along the depth, parts. planes: of a loop."""

    grid: Triple
    planes: int


@dataclass(frozen=True, slots=True)
class PlaneBox:
    """Tile of a plane that a block computes. height, width: of it.

    beginning: fixed cost of a loop along the planes, counted in planes.
    """

    height: int
    width: int
    beginning: float

    def count(self, extents: Triple) -> int:
        """Return how many adjacent tiles cover a plane."""
        _, height, width = extents
        return -(-height // self.height) * -(-width // self.width)

    def walks(self, extents: Triple, parts: int, card: CardProperties) -> Walks:
        """Return the loops along a tensor's planes. parts: those computed per tile, one by one."""
        depth, across, at_once = extents[0], self.count(extents), card.multiprocessors

        def fills(planes: int) -> bool:
            return across * parts * -(-depth // planes) >= _FILLED * at_once

        filling = list(filter(fills, range(1, depth + 1)))
        planes = cheapest_walk(depth, across * parts, at_once, self.beginning, filling or [1])
        return Walks((across, -(-depth // planes), parts), planes)
