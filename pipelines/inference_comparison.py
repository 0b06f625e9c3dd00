"""What it would change to translate a user's scans at once instead of in patches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from ..engine.devices import Device, with_half_the_memory
from ..engine.generator import SharedGenerator
from ..engine.model.model_file import Model
from ..io.volume import Study
from .one_by_one import one_by_one
from .opening import shared_network
from .report.report import Failure
from .settings import TranslateOptions
from .stopwatch import Stopwatch
from .study.seams import seam_score
from .study.translator import InferredStudy, PreparedStudy, StudyTranslator


@dataclass(frozen=True, slots=True)
class OneWay:
    """A study translated in one of the ways. seam: the worst score at the borders of patches, None
    where one patch covers the volume. seconds: of the network and what goes with it.
    """

    seam: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ComparedStudy:
    """A study translated both ways.

    patches, volume: each of the ways. difference: of both, in the L2 norm, relative to that of the
    patches. mean_difference: mean absolute, over all voxels, in the unit of the result.
    """

    patches: OneWay
    volume: OneWay
    difference: float
    mean_difference: float


def compare_inference(
    model: Model,
    studies: Sequence[Study],
    device: Device,
    options: TranslateOptions,
    tell: Callable[[int, int], None],
) -> Iterator[tuple[str, ComparedStudy | Failure]]:
    """Translate studies both ways: the name of each, and what came of it.

    options: with none left open but inference. tell: is told how many of all studies are done.
    """
    shared = with_half_the_memory(device)
    patches = replace(options, inference="patches", seam_score=True)
    volume = replace(options, inference="volume", seam_score=True)
    with ExitStack() as opened:

        def way(how: TranslateOptions) -> _Way:
            opening = shared_network(model.network, shared, how.settings().opened_for)
            return _Way(StudyTranslator(model, how), opened.enter_context(opening))

        both = way(patches), way(volume)
        yield from one_by_one(studies, lambda study, watch: _compared(study, both, watch), tell)


@dataclass(frozen=True, slots=True)
class _Way:
    translator: StudyTranslator
    generator: SharedGenerator

    def translated(self, study: PreparedStudy) -> tuple[InferredStudy, OneWay]:
        options, watch = self.translator.options, Stopwatch()
        settings = options.settings()
        plan = replace(study.prepared.plan, inference=settings.inference)
        study = replace(study, prepared=replace(study.prepared, plan=plan))
        self.generator.open(settings.precision)
        inferred = replace(self.translator, watch=watch).infer(study, self.generator)
        made = inferred.made.target.values
        seams = seam_score(study.prepared.given.values, made, plan.tiling, options.blend)
        return inferred, OneWay(seams.worst, watch.total())


def _compared(study: Study, ways: tuple[_Way, _Way], watch: Stopwatch) -> ComparedStudy:
    patchwise, whole = (replace(way.translator, watch=watch) for way in ways)
    scans = patchwise.read(study)
    whole.plan(scans)  # which may refuse it
    prepared = patchwise.prepare(scans, patchwise.plan(scans))
    watch.stage = "infer"
    (one, patches), (other, volume) = (way.translated(prepared) for way in ways)
    here, there = (each.made.target.values for each in (one, other))
    apart = there - here
    norm = float(np.linalg.norm(here.ravel().astype(np.float64)))
    unit = abs(prepared.prepared.fit.outward[0].radius)
    return ComparedStudy(
        patches,
        volume,
        difference=float(np.linalg.norm(apart.ravel().astype(np.float64))) / max(norm, 1e-12),
        mean_difference=float(np.abs(apart).mean(dtype=np.float64)) * unit,
    )
