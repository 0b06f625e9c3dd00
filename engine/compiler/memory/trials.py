"""Device memory in which layers are tried, one after another, before their program is open."""

from collections.abc import Mapping
from itertools import chain
from math import prod

from ..card_properties import CardProperties
from ..checks import RUNS, most_samples
from ..convolution import Convolution
from ..kernels.launch import OVERFLOW
from ..kernels.plain import PlainCounterpart, of_one_patch, plain
from ..kernels.table import checked
from ..launches.steps import scratch_bytes
from ..lowered import Lowered
from ..steps import planned
from ..tensors import COUNTERS, NUMBER_BYTES
from .plan import ALIGNMENT, Arena, aligned

GUARD = ALIGNMENT
"""Bytes of NaN on both sides of everything that a trial may read or write."""

FINGERPRINTS, PARTIALS = "fingerprints", "partial sums"
"""Names of blocks: fingerprints of results, and statistics that a step computes in its epilogue."""

_NOTED = 1024
"""Most fingerprints of a convolution that fit."""


def between_guards(sizes: Mapping[str, int]) -> Arena:
    """Return the layout of consecutive blocks of these sizes, each between guards."""
    offsets, end = dict[str, int](), GUARD
    for name, size in sizes.items():
        offsets[name] = end
        end += aligned(size) + GUARD
    return Arena(offsets, end)


def bytes_of_blocks(sizes: Mapping[str, int]) -> int:
    """Return the bytes of blocks of these sizes, each between guards."""
    return between_guards(sizes).bytes


def convolution_blocks(shape: Convolution, workspace: int) -> Mapping[str, int]:
    """Return bytes by name of a convolution's input and output, and of the results of its check."""
    item = NUMBER_BYTES[shape.precision]
    samples = most_samples(shape)
    return {
        "source": shape.batch * prod(shape.source_extents) * shape.source_channels * item,
        "weight": shape.weights * item,
        "target": shape.batch * prod(shape.target_extents) * shape.target_channels * item,
        "workspace": workspace,
        FINGERPRINTS: 8 * _NOTED,
        "found": 8,
        "voxels": 8 * samples,
        "sums": 16 * samples * shape.target_channels,
    }


def layer_blocks(trial: PlainCounterpart, card: CardProperties) -> Mapping[str, int]:
    """Return bytes by name of all memory of an outer layer's trial, and of the results of its
    check.
    """
    sizes = {**trial.sizes, FINGERPRINTS: 8 * RUNS, OVERFLOW: 4}
    sizes.update((table.name, table.bytes) for table in trial.tables)
    if measured := trial.measured:
        table = measured.target
        sizes[table.name] = table.bytes
        sizes[COUNTERS] = 4 * table.patches * table.channels
        sizes[PARTIALS] = max(scratch_bytes(step, card) for step in (trial.conv, measured))
    return sizes


def bytes_of_trials(lowered: Lowered, workspace: int) -> int:
    """Return the bytes of the largest trial that every start of a program needs.

    Convolutions are tried with so many bytes of workspace, outer layers with one patch at least.
    """
    card = lowered.card
    convolutions = (convolution_blocks(one.shape, workspace) for one in planned(lowered.steps))
    outer = (layer_blocks(plain(of_one_patch(one)), card) for one in checked(lowered.steps))
    return max(map(bytes_of_blocks, chain(convolutions, outer)), default=0)
