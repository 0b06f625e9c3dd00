"""Back-translation: a result through the second generator, and how near that comes to the scan.

It starts from the finished result, as it is stored: it is blended, in the target's unit and of its
voxel type, so it is what a user would translate. Tiles of it could be translated back at once, but
they are no part of any result, and the seams that blending removes would count.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...engine.cores import beside_each_other
from ...engine.generator import SharedGenerator
from ...engine.model.model_file import Model
from ...engine.network.layers import FloatArray
from ...engine.options import Precision, Progress
from ...io.volume import Empty, Volume
from ..errors import PreparationError
from ..settings import CycleCheck, TranslateOptions
from ..stopwatch import Stopwatch
from ..study.finishing import finish
from ..study.maps.study_map import StudyMap, cycle_mark
from ..study.plan import StudyPlan, check_volume, plan_study
from ..study.preparation import Prepared, prepare
from ..study.translation import InferredStudy, OnTiles, OpenModel, PreparedStudy, infer_study
from ..study.voxels.foreground import level_of
from ..study.voxels.planes import Slab, rows, slabs
from .back_model import back_options, cycle_rule
from .cycle_error import CycleError

_Sums: TypeAlias = tuple[float, int]
"""Of absolute differences, and over how many voxels."""


@dataclass(frozen=True, slots=True)
class BackTask:
    """What translates results back.

    model: the counterpart. share_generator: lets the threads of a batch have it, open beside the
    other; it is told of the search for plans.
    """

    model: Model
    share_generator: Callable[[Progress], AbstractContextManager[SharedGenerator]]


@dataclass(frozen=True, slots=True)
class CycleChecked:
    """A study whose result was translated back and compared with its scan.

    inferred: it, with the map of the error if that is asked for. error: of the cycle.
    """

    inferred: InferredStudy
    error: CycleError


@dataclass(frozen=True, slots=True)
class BackTranslated:
    """A study whose result was translated back: to compare it with its scan takes no network.

    translator: by which. inferred: it, with the result finished. made: what came back. notes: on
    how that was computed.
    """

    translator: "BackTranslator"
    inferred: InferredStudy
    made: InferredStudy
    notes: tuple[str, ...]

    def compared(self, watch: Stopwatch, empty: Empty = np.empty) -> CycleChecked:
        """The error of what came back, and its map if that is asked for."""
        inferred, translator = self.inferred, self.translator
        scan = _scan_of(inferred)
        with watch.time("finish"):
            shown = translator.blank_map(scan, empty)
            error = translator.error(scan, inferred.study.prepared, self.made, shown)
        maps = (StudyMap(cycle_mark(translator.asked.sha256), shown),) if shown else ()
        return CycleChecked(replace(inferred, maps=maps), error)


@dataclass(frozen=True, slots=True)
class BackTranslator:
    """The second generator, open; threads may use it at the same time.

    model: the first. back: its counterpart. generator: of that. options: of the batch.
    """

    model: Model
    back: Model
    generator: SharedGenerator
    options: TranslateOptions

    def plan(self, study: PreparedStudy) -> StudyPlan:
        """How the result of a study is translated back. Raises PreparationError."""
        return plan_back(study.prepared.source, self.back, self.options)

    def translate_back(
        self,
        inferred: InferredStudy,
        precision: Precision,
        watch: Stopwatch,
        on_tiles: OnTiles,
        empty: Empty = np.empty,
    ) -> BackTranslated:
        """Finish a study's result and translate it back.

        precision: to begin with. Raises EngineError and PreparationError.
        """
        _scan_of(inferred)
        with watch.time("finish"):
            [result] = finish(inferred.study.prepared, inferred.made, empty)
        made, notes = self._translated_back(result, precision, watch, on_tiles, empty)
        return BackTranslated(self, replace(inferred, finished=(result,)), made, notes)

    @property
    def asked(self) -> CycleCheck:
        """What is asked for."""
        return self.options.cycle_check or CycleCheck("")

    def blank_map(self, scan: Volume, empty: Empty) -> Volume | None:
        """New voxels on the scan's grid for the error of each, if that is asked for."""
        if not self.asked.has_map:
            return None
        return scan.with_voxels(empty(scan.shape[::-1], np.float32).transpose())

    def _translated_back(
        self,
        result: Volume,
        precision: Precision,
        watch: Stopwatch,
        on_tiles: OnTiles,
        empty: Empty,
    ) -> tuple[InferredStudy, tuple[str, ...]]:
        options = back_options(self.options, self.back)
        with watch.time("prepare"):
            plan = plan_back(result, self.back, self.options)
            try:
                prepared = prepare([result], plan, self.back.card, empty)
            except PreparationError as error:
                raise PreparationError(
                    f"The result cannot be translated back, which setting cycle-check asks for: "
                    f"{error}"
                ) from error
        outcome = self.generator.do(
            lambda network: infer_study(
                PreparedStudy(prepared, ()),
                OpenModel(self.back, network, options),
                watch,
                on_tiles,
                empty,
            ),
            precision,
        )
        told = (*outcome.notes, *outcome.result.notes)
        return outcome.result, tuple(f"On the way back: {note}" for note in told)

    def error(
        self, scan: Volume, prepared: Prepared, made: InferredStudy, shown: Volume | None
    ) -> CycleError:
        """Of what came back of a scan; shown: is filled with that of each voxel."""
        unit = abs(prepared.fit.inward[0].radius)
        mean = mean_difference(scan, prepared, made, shown)
        return cycle_rule(self.model.card, self.back.identity).judged(mean * unit, unit)


def _scan_of(inferred: InferredStudy) -> Volume:
    scan = inferred.study.scan
    if scan is None:
        raise ValueError("the scan of a study that is translated back must be kept")
    return scan


@contextmanager
def opened_back_translator(
    task: BackTask | None, model: Model, options: TranslateOptions, progress: Progress
) -> Generator[BackTranslator | None]:
    """What translates a batch's results back, with its network open; None where nothing does."""
    if task is None:
        yield None
        return
    with task.share_generator(progress) as generator:
        generator.open(options.settings().precision)
        yield BackTranslator(model, task.model, generator, options)


def plan_back(volume: Volume, back: Model, options: TranslateOptions) -> StudyPlan:
    """How a result on a volume's grid is translated back. Raises PreparationError."""
    settings = back_options(options, back).settings()
    graph = back.network.graph
    plan = plan_study([volume], back.card, settings, graph.stride, in_network=True)
    check_volume(plan, graph)
    return plan


def host_bytes(scan: Volume, forward: StudyPlan, back: StudyPlan, options: TranslateOptions) -> int:
    """Bytes that a study holds at most that is translated back: its scan is kept, and its result.

    A little more than is needed where several of its arrays are not there at the same time.
    """
    kept = 0 if forward.is_given_as_stored else scan.voxels.nbytes
    if options.cycle_check and options.cycle_check.has_map:
        kept += scan.voxels.size * np.dtype(np.float32).itemsize
    return kept + max(
        forward.footprint.peak, forward.footprint.finished + back.footprint.translated
    )


def mean_difference(
    scan: Volume, prepared: Prepared, made: InferredStudy, shown: Volume | None = None
) -> float:
    """Mean absolute difference in network intensity, in the foreground of the scan on its own grid.

    The scan is taken as the network takes it, so what its intensity map clips is no difference.
    made: the back-translation, in network intensities. shown: is filled with the difference of each
    voxel, in the scan's unit.
    """
    plan = made.study.prepared.plan
    view = plan.orientation.oriented(scan.voxels)
    inward = prepared.fit.inward[0]
    stored = inward.of_stored(scan.slope, scan.intercept)
    level = level_of(prepared.given)
    [network] = made.made.target.values
    target = plan.orientation.oriented(shown.voxels) if shown else None

    def compared(slab: Slab, returned: FloatArray) -> _Sums:
        difference = stored.forward(view[slab])
        inside = difference > level
        np.subtract(returned, difference, out=difference)
        np.abs(difference, out=difference)
        if target is not None:
            np.multiply(difference, abs(inward.radius), out=target[slab])
        difference *= inside
        return float(difference.sum(dtype=np.float64)), int(np.count_nonzero(inside))

    if plan.resampling is None:
        parts = beside_each_other(lambda slab: compared(slab, network[slab]), slabs(view))
    else:
        inverse = plan.resampling.inverse
        parts = [
            compared(
                (slice(start, stop),),
                inverse.rows(lambda first, last: network[first:last], start, stop),
            )
            for start, stop in rows(view.shape)
        ]
    total, count = (sum(column) for column in zip(*parts, strict=True))
    return total / count if count else 0.0
