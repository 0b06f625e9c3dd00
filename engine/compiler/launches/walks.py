"""How blocks that walk through planes, a box across each, share a tensor."""

from ...network.layers import Triple
from ..card_properties import CardProperties

_FILLED = 0.8  # share of a card that is at work, where there are as many blocks


def walks(
    across: int, depth: int, parts: int, beginning: float, card: CardProperties
) -> tuple[Triple, int]:
    """The grid (boxes across, walks along the depth, parts), and the planes of a walk.

    across: boxes beside each other. depth: planes in all. parts: what each box is computed for, one
    by one. beginning: what a walk costs besides its planes, counted in planes.
    """

    def blocks(planes: int) -> int:
        return across * parts * -(-depth // planes)

    def cost(planes: int) -> float:
        return -(-blocks(planes) // card.multiprocessors) * (planes + beginning)

    def fills(planes: int) -> bool:
        return blocks(planes) >= _FILLED * card.multiprocessors

    planes = min(filter(fills, range(1, depth + 1)), key=cost, default=1)
    return (across, -(-depth // planes), parts), planes
