"""GPU memory and time of a program and its arrays, known before anything is allocated."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ...compiler.kernels.sliding_window import rings
from ...compiler.program.fitting import (
    Choose,
    ChosenTactic,
    Fitted,
    MemoryBudget,
    ProgramRequest,
    fit,
)
from ...compiler.steps import ConvShape
from ...errors import DeviceMemoryError
from ...network.graph import Graph, Network
from ...options import Effort
from ...patch_grid import PatchGrid
from ..tuning.cache import Candidate, TuningCache, faster_forms, key_of

_Chosen = TypeVar("_Chosen", bound=ChosenTactic)


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program that a start would open: its bytes, patches per run and seconds per run.

    batch: those patches. run_seconds: None if not measured.
    """

    bytes: int
    batch: int
    run_seconds: float | None

    def seconds(self, patches: int) -> float | None:
        """Return the seconds for so many patches of an array."""
        runs = -(-patches // self.batch)
        return None if self.run_seconds is None else runs * self.run_seconds


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Planned use of a GPU, without CUDA's own context.

    program: None if its size is unknown because the first start has yet to choose plans. budget:
    bytes that program and arrays may take together. context: bytes that CUDA itself took just now;
    None if the driver does not report them. name: of the GPU. channels: of a patch and of its
    translation.
    """

    name: str
    program: ProgramPlan | None
    budget: int
    channels: tuple[int, int]
    context: int | None = None

    def held(self, arrays: Iterable[PatchGrid], at_once: int = 1) -> int | None:
        """Return the bytes of the program and of `at_once` concurrent arrays, the largest ones.

        None if the size of the program is unknown.
        """
        if self.program is None:
            return None
        held = self.program.bytes
        found = ((array, rings(array, self.channels, self.budget)) for array in arrays)
        sized = [(array, buffers.bytes) for array, buffers in found if buffers]
        for array, _ in sorted(sized, key=lambda one: -one[1])[:at_once]:
            buffers = rings(array, self.channels, self.budget - held)
            held += buffers.bytes if buffers else 0
        return held


def program_key(graph: Graph, fitted: Fitted[ChosenTactic]) -> str:
    """Return the cache key of the time of a program."""
    names = {key_of(shape): one.name for shape, one in fitted.tactics.items()}
    parts = repr((graph, fitted.lowered.layout, fitted.lowered.steps, sorted(names.items())))
    return hashlib.sha256(parts.encode()).hexdigest()[:24]


def in_faster_forms(
    network: Network,
    wanted: ProgramRequest,
    fitted: Fitted[_Chosen],
    budget: MemoryBudget,
    choose: Choose[_Chosen],
    cache: TuningCache,
) -> Fitted[_Chosen]:
    """Return the program with the fastest forms of layers if it fits, else the given one."""
    forms = faster_forms(fitted.lowered, cache)
    if not forms:
        return fitted
    try:
        return fit(network, replace(wanted, forms=forms), budget, choose)
    except DeviceMemoryError:
        return fitted


def plan_program(
    network: Network,
    wanted: ProgramRequest,
    budget: MemoryBudget,
    cache: TuningCache,
    effort: Effort,
) -> ProgramPlan | None:
    """Return the program that a start would open with earlier tuning results; needs no GPU.

    None if that start would have to tune first. Raises DeviceMemoryError.
    """

    def known(shapes: list[ConvShape], workspace: int) -> Mapping[ConvShape, Candidate]:
        return {shape: _best(cache, shape, workspace, effort) for shape in shapes}

    try:
        fitted = fit(network, wanted, budget, known)
        fitted = in_faster_forms(network, wanted, fitted, budget, known, cache)
    except _UnknownError:
        return None
    milliseconds = cache.time(program_key(network.graph, fitted))
    seconds = None if milliseconds is None else milliseconds / 1000
    return ProgramPlan(fitted.memory.bytes, fitted.lowered.layout.batch, seconds)


class _UnknownError(Exception):
    """A convolution was never tuned with the current settings."""


def _best(cache: TuningCache, shape: ConvShape, workspace: int, effort: Effort) -> Candidate:
    best = cache.best(shape, workspace, effort)
    if best is None:
        raise _UnknownError
    return best
