"""How blocks that walk along an axis of a tensor share it: how far each goes."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...network.layers import Triple
from ..card_properties import CardProperties

_FILLED = 0.8  # share of a card that is at work, where there are as many blocks


def cheapest_walk(
    extent: int, beside: int, at_once: int, beginning: float, offered: Iterable[int]
) -> int:
    """Steps of each walk, of those offered, such that all walks along an axis end soonest.

    extent: steps along the axis. beside: walks that each of these steps is for. at_once: walks that
    the card runs at the same time; the others follow, wave by wave. beginning: what a walk costs
    besides its steps, counted in steps.
    """

    def duration(steps: int) -> float:
        waves = -(-beside * -(-extent // steps) // at_once)
        return waves * (steps + beginning)

    return min(offered, key=duration)


@dataclass(frozen=True, slots=True)
class Walks:
    """grid: boxes across, walks along the depth, parts. planes: of a walk."""

    grid: Triple
    planes: int

    @property
    def blocks_of_a_part(self) -> int:
        """Blocks that measure a part of the same channels."""
        across, deep, _ = self.grid
        return across * deep


@dataclass(frozen=True, slots=True)
class PlaneBox:
    """What a block makes of a plane. height, width: of it.

    beginning: what a walk costs besides its planes, counted in planes.
    """

    height: int
    width: int
    beginning: float

    def count(self, extents: Triple) -> int:
        """Boxes beside each other that cover a plane."""
        _, height, width = extents
        return -(-height // self.height) * -(-width // self.width)

    def walks(self, extents: Triple, parts: int, card: CardProperties) -> Walks:
        """Through a tensor's planes. parts: what each box is computed for, one by one."""
        depth, across, at_once = extents[0], self.count(extents), card.multiprocessors

        def fills(planes: int) -> bool:
            return across * parts * -(-depth // planes) >= _FILLED * at_once

        filling = list(filter(fills, range(1, depth + 1)))
        planes = cheapest_walk(depth, across * parts, at_once, self.beginning, filling or [1])
        return Walks((across, -(-depth // planes), parts), planes)
