"""How blocks that walk through planes, a box across each, share a tensor."""

from dataclasses import dataclass

from ...network.layers import Triple
from ..card_properties import CardProperties

_FILLED = 0.8  # share of a card that is at work, where there are as many blocks


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
        depth, across = extents[0], self.count(extents)

        def blocks(planes: int) -> int:
            return across * parts * -(-depth // planes)

        def cost(planes: int) -> float:
            return -(-blocks(planes) // card.multiprocessors) * (planes + self.beginning)

        def fills(planes: int) -> bool:
            return blocks(planes) >= _FILLED * card.multiprocessors

        planes = min(filter(fills, range(1, depth + 1)), key=cost, default=1)
        return Walks((across, -(-depth // planes), parts), planes)
