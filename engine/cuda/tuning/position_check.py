"""Check that a tactic computes the same bytes of a voxel wherever it is in a block."""

from collections.abc import Callable

import numpy as np

from ...compiler.steps import Convolution
from ...compiler.tensors import NUMBER_BYTES
from ...compiler.weight_layout import encoded
from ...network.layers import Triple, triple
from ..driver import Stream


def gives_the_same_anywhere(
    shape: Convolution, source: int, target: int, run: Callable[[], object], stream: Stream
) -> bool:
    """Compare the results for noise and for the same noise moved by some voxels; wait for both.

    source, target: addresses of the tensors, whose content is lost. run: queues the tactic.
    """
    read = (shape.batch, *shape.source_extents, shape.source_channels)
    extents = (shape.batch, *shape.target_extents, shape.target_channels)
    noise = np.random.default_rng(0).uniform(-1, 1, read).astype(np.float32)
    by = _moves(shape)
    results: list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = []
    for content in (noise, np.roll(noise, by, (1, 2, 3))):
        stream.upload_now(source, encoded(content, shape.precision))
        run()
        result = np.empty((*extents, NUMBER_BYTES[shape.precision]), np.uint8)
        stream.download(result.ctypes.data, target, result.nbytes)
        stream.wait()
        results.append(result)
    here = tuple(slice(None, -step or None) for step in by)
    there = tuple(slice(step, None) for step in by)
    return np.array_equal(results[0][:, *here], results[1][:, *there])


def _moves(shape: Convolution) -> Triple:
    """Return voxels along each axis, of which some are no multiple of any tile."""
    return triple(
        min(step, extent - 1) for step, extent in zip((1, 2, 3), shape.target_extents, strict=True)
    )
