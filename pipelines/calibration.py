"""Calibration of a model on a reference set: figures of its usual scans, measures of their results,
errors of back-translations, and differences between whole-volume inference and patches.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..engine.devices import Device
from ..engine.generator import SharedGenerator
from ..engine.model.calibration import FEWEST_STUDIES, CycleReference, Typical
from ..engine.model.model_card import ModelCard
from ..engine.model.model_file import Model, encode_model
from ..engine.options import Inference
from ..io.errors import SeveralVolumesError, UnsupportedScanError
from ..io.volume import Study
from .cycle import BackTranslator, reverse_options
from .errors import SettingsError
from .report.report import Content, Failure, StudyReport, failure_of
from .report.result_groups import reference_of
from .results.file_states import FileState, content_of
from .run.networks import Networks
from .settings import ResolvedOptions
from .stopwatch import Stopwatch
from .study.figures import Measures
from .study.input_figures import InputFigures, expectations, scan_profiles
from .study.patches import seam_score
from .study.translator import InferredStudy, PreparedStudy, StudyTranslator

Output = TypeVar("Output")


def one_by_one(
    studies: Sequence[Study],
    work: Callable[[Study, Stopwatch], Output],
    on_progress: Callable[[int, int], None],
) -> Iterator[tuple[str, Output | Failure]]:
    """Yield the name of each study with the output of `work`, or its failure.

    work: records its stages in the stopwatch. on_progress: called with the numbers of finished and
    all studies.
    """
    for done, study in enumerate(studies):
        on_progress(done, len(studies))
        name, timer = str(study.name), Stopwatch(str(study.name))
        if study.blocker:
            yield name, Failure(study.blocker.kind, study.blocker.reason, None)
            continue
        try:
            output: Output | Failure = work(study, timer)
        except SeveralVolumesError as error:
            output = failure_of(UnsupportedScanError(error.where_fixed), timer.stage)
        except Exception as error:  # as in a batch, a study's trouble is its own
            output = failure_of(error, timer.stage)
        yield name, output


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibrated model.

    content: bytes of its file, of the same identity, so that results stay up to date. card: its new
    card. failures: failures of scans that do not count, by their names.
    """

    content: bytes
    card: ModelCard
    failures: dict[str, Failure]


@dataclass(frozen=True, slots=True)
class Translation:
    """Open model. generator: its network. back_translator: the reverse model, if there is one."""

    generator: SharedGenerator
    back_translator: BackTranslator | None = None

    def translated(
        self, translator: StudyTranslator, study: PreparedStudy
    ) -> tuple[Measures | None, float | None]:
        """Return the measures of a study's result, and its cycle error in network intensity, if
        there is a reverse model.

        Raises EngineError and PreparationError.
        """
        inferred, back = translator.infer(study, self.generator), self.back_translator
        cycle: float | None = None
        if back:
            returned = back.translate_back(inferred, translator.timer)
            error = returned.compared(translator.timer).error
            inferred, cycle = returned.inferred, error.error / error.unit
        return translator.finish(inferred).measures, cycle


@contextmanager
def opened_translation(
    model: Model, back: Model | None, device: Device, options: ResolvedOptions
) -> Generator[Translation]:
    """Open a model, and its reverse model if there is one, on a device. Raises EngineError."""
    with Networks(device) as networks:
        if back is None:
            with networks.use((model, options)) as (generator,):
                generator.open(options.precision)
                yield Translation(generator)
            return
        uses = (model, options), (back, reverse_options(options, back))
        with networks.use(*uses) as (generator, returning):
            returning.open(options.precision)
            yield Translation(generator, BackTranslator(model, back, returning, options))


@dataclass(frozen=True, slots=True)
class _ReferenceStudy:
    """Scan of the reference set.

    figures: its input figures. row: of its result. cycle: its cycle error in network intensity, if
    requested.
    """

    figures: InputFigures
    row: StudyReport
    cycle: float | None


def calibrate(
    model: Model,
    studies: Sequence[Study],
    options: ResolvedOptions,
    translation: Translation,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    mark_beyond: float | None = None,
    inference: Inference | None = None,
) -> Calibration:
    """Derive the figures of a model's usual scans and results from a reference set.

    translation: translates the scans; without a reverse model, the cycle errors of the model's card
    stay. on_progress: called with the numbers of finished and all studies. mark_beyond: number of
    standard deviations of the cycle error above its mean beyond which a study is marked; None marks
    none. inference: new setting of the card; None keeps the old. Raises SettingsError for a model
    of several channels, and if too few scans are usable.
    """
    if len(model.card.input_channels) > 1:
        raise SettingsError(
            f"Model {model.card.name} takes {len(model.card.input_channels)} channels, and only "
            "models of one can be calibrated."
        )

    seen: dict[Content | None, str] = {}

    def measured(study: Study, timer: Stopwatch) -> _ReferenceStudy:
        name = str(study.name)
        content = content_of([FileState.of(file) for file in study.files])
        if first := seen.get(content):
            raise UnsupportedScanError(f"It is a copy of {first}, and each scan counts once.")
        translator = StudyTranslator(model, options, timer)
        scans = translator.read(study)
        prepared = translator.prepare(scans, translator.plan(scans), is_compared=False)
        figures = prepared.prepared.figures()
        measures, cycle = translation.translated(translator, prepared)
        seen[content] = name
        row = StudyReport(name, study.files[0], Path(), "translated", measures=measures)
        return _ReferenceStudy(figures, row, cycle)

    outcomes = list(one_by_one(studies, measured, on_progress))
    failures = {name: each for name, each in outcomes if isinstance(each, Failure)}
    found = [each for _, each in outcomes if not isinstance(each, Failure)]
    if len(found) < FEWEST_STUDIES:
        raise SettingsError(_too_few(len(found), failures))
    card = replace(
        model.card,
        expected=expectations([study.figures for study in found]),
        profiles=scan_profiles([study.figures for study in found]),
        results=reference_of([study.row for study in found]),
        inference=inference or model.card.inference,
        pipeline=None if inference not in (None, model.inference) else model.card.pipeline,
        rewritten_from=(*model.card.rewritten_from, model.sha256),
    )
    if translation.back_translator:
        errors = Typical.of([study.cycle for study in found if study.cycle is not None])
        identity = translation.back_translator.back.identity
        card = replace(card, cycle=CycleReference(identity, len(found), errors, mark_beyond))
    content = encode_model(card, model.network, model.reference_input, model.reference_output)
    return Calibration(content, card, failures)


def _too_few(count: int, failures: dict[str, Failure]) -> str:
    name, failure = next(iter(failures.items()), ("", None))
    why = f"; {name}: {failure.reason}" if failure else "."
    return (
        f"A calibration needs at least {FEWEST_STUDIES} scans, better twenty, but only {count} "
        f"could be used{why}"
    )


@dataclass(frozen=True, slots=True)
class InferenceRun:
    """Translation of a study by one kind of inference. seam: worst score at the borders of patches,
    None if one patch covers the volume. seconds: time of the network and its copies.
    """

    seam: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ComparedStudy:
    """Study translated by both kinds of inference.

    patches, volume: each translation. difference: L2 norm of their difference, relative to that of
    the patches. mean_difference: mean absolute difference over all voxels, in the result's unit.
    """

    patches: InferenceRun
    volume: InferenceRun
    difference: float
    mean_difference: float


def compare_inference(
    model: Model,
    studies: Sequence[Study],
    device: Device,
    options: ResolvedOptions,
    on_progress: Callable[[int, int], None],
) -> Iterator[tuple[str, ComparedStudy | Failure]]:
    """Translate studies by patches and by whole-volume inference; yield name and comparison of
    each.

    options: all resolved but inference. on_progress: called with the number of finished and of all
    studies.
    """
    patches = replace(options, inference="patches", seam_score=True)
    volume = replace(options, inference="volume", seam_score=True)
    uses = (model, patches), (model, volume)
    with Networks(device) as networks, networks.use(*uses) as (patch_network, volume_network):
        both = (
            _Mode(StudyTranslator(model, patches), patch_network),
            _Mode(StudyTranslator(model, volume), volume_network),
        )
        yield from one_by_one(
            studies, lambda study, timer: _compared(study, both, timer), on_progress
        )


@dataclass(frozen=True, slots=True)
class _Mode:
    translator: StudyTranslator
    generator: SharedGenerator

    def translated(self, study: PreparedStudy) -> tuple[InferredStudy, InferenceRun]:
        options, timer = self.translator.options, Stopwatch()
        plan = replace(study.prepared.plan, inference=options.inference)
        study = replace(study, prepared=replace(study.prepared, plan=plan))
        self.generator.open(options.precision)
        inferred = replace(self.translator, timer=timer).infer(study, self.generator)
        output = inferred.output.target.values
        seams = seam_score(study.prepared.network_input.values, output, plan.layout, options.blend)
        return inferred, InferenceRun(seams.worst, timer.total())


def _compared(study: Study, modes: tuple[_Mode, _Mode], timer: Stopwatch) -> ComparedStudy:
    patchwise, whole = (replace(mode.translator, timer=timer) for mode in modes)
    scans = patchwise.read(study)
    whole.plan(scans)  # which may refuse it
    prepared = patchwise.prepare(scans, patchwise.plan(scans))
    timer.stage = "infer"
    (one, patches), (other, volume) = (mode.translated(prepared) for mode in modes)
    here, there = (each.output.target.values for each in (one, other))
    apart = there - here
    norm = float(np.linalg.norm(here.ravel().astype(np.float64)))
    unit = abs(prepared.prepared.fit.outward[0].scaling.radius)
    return ComparedStudy(
        patches,
        volume,
        difference=float(np.linalg.norm(apart.ravel().astype(np.float64))) / max(norm, 1e-12),
        mean_difference=float(np.abs(apart).mean(dtype=np.float64)) * unit,
    )
