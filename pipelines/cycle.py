"""Cycle check: the reverse model, back-translation of results, and their error against the scan.

Back-translation starts from the finished result, as it is stored: blended, in the target's unit and
of its voxel type, so it is what a user would translate. Patches of it could be translated back
directly, but they are no part of any result, and the seams that blending removes would count.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ..engine.cores import in_parallel
from ..engine.errors import ModelFileError
from ..engine.generator import SharedGenerator
from ..engine.model.intensity_maps import is_bent
from ..engine.model.model_card import ModelCard
from ..engine.model.model_file import Model, load_model
from ..engine.network.layers import FloatArray, triple
from ..io.volume import Empty, Volume
from .errors import PreparationError, SettingsError
from .settings import CycleCheck, ResolvedOptions, TranslateOptions
from .stopwatch import Stopwatch
from .study.figures import CycleError, CycleRule
from .study.finish import finish
from .study.geometry import Slab, rows, slabs
from .study.maps import StudyMap, cycle_mark
from .study.plan import INTENSITY_BYTES, StudyPlan
from .study.prepare import Prepared, mapped_voxels
from .study.resampling import SAME_SPACING
from .study.statistics import level_of
from .study.translator import (
    InferredStudy,
    OnPatches,
    PreparedStudy,
    Scans,
    StudyTranslator,
    ignore_patches,
)


def load_reverse_model(model: Model, options: TranslateOptions) -> Model | None:
    """Load the reverse model, if one is requested. Raises ModelFileError if its file is unreadable
    or has changed, and SettingsError if it is not the reverse of `model`.
    """
    asked = options.cycle_check
    if asked is None:
        return None
    back = load_model(Path(asked.model))
    if asked.sha256 not in ("", back.sha256):
        raise ModelFileError(
            f"{asked.model} has changed since the job was submitted; submit it again, or restore "
            "the old file."
        )
    check_counterpart(model.card, back.card)
    return back


def check_counterpart(card: ModelCard, back: ModelCard) -> None:
    """Raise SettingsError, with the difference, unless `back` undoes what `card` does."""
    for difference in _differences(card, back):
        raise SettingsError(
            f"Model {back.name} is not the reverse model of {card.name}: {difference}; give the "
            "reverse model of the same training with setting cycle-check.",
            "cycle_check",
        )


def cycle_rule(card: ModelCard, back: str) -> CycleRule:
    """Return how errors of a model's results are judged; back: identity of the reverse model."""
    known = card.cycle
    return CycleRule(back, known.limit if known and known.back == back else None)


def with_reverse_hash(options: TranslateOptions, back: Model | None) -> TranslateOptions:
    """Return the options completed with the hash of the reverse model."""
    asked = options.cycle_check
    if asked is None or back is None:
        return options
    return replace(options, cycle_check=replace(asked, sha256=back.sha256))


def reverse_options(options: ResolvedOptions, back: Model) -> ResolvedOptions:
    """Return the options for back-translation: as forward, with the patch of that model."""
    return replace(
        options,
        patch=back.card.patch,
        volume_index=None,
        every_volume=False,
        output_type=None,
        nan_to=None,
        preview=False,
        seam_score=False,
        verify=0,
        strict_input=False,
        spread=0,
        cycle_check=None,
    )


def _differences(card: ModelCard, back: ModelCard) -> Iterator[str]:
    if not (card.is_one_to_one and back.is_one_to_one):
        yield "one of them has several channels; only models of one channel can translate back"
    if any(
        each.crop
        or each.grid
        or each.grid_window
        or each.grid_rule == "nnunet"
        or each.maps_on == "grid"
        for each in (card, back)
    ):
        yield (
            "one of them crops or pads scans, resizes them to a fixed grid, resamples as nnU-Net "
            "does or maps intensities after resampling, and results of such models cannot be "
            "translated back"
        )
    if is_bent(card.maps_in[0]) or is_bent(card.maps_out[0]):
        yield "one of them maps intensities by a logarithm or a gamma curve"
    here, there = (card.source, card.target), (back.target, back.source)
    if [*map(_plain, here)] != [*map(_plain, there)]:
        yield (
            f"it translates {back.source} to {back.target}, and the other {card.source} to "
            f"{card.target} ('model edit' changes these names)"
        )
    if not _equal_spacing(_spacing(card), _spacing(back)):
        yield f"it was trained at {_mm(back)}, and the other at {_mm(card)}"
    if (card.intensity_in, card.input_range) != (back.intensity_out, back.output_range):
        yield "its output intensities are not the other's input intensities"
    if (card.intensity_out, card.output_range) != (back.intensity_in, back.input_range):
        yield "its input intensities are not the other's output intensities"


def _plain(words: str) -> str:
    return " ".join(words.casefold().split())


def _spacing(card: ModelCard) -> dict[str, float] | None:
    """Return millimetres by anatomical axis, as axes may come in another order."""
    if card.spacing is None:
        return None
    axes = {letter: pair for pair in ("RL", "AP", "SI") for letter in pair}
    return {axes[letter]: edge for letter, edge in zip(card.axes, card.spacing, strict=True)}


def _equal_spacing(one: dict[str, float] | None, other: dict[str, float] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(abs(one[axis] / other[axis] - 1) <= SAME_SPACING for axis in one)


def _mm(card: ModelCard) -> str:
    if card.spacing is None:
        return "each scan's own spacing"
    return f"{' x '.join(f'{edge:g}' for edge in card.spacing)} mm"


_Sums: TypeAlias = tuple[float, int]
"""Sum of absolute differences, and number of voxels in it."""


@dataclass(frozen=True, slots=True)
class CycleChecked:
    """Study whose result was translated back and compared with its scan.

    inferred: the study, with the map of the error if requested. error: cycle error.
    """

    inferred: InferredStudy
    error: CycleError


@dataclass(frozen=True, slots=True)
class BackTranslated:
    """Study whose result was translated back; comparing it with its scan takes no network.

    translator: back-translator that did it. inferred: the study, with its result finished.
    returned: the back-translation. notes: notes for the user on how it was computed.
    """

    translator: "BackTranslator"
    inferred: InferredStudy
    returned: InferredStudy
    notes: tuple[str, ...]

    def compared(self, timer: Stopwatch, empty: Empty = np.empty) -> CycleChecked:
        """Compute the error of the back-translation, and its map if requested."""
        inferred, translator = self.inferred, self.translator
        scan = _scan_of(inferred)
        with timer.time("finish"):
            shown = translator.blank_map(scan, empty)
            error = translator.error(scan, inferred.study.prepared, self.returned, shown)
        maps = (StudyMap(cycle_mark(translator.asked.sha256), shown),) if shown else ()
        return CycleChecked(replace(inferred, maps=maps), error)


@dataclass(frozen=True, slots=True)
class BackTranslator:
    """Open reverse model; threads may use it at the same time.

    model: the forward model. back: the reverse model. generator: generator of the reverse model.
    options: options of the batch.
    """

    model: Model
    back: Model
    generator: SharedGenerator
    options: ResolvedOptions

    def plan(self, study: PreparedStudy) -> StudyPlan:
        """Plan the back-translation of a study. Raises PreparationError."""
        return plan_back(study.prepared.source, self.back, self.options)

    def translate_back(
        self,
        inferred: InferredStudy,
        timer: Stopwatch,
        on_patches: OnPatches = ignore_patches,
        empty: Empty = np.empty,
    ) -> BackTranslated:
        """Finish a study's result and translate it back. Raises EngineError, PreparationError."""
        _scan_of(inferred)
        with timer.time("finish"):
            [result] = finish(inferred.study.prepared, inferred.output, empty)
        returned = self._translated_back(result, timer, on_patches, empty)
        notes = tuple(f"Back-translation: {note}" for note in returned.notes)
        return BackTranslated(self, replace(inferred, finished=(result,)), returned, notes)

    @property
    def asked(self) -> CycleCheck:
        """The requested cycle check."""
        return self.options.cycle_check or CycleCheck("")

    def blank_map(self, scan: Volume, empty: Empty) -> Volume | None:
        """Allocate the map of the error on the scan's grid, if requested."""
        if not self.asked.has_map:
            return None
        return scan.with_voxels(empty(scan.shape[::-1], np.float32).transpose())

    def _translated_back(
        self, result: Volume, timer: Stopwatch, on_patches: OnPatches, empty: Empty
    ) -> InferredStudy:
        options = reverse_options(self.options, self.back)
        translator = StudyTranslator(self.back, options, timer, empty)
        with timer.time("prepare"):
            plan = translator.plan_volumes([result], in_network=True)
        try:
            study = translator.prepare(Scans((result,), ()), plan, is_compared=False)
        except PreparationError as error:
            raise PreparationError(
                f"The result cannot be translated back for setting cycle-check: {error}"
            ) from error
        return translator.infer(study, self.generator, on_patches)

    def error(
        self, scan: Volume, prepared: Prepared, returned: InferredStudy, shown: Volume | None
    ) -> CycleError:
        """Return the cycle error of a scan; shown: filled with that of each voxel."""
        unit = abs(prepared.fit.inward[0].scaling.radius)
        mean = mean_difference(scan, prepared, returned, shown)
        return cycle_rule(self.model.card, self.back.identity).judged(mean * unit, unit)


def _scan_of(inferred: InferredStudy) -> Volume:
    scan = inferred.study.scan
    if scan is None:
        raise ValueError("the scan of a study that is translated back must be kept")
    return scan


def plan_back(volume: Volume, back: Model, options: ResolvedOptions) -> StudyPlan:
    """Plan the back-translation of a result on a volume's grid. Raises PreparationError."""
    translator = StudyTranslator(back, reverse_options(options, back))
    return translator.plan_volumes([volume], in_network=True)


def host_bytes(scan: Volume, forward: StudyPlan, back: StudyPlan, options: ResolvedOptions) -> int:
    """Return the peak bytes of a study with back-translation, during which its scan and its result
    are kept.

    A little more than needed if several of its arrays do not coexist.
    """
    kept = 0 if forward.is_input_as_stored else scan.voxels.nbytes
    if options.cycle_check and options.cycle_check.has_map:
        kept += scan.voxels.size * INTENSITY_BYTES
    return kept + max(
        forward.footprint.peak, forward.footprint.finished + back.footprint.translated
    )


def mean_difference(
    scan: Volume, prepared: Prepared, returned: InferredStudy, shown: Volume | None = None
) -> float:
    """Return the mean absolute difference in network intensity over the foreground of the scan, on
    its own grid.

    The scan is compared as the network receives it, so values that its intensity map clips make no
    difference. returned: the back-translation, in network intensities. shown: filled with the
    difference of each voxel, in the scan's unit.
    """
    plan = returned.study.prepared.plan
    inward = prepared.fit.inward[0]
    source = mapped_voxels(scan, inward, plan.orientation)
    level = level_of(prepared.network_input)
    network = returned.output.target.values[0]
    target = plan.orientation.oriented(shown.voxels) if shown else None

    def compared(slab: Slab, returned: FloatArray) -> _Sums:
        difference = source.read(slab)
        inside = difference > level
        np.subtract(returned, difference, out=difference)
        np.abs(difference, out=difference)
        if target is not None:
            np.multiply(difference, abs(inward.scaling.radius), out=target[slab])
        difference *= inside
        return float(difference.sum(dtype=np.float64)), int(np.count_nonzero(inside))

    if plan.resampling is None:
        parts = in_parallel(lambda slab: compared(slab, network[slab]), slabs(source.voxels))
    else:
        inverse = plan.resampling.inverse
        parts = [
            compared(
                (slice(start, stop),),
                inverse.rows(lambda first, last: network[first:last], start, stop),
            )
            for start, stop in rows(triple(source.voxels.shape))
        ]
    total, count = (sum(column) for column in zip(*parts, strict=True))
    return total / count if count else 0.0
