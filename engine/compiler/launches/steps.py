"""Translate steps into kernels: grids, blocks and arguments."""

from math import prod

from ..card_properties import CardProperties
from ..kernels.launch import Addresses, Launch, anywhere
from ..kernels.packing import add_patches, pack, sum_taps, unpack
from ..kernels.passes import pointwise
from ..kernels.statistics import (
    MOMENTS_BYTES,
    SUMS_BYTES,
    blocks_that_measure,
    blocks_that_normalise,
    conclude,
    normalise,
    statistics,
)
from ..kernels.table import kernel_of
from ..steps import AddPatches, Conv, Normalise, Pack, Pointwise, Statistics, Step, SumTaps, Unpack


def scratch_bytes(step: Step, card: CardProperties) -> int:
    """Return the bytes of the partial sums between the two parts of a step's statistics."""
    measured = step.flow.measures
    if measured is None:
        return 0
    size = SUMS_BYTES if isinstance(step, Normalise) else MOMENTS_BYTES
    source = measured.source
    return source.tensor.batch * measuring_blocks(step, card) * source.channels * size


def measuring_blocks(step: Step, card: CardProperties) -> int:
    """Return the launched blocks that each process a part of the same channels of a patch."""
    match step:
        case Normalise():
            return blocks_that_normalise(step, card)
        case Statistics(source=source):
            return blocks_that_measure(source, card)
        case Conv(statistics=Statistics()):
            return prod(convolution(step, anywhere, card).grid[:2])
        case _:
            return 0


def launches(step: Step, at: Addresses, card: CardProperties, scratch: int = 0) -> list[Launch]:
    """Return the kernels of a step without cuDNN; scratch: address of its partial sums."""
    match step:
        case Conv(statistics=measured):
            launch = convolution(step, at, card, scratch)
            if measured is None:
                return [launch]
            return [launch, conclude(measured, at, scratch, prod(launch.grid[:2]))]
        case Pack():
            return [pack(step, at)]
        case Statistics():
            return statistics(step, at, card, scratch)
        case Pointwise():
            return [pointwise(step, at, card)]
        case Normalise():
            return [normalise(step, at, card, scratch)]
        case SumTaps():
            return [sum_taps(step, at)]
        case Unpack():
            return [unpack(step, at)]
        case AddPatches():
            return [add_patches(step, at)]


def convolution(conv: Conv, at: Addresses, card: CardProperties, scratch: int = 0) -> Launch:
    """Return the kernel of a convolution; scratch: address of its partial sums, if any."""
    return kernel_of(conv).launch(conv, at, card, scratch if conv.statistics else None)
