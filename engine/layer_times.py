"""From the times of single steps to a table by layer: what each is, computes and moves."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod

from .measured import LayerTime
from .steps import Convolution, Convolve, ConvolvePatches, ConvolveToPatches, Step
from .traffic import described, layer_of, least_bytes
from .tuning import OWN


def layer_times(
    timed: Sequence[tuple[Step, float]],
    flops: Mapping[str, int],
    plan: Callable[[Convolution], str],
) -> tuple[LayerTime, ...]:
    """One row a step, with its part of its layer's arithmetic.

    timed: steps and seconds. flops: of a whole batch by layer. plan: how a convolution is done.
    """
    voxels: dict[str, int] = defaultdict(int)
    for step, _ in timed:
        voxels[layer_of(step)] += _computed(step)
    rows: list[LayerTime] = []
    for step, seconds in timed:
        layer = layer_of(step)
        share = _computed(step) / voxels[layer] if voxels[layer] else 0.0
        how = plan(step.shape) if isinstance(step, Convolve) else OWN
        arithmetic = round(flops.get(layer, 0) * share)
        rows.append(LayerTime(layer, described(step), how, seconds, arithmetic, least_bytes(step)))
    return tuple(rows)


def _computed(step: Step) -> int:
    """Voxels that a convolution makes; 0 of other steps."""
    match step:
        case Convolve(shape=shape):
            return shape.batch * prod(shape.target_extents)
        case ConvolvePatches(target=target):
            return target.batch * prod(target.extents)
        case ConvolveToPatches(source=source, extents=extents):
            return source.tensor.batch * prod(extents)
        case _:
            return 0
