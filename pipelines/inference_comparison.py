"""What it would change to translate a user's scans at once instead of in patches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from ..engine.devices import Device, with_half_the_memory
from ..engine.model.model import Model
from ..engine.options import Inference
from ..engine.recovery import SharedGenerator, shared_generator
from ..io.volume import Study
from .opening import Opener
from .report.failures import failure_of
from .report.report import Failure
from .settings import TranslateOptions
from .stopwatch import Stopwatch
from .study.seams import seam_score
from .study.translation import (
    InferredStudy,
    OpenModel,
    PreparedStudy,
    ignore_tiles,
    infer_study,
    plan_read_study,
    prepare_study,
    read_study,
)


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

    name: of the study. patches, volume: each of the ways. difference: of both, in the L2 norm,
    relative to that of the patches. mean_difference: mean absolute, over all voxels, in the unit of
    the result.
    """

    name: str
    patches: OneWay
    volume: OneWay
    difference: float
    mean_difference: float


def compare_inference(
    model: Model,
    studies: Sequence[Study],
    device: Device,
    options: TranslateOptions,
    tell: Callable[[int, int], None] = lambda _done, _all: None,
) -> Iterator[ComparedStudy | tuple[str, Failure]]:
    """Translate studies both ways; of one that cannot be, its name and why.

    options: with none left open but inference. tell: is told how many of all studies are done.
    """
    shared = with_half_the_memory(device)
    patches = replace(options, inference="patches", seam_score=True)
    volume = replace(options, inference="volume", seam_score=True)
    with ExitStack() as opened:

        def way(how: TranslateOptions) -> _Way:
            opener = Opener(model.network, shared, how.settings().opened_for)
            generator = opened.enter_context(shared_generator(opener, shared.precisions))
            return _Way(model, generator, how)

        both = way(patches), way(volume)
        for done, study in enumerate(studies):
            tell(done, len(studies))
            watch = Stopwatch(str(study.name))
            try:
                yield _compared(study, both, watch)
            except Exception as error:  # as in a batch, a study's trouble is its own
                yield str(study.name), failure_of(error, watch.stage)


@dataclass(frozen=True, slots=True)
class _Way:
    model: Model
    generator: SharedGenerator
    options: TranslateOptions

    @property
    def inference(self) -> Inference:
        return self.options.settings().inference

    def translated(self, study: PreparedStudy) -> tuple[InferredStudy, OneWay]:
        plan = replace(study.prepared.plan, inference=self.inference)
        study = replace(study, prepared=replace(study.prepared, plan=plan))
        watch = Stopwatch()
        self.generator.open(self.options.settings().precision)
        outcome = self.generator.do(
            lambda network: infer_study(
                study, OpenModel(self.model, network, self.options), watch, ignore_tiles
            ),
            self.options.settings().precision,
        )
        made = outcome.result.made.target.values
        seams = seam_score(study.prepared.given.values, made, plan.tiling, self.options.blend)
        return outcome.result, OneWay(seams.worst, watch.total())


def _compared(study: Study, ways: tuple[_Way, _Way], watch: Stopwatch) -> ComparedStudy:
    first = ways[0]
    scans = read_study(study, first.options, watch)
    plan_read_study(scans, first.model, ways[1].options, watch)  # which may refuse it
    plan = plan_read_study(scans, first.model, first.options, watch)
    prepared = prepare_study(scans, plan, first.model, first.options, watch)
    watch.stage = "infer"
    (one, patches), (other, volume) = (way.translated(prepared) for way in ways)
    here, there = (each.made.target.values for each in (one, other))
    apart = there - here
    norm = float(np.linalg.norm(here.ravel().astype(np.float64)))
    unit = abs(prepared.prepared.fit.outward[0].radius)
    return ComparedStudy(
        str(study.name),
        patches,
        volume,
        difference=float(np.linalg.norm(apart.ravel().astype(np.float64))) / max(norm, 1e-12),
        mean_difference=float(np.abs(apart).mean(dtype=np.float64)) * unit,
    )
