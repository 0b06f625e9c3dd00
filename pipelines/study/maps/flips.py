"""Mirror images of patches, which a network may see besides the patches as they lie."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from ....engine.network.layers import FloatArray, triple

Flip: TypeAlias = tuple[bool, bool, bool]
"""Along which of a patch's D, H and W it is mirrored."""

UNFLIPPED: Flip = (False, False, False)

_SIDES = ("LR", "AP", "SI")
"""Of the patient, the pair first that anatomy makes most alike."""


def flips(count: int, axes: str) -> Iterator[Flip]:
    """So many of the 8 ways to mirror a patch, from none at all.

    axes: anatomical directions of D, H and W, as on a model's card. Left and right change places in
    every second way, front and back in two of four, head and feet in the last four: 2 ways are
    enough for left and right, 4 mirror no patch head over heels, 8 are all.
    """
    order = [next(at for at, side in enumerate(axes) if side in pair) for pair in _SIDES]
    for number in range(count):
        yield triple(bool(number >> order.index(axis) & 1) for axis in range(3))


def flipped(patches: FloatArray, flip: Flip) -> FloatArray:
    """Patches [N, C, D, H, W] mirrored so, or back; a view."""
    steps = tuple(slice(None, None, -1 if each else None) for each in flip)
    return patches[:, :, *steps]


def flipped_in_memory(patches: FloatArray, flip: Flip) -> FloatArray:
    """The same in C order, as a network takes it; the patches themselves if nothing is mirrored."""
    return np.ascontiguousarray(flipped(patches, flip))
