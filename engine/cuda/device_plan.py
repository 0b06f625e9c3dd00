"""What a program and its arrays take on a card, known before anything is allocated there."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ..compiler.convolution import Convolution
from ..compiler.kernels.table import kernel_of
from ..compiler.lowered import LayerForm, Lowered
from ..compiler.lowering.forms import compared
from ..compiler.memory.fitting import (
    Choose,
    ChosenAlgorithm,
    Fitted,
    MemoryBudget,
    ProgramRequest,
    fit,
)
from ..compiler.ring_buffers import rings
from ..compiler.steps import Conv
from ..errors import DeviceMemoryError
from ..network.graph import Graph, Network
from ..options import Effort
from ..patch_grid import PatchGrid
from .plan_cache import Candidate, TuningCache, key_of

_Chosen = TypeVar("_Chosen", bound=ChosenAlgorithm)

_COMPARED = 2
"""Raised when own kernels become faster, or are compared otherwise, so that it is done again."""


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program to come: its bytes, its patches a run, and the seconds of a run if measured.

    batch: those patches. run_seconds: None if not measured.
    """

    bytes: int
    batch: int
    run_seconds: float | None

    def seconds(self, tiles: int) -> float | None:
        """What a card needs for so many tiles of an array."""
        runs = -(-tiles // self.batch)
        return None if self.run_seconds is None else runs * self.run_seconds


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What a card will hold, all without CUDA's own context.

    program: None where the first start is still to choose its plans, so that nobody knows its size.
    room: bytes that program and arrays may take together. context: bytes that CUDA itself took just
    now; None where the driver does not tell. card: its name. channels: of a patch and of its
    translation.
    """

    card: str
    program: ProgramPlan | None
    room: int
    channels: tuple[int, int]
    context: int | None = None

    def held(self, arrays: Iterable[PatchGrid], at_once: int = 1) -> int | None:
        """Bytes of the program and of so many arrays at the same time, the largest if they differ.

        None where the size of the program is not known.
        """
        if self.program is None:
            return None
        held = self.program.bytes
        for _, array in sorted(self._sizes(arrays), key=lambda one: -one[0])[:at_once]:
            found = rings(array, self.channels, self.room - held)
            held += found.bytes if found else 0
        return held

    def _sizes(self, arrays: Iterable[PatchGrid]) -> Iterable[tuple[int, PatchGrid]]:
        for array in arrays:
            if found := rings(array, self.channels, self.room):
                yield found.bytes, array


def program_key(graph: Graph, fitted: Fitted[ChosenAlgorithm]) -> str:
    """Under which the time of a program is kept."""
    ways = {key_of(shape): way.name for shape, way in fitted.algorithms.items()}
    parts = repr((graph, fitted.lowered.layout, fitted.lowered.steps, sorted(ways.items())))
    return hashlib.sha256(parts.encode()).hexdigest()[:24]


def form_key(step: Conv) -> str:
    """Under which is kept how long a layer takes in each of its forms."""
    return f"{kernel_of(step).cache_key(step)}, compared {_COMPARED}"


OWN_FORM: LayerForm = "own"


def faster_forms(lowered: Lowered, cache: TuningCache) -> Mapping[str, LayerForm]:
    """Forms of layers that were faster than the own kernel, by layer."""
    found: dict[str, LayerForm] = {}
    for step in compared(lowered):
        names = {one.plan for one in cache.get(form_key(step)).candidates[:1]}
        others = kernel_of(step).forms
        found.update((step.layer, form) for form in others if form in names)
    return found


def in_faster_forms(
    network: Network,
    wanted: ProgramRequest,
    fitted: Fitted[_Chosen],
    room: MemoryBudget,
    choose: Choose[_Chosen],
    cache: TuningCache,
) -> Fitted[_Chosen]:
    """The program with the forms of layers that were the fastest, where there is room for it."""
    forms = faster_forms(fitted.lowered, cache)
    if not forms:
        return fitted
    try:
        return fit(network, replace(wanted, forms=forms), room, choose)
    except DeviceMemoryError:
        return fitted


def plan_program(
    network: Network, wanted: ProgramRequest, room: MemoryBudget, cache: TuningCache, effort: Effort
) -> ProgramPlan | None:
    """The program that a start would open with what was measured before; needs no card.

    None where that start would have to look for plans first. Raises DeviceMemoryError.
    """

    def known(shapes: list[Convolution], workspace: int) -> Mapping[Convolution, Candidate]:
        return {shape: _best(cache, shape, workspace, effort) for shape in shapes}

    try:
        fitted = fit(network, wanted, room, known)
        fitted = in_faster_forms(network, wanted, fitted, room, known, cache)
    except _UnknownError:
        return None
    milliseconds = cache.time(program_key(network.graph, fitted))
    seconds = None if milliseconds is None else milliseconds / 1000
    return ProgramPlan(fitted.memory.bytes, fitted.lowered.layout.batch, seconds)


class _UnknownError(Exception):
    """A convolution was never measured as it is wanted now."""


def _best(cache: TuningCache, shape: Convolution, workspace: int, effort: Effort) -> Candidate:
    best = cache.best(shape, workspace, effort)
    if best is None:
        raise _UnknownError
    return best
