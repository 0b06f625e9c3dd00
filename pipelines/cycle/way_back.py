"""A result through the second generator, and what of the scan comes back.

The way back starts from the finished result, as it is stored: it is blended, in the target's unit
and of its voxel type, so it is what a user would translate. Tiles of it could go back at once, but
they are no part of any result, and the seams that blending removes would count.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...engine.cores import beside_each_other
from ...engine.cuda.plan_cache import Progress
from ...engine.model.model import Model
from ...engine.network.layers import FloatArray
from ...engine.options import Precision
from ...engine.recovery import SharedGenerator
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
    """What leads results back.

    model: the counterpart. share_generator: lets the threads of a batch have it, open beside the
    other; it is told of the search for plans.
    """

    model: Model
    share_generator: Callable[[Progress], AbstractContextManager[SharedGenerator]]


@dataclass(frozen=True, slots=True)
class Returned:
    """A study whose result was led back. inferred: it, with the map of the error if that is asked
    for. error: of the cycle.
    """

    inferred: InferredStudy
    error: CycleError


@dataclass(frozen=True, slots=True)
class LedBack:
    """A study whose result was led back: no network is needed any more to compare it with its scan.

    way_back: by which. inferred: it, with the result finished. made: what came back. notes: on how
    that was computed.
    """

    way_back: "WayBack"
    inferred: InferredStudy
    made: InferredStudy
    notes: tuple[str, ...]

    def compared(self, watch: Stopwatch, empty: Empty = np.empty) -> Returned:
        """The error of what came back, and its map if that is asked for."""
        inferred, way_back = self.inferred, self.way_back
        scan = _scan_of(inferred)
        with watch.time("finish"):
            shown = way_back.blank_map(scan, empty)
            error = way_back.error(scan, inferred.study.prepared, self.made, shown)
        maps = (StudyMap(cycle_mark(way_back.asked.sha256), shown),) if shown else ()
        return Returned(replace(inferred, maps=maps), error)


@dataclass(frozen=True, slots=True)
class WayBack:
    """The second generator, open; threads may use it at the same time.

    model: that leads forth. back: its counterpart. generator: of that. options: of the batch.
    """

    model: Model
    back: Model
    generator: SharedGenerator
    options: TranslateOptions

    def plan(self, study: PreparedStudy) -> StudyPlan:
        """How the result of a study is led back. Raises PreparationError."""
        return plan_back(study.prepared.source, self.back, self.options)

    def lead(
        self,
        inferred: InferredStudy,
        precision: Precision,
        watch: Stopwatch,
        on_tiles: OnTiles,
        empty: Empty = np.empty,
    ) -> LedBack:
        """Finish a study's result and translate it back.

        precision: to begin with. Raises EngineError and PreparationError.
        """
        _scan_of(inferred)
        with watch.time("finish"):
            [result] = finish(inferred.study.prepared, inferred.made, empty)
        made, notes = self._led_back(result, precision, watch, on_tiles, empty)
        return LedBack(self, replace(inferred, finished=(result,)), made, notes)

    @property
    def asked(self) -> CycleCheck:
        """What is asked for."""
        return self.options.cycle_check or CycleCheck("")

    def blank_map(self, scan: Volume, empty: Empty) -> Volume | None:
        """New voxels on the scan's grid for the error of each, if that is asked for."""
        if not self.asked.has_map:
            return None
        return scan.with_voxels(empty(scan.shape[::-1], np.float32).transpose())

    def _led_back(
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
        raise ValueError("the scan of a study that is led back must be kept")
    return scan


@contextmanager
def opened_way_back(
    task: BackTask | None, model: Model, options: TranslateOptions, progress: Progress
) -> Generator[WayBack | None]:
    """The way back of a batch, if it has one, with its network open."""
    if task is None:
        yield None
        return
    with task.share_generator(progress) as generator:
        generator.open(options.settings().precision)
        yield WayBack(model, task.model, generator, options)


def plan_back(volume: Volume, back: Model, options: TranslateOptions) -> StudyPlan:
    """How a result on a volume's grid is led back. Raises PreparationError."""
    settings = back_options(options, back).settings()
    graph = back.network.graph
    plan = plan_study([volume], back.card, settings, graph.stride, in_network=True)
    check_volume(plan, graph)
    return plan


def host_bytes(scan: Volume, forth: StudyPlan, back: StudyPlan, options: TranslateOptions) -> int:
    """Bytes that a study with a way back holds at most: its scan is kept, and its result.

    A little more than is needed where several of its arrays are not there at the same time.
    """
    kept = 0 if forth.is_given_as_stored else scan.voxels.nbytes
    if options.cycle_check and options.cycle_check.has_map:
        kept += scan.voxels.size * np.dtype(np.float32).itemsize
    return kept + max(forth.footprint.peak, forth.footprint.finished + back.footprint.translated)


def mean_difference(
    scan: Volume, prepared: Prepared, made: InferredStudy, shown: Volume | None = None
) -> float:
    """Mean absolute difference in network intensity, in the foreground of the scan on its own grid.

    The scan is taken as the network takes it, so what its intensity map clips is no difference.
    made: the way back, in network intensities. shown: is filled with the difference of each voxel,
    in the scan's unit.
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
