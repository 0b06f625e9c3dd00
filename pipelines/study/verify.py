"""Verification: some patches of a study, or its whole volume, computed again by ONNX Runtime on the
CPU.

The result itself is compared: around the middle of a patch, up to the next border of any, it is the
weighted mean of the same few patches throughout. These are computed again.

No part of a volume can be computed by itself in whole-volume inference, as normalisations use all
of it. So all of it is computed again; it is compared part by part, as an error in one part would
hardly show in the whole.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice, product
from math import inf, isfinite, prod, sqrt
from random import Random
from time import perf_counter
from typing import TypeAlias

import numpy as np

from ...engine.cpu.session import open_cpu_generator
from ...engine.generator import PatchGenerator
from ...engine.model.model_file import Model
from ...engine.network.layers import FloatArray, Triple, triple
from ...engine.options import Blend
from ...engine.scaling import Stored, VoxelArray
from ..errors import VerificationError
from ..settings import ResolvedOptions
from ..stopwatch import Stopwatch
from .figures import Verified
from .inference import Cutter
from .patches import Box, PatchLayout, patch_weights
from .plan import INTENSITY_BYTES, StudyPlan
from .translator import InferredStudy

_SPREAD = 0.1
"""Share of the scan's range: in patches with less, such as air alone, normalisations enlarge
rounding.
"""

_LEAST_SIZE = 0.25
"""Share of the network's range: a smaller part, such as air at 0, is measured by this, as rounding
comes from the sums before and does not shrink where they cancel.
"""

_EVERY = 4
"""Step along each axis between the voxels from which a range is estimated."""

_PART = 64
"""Edge of the parts by which a volume is compared."""

_Error: TypeAlias = tuple[float, float]
"""Error of a place, and how much of it rounding to whole numbers explains."""


@dataclass(frozen=True, slots=True)
class Place:
    """A box of the volume, and the origins of all patches that contribute to it."""

    box: Box
    origins: tuple[Triple, ...]


def chosen_places(source: Stored, layout: PatchLayout, count: int, name: str) -> tuple[Place, ...]:
    """Choose places at random, the same each time for a study's name, with content in them.

    Any are chosen if none has content.
    """
    origins = list(layout)
    Random(name).shuffle(origins)
    least = _SPREAD * _range(source, (slice(None), slice(None), slice(None)))
    busy = (each for each in origins if _range(source, layout.within_volume(each)) >= least)
    chosen = list(islice(busy, count)) or origins[:count]
    return tuple(_place(layout, origin) for origin in chosen)


def patches_again(plan: StudyPlan, source: Stored, count: int, name: str) -> int:
    """Return how many patches `--verify` computes again; whole-volume inference counts as one."""
    if not count or plan.inference == "volume":
        return min(count, 1)
    return sum(len(place.origins) for place in chosen_places(source, plan.layout, count, name))


def volume_again_bytes(plan: StudyPlan, count: int) -> int:
    """Return the host bytes of a volume that `--verify` computes again, without feature maps."""
    is_due = count and plan.inference == "volume"
    return INTENSITY_BYTES * plan.channels * prod(plan.layout.extents) if is_due else 0


@contextmanager
def study_verifier(model: Model, maps_memory: Callable[[], int]) -> Generator["StudyVerifier"]:
    """Own the model on the CPU, which opens with the first study.

    maps_memory: returns the host bytes available for feature maps of a volume.
    """
    with ExitStack() as opened:
        yield StudyVerifier(model, maps_memory, opened)


class StudyVerifier:
    """Recomputes places of studies, for threads to share: one study at a time, as each takes all
    cores and much memory. opened: closes the model in the end.
    """

    def __init__(self, model: Model, maps_memory: Callable[[], int], opened: ExitStack) -> None:
        self._model, self._maps_memory, self._opened = model, maps_memory, opened
        self._reference: PatchGenerator | None = None
        self._turn = threading.Lock()

    def verify(
        self, inferred: InferredStudy, options: ResolvedOptions, name: str, timer: Stopwatch
    ) -> Verified:
        """Compute places again, as the options request; the study must not be finished yet.

        Raises EngineError.
        """
        from ...engine.model.reference import tolerance  # late: few batches are verified

        with self._turn, timer.time("finish"):
            begin = perf_counter()
            if inferred.study.prepared.plan.inference == "volume":
                errors, patches = self._volume(inferred), 1
            else:
                errors, patches = self._patches(inferred, options, name)
            explained = tolerance(inferred.precision)
            judged = [(error, explained + steps) for error, steps in errors]
            worst, allowed = max(judged, key=lambda one: one[0] / one[1])
            return Verified(
                places=len(judged),
                tiles=patches,
                error=worst,
                allowed=allowed,
                seconds=perf_counter() - begin,
            )

    def _volume(self, inferred: InferredStudy) -> list[_Error]:
        from ...engine.cpu.slab_generator import open_cpu_volume_generator  # late: as above

        prepared, target = inferred.study.prepared, inferred.output.target
        wanted = np.empty(target.values.shape, np.float32)
        network = self._model.network
        with open_cpu_volume_generator(network, self._maps_memory()) as reference:
            reference.translate_volume(prepared.network_input, Stored(wanted), _ignore_share)
        parts = _busy_parts(prepared.network_input, prepared.plan.layout.extents)
        return [deviation(target, wanted[:, *part], part) for part in parts]

    def _patches(
        self, inferred: InferredStudy, options: ResolvedOptions, name: str
    ) -> tuple[list[_Error], int]:
        prepared = inferred.study.prepared
        layout = prepared.plan.layout
        places = chosen_places(prepared.network_input, layout, options.verify, name)
        blend = options.blend
        cutter = Cutter(prepared.network_input, layout, self._model.card.padding)
        reference = self._opened_reference()
        errors = [_error(inferred, blend, place, cutter, reference) for place in places]
        return errors, sum(len(place.origins) for place in places)

    def _opened_reference(self) -> PatchGenerator:
        if self._reference is None:
            opening = open_cpu_generator(self._model.network)
            self._reference = self._opened.enter_context(opening)
        return self._reference


def check_verified(verified: Verified) -> None:
    """Raise VerificationError if the result differs by more than rounding."""
    if not verified.passed:
        raise VerificationError(
            f"The result differs from that of the CPU: it is {verified.error:.1e} off where it was "
            f"computed again, and {verified.allowed:g} is allowed; nothing was written. Run "
            "doctor, and translate again with setting precision=fp32 or device=cpu."
        )


def verified_together(before: Verified | None, verified: Verified) -> Verified:
    """Combine verifications of volumes: the worst error, and all compared parts."""
    if before is None:
        return verified
    worst = max((before, verified), key=lambda one: one.error / one.allowed)
    return Verified(
        places=before.places + verified.places,
        tiles=before.tiles + verified.tiles,
        error=worst.error,
        allowed=worst.allowed,
        seconds=before.seconds + verified.seconds,
    )


def _range(source: Stored, box: Box) -> float:
    sample = source.values[:, *box][:, ::_EVERY, ::_EVERY, ::_EVERY]
    ends = np.stack([sample.min(axis=(1, 2, 3)), sample.max(axis=(1, 2, 3))])
    lowest, highest = source.scaling.forward(ends)
    return float((highest - lowest).max())


def _busy_parts(source: Stored, extents: Triple) -> list[Box]:
    """Return the parts of a volume with content; all, if none has any."""
    ends = [[slice(at, min(at + _PART, edge)) for at in range(0, edge, _PART)] for edge in extents]
    whole = slice(None)
    least = _SPREAD * _range(source, (whole, whole, whole))
    parts: list[Box] = [(d, h, w) for d, h, w in product(*ends)]
    return [part for part in parts if _range(source, part) >= least] or parts


def _ignore_share(_share: float) -> None:
    """Ignore progress."""


def _place(layout: PatchLayout, origin: Triple) -> Place:
    sizes = zip(layout.origins, layout.patch, origin, layout.before, layout.extents, strict=True)
    boxes, rows = list[slice](), list[tuple[int, ...]]()
    for origins, patch, first, before, extent in sizes:
        start, stop, sharing = _around_the_middle(origins, patch, first)
        boxes.append(slice(max(start - before, 0), min(stop - before, extent)))
        rows.append(sharing)
    return Place(triple(boxes), tuple(triple(each) for each in product(*rows)))


def _around_the_middle(
    origins: Sequence[int], patch: int, origin: int
) -> tuple[int, int, tuple[int, ...]]:
    """Return the interval along one axis from border to border, and the origins of its patches."""
    middle = origin + patch // 2
    sharing = tuple(one for one in origins if one <= middle < one + patch)
    ended = (one + patch for one in origins if one + patch <= middle)
    begun = (one for one in origins if one > middle)
    start, stop = max([*sharing, *ended]), min([*(one + patch for one in sharing), *begun])
    return start, stop, sharing


def _error(
    inferred: InferredStudy,
    blend: Blend,
    place: Place,
    cutter: Cutter,
    reference: PatchGenerator,
) -> _Error:
    """Return the error of the result in a place, and the share of it that rounding explains."""
    layout, target = inferred.study.prepared.plan.layout, inferred.output.target
    weights, kept = patch_weights(layout, blend), layout.kept(blend)
    total, expected = 0.0, 0.0
    for origin, part in _shares(layout, place):
        [computed] = reference(cutter.cut(origin))
        _, inside = layout.blended(origin, kept)
        counts = np.zeros(layout.patch, np.float64)
        counts[inside] = weights[inside]
        expected = expected + counts[part] * computed[:, *part].astype(np.float64)
        total = total + counts[part]
    return deviation(target, np.asarray(expected / total, np.float32), place.box)


def deviation(target: Stored, wanted: FloatArray, box: Box) -> _Error:
    """Return the error of a part of a result, and how much of it rounding to whole numbers
    explains.

    The root mean square of the difference, relative to that of the expected values (wanted, in
    network intensities [C, D, H, W]), but at least to a quarter of the network's range. Infinite if
    either is NaN or infinite.
    """
    least = _LEAST_SIZE * (1 - target.scaling.lowest)
    size = max(_mean_square_root(wanted), least) * abs(target.scaling.radius)
    if not isfinite(size):
        return inf, 0.0
    stored = np.empty(wanted.shape, target.values.dtype)
    target.scaling.store(wanted, stored)
    error = _mean_square_root(target.values[:, *box].astype(np.float64) - stored) / size
    steps = 1 / size if stored.dtype.kind in "iu" else 0.0
    return (error if isfinite(error) else inf), steps


def _mean_square_root(values: VoxelArray) -> float:
    return float(np.linalg.norm(values.ravel().astype(np.float64))) / sqrt(values.size)


def _shares(layout: PatchLayout, place: Place) -> Iterator[tuple[Triple, Box]]:
    """Yield the patches of a place, and where it lies in each."""
    for origin in place.origins:
        moves = [before - origin for before, origin in zip(layout.before, origin, strict=True)]
        boxes = zip(place.box, moves, strict=True)
        yield origin, triple(slice(box.start + move, box.stop + move) for box, move in boxes)
