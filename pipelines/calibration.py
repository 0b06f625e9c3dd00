"""A model's calibration: what the scans of a reference set are like, and how near their
translations come back to them, into a new model file.
"""

from collections.abc import Callable, Sequence
from collections.abc import Generator as Yields
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from ..engine.devices import Device, with_half_the_memory
from ..engine.generator import SharedGenerator
from ..engine.model.model_card import FEWEST_STUDIES, CycleReference, ModelCard, Typical
from ..engine.model.model_file import Model, encode_model
from ..engine.options import Inference, ignore_progress
from ..io.volume import Study
from .cycle.back_model import back_options
from .cycle.back_translation import BackTask, BackTranslator, opened_back_translator
from .errors import SettingsError
from .one_by_one import one_by_one
from .opening import shared_network
from .report.report import Failure
from .settings import TranslateOptions
from .stopwatch import Stopwatch
from .study.translation import (
    OpenModel,
    PreparedStudy,
    ignore_tiles,
    infer_study,
    plan_read_study,
    prepare_study,
    read_study,
)
from .study.voxels.input_figures import InputFigures, expectations


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated model.

    content: bytes of its file, of the same identity, so that results stay up to date. card: what
    it says now. failures: of scans that do not count, by their names.
    """

    content: bytes
    card: ModelCard
    failures: dict[str, Failure]


@dataclass(frozen=True, slots=True)
class Translation:
    """Both generators of a pair, open. generator: the first. back_translator: the other."""

    generator: SharedGenerator
    back_translator: BackTranslator

    def cycle_error(self, study: PreparedStudy, watch: Stopwatch) -> float:
        """Of a study, in network intensity. Raises EngineError and PreparationError."""
        model, options = self.back_translator.model, self.back_translator.options
        precision = options.settings().precision
        outcome = self.generator.do(
            lambda network: infer_study(
                study, OpenModel(model, network, options), watch, ignore_tiles
            ),
            precision,
        )
        made = self.back_translator.translate_back(outcome.result, precision, watch, ignore_tiles)
        error = made.compared(watch).error
        return error.error / error.unit


@contextmanager
def opened_translation(
    model: Model, back: Model, device: Device, options: TranslateOptions
) -> Yields[Translation]:
    """A pair of generators on a device. Raises EngineError."""
    shared = with_half_the_memory(device)

    def opening(one: Model, how: TranslateOptions) -> AbstractContextManager[SharedGenerator]:
        return shared_network(one.network, shared, how.settings().opened_for)

    task = BackTask(back, lambda _: opening(back, back_options(options, back)))
    with (
        opening(model, options) as generator,
        opened_back_translator(task, model, options, ignore_progress) as back_translator,
    ):
        assert back_translator
        yield Translation(generator, back_translator)


@dataclass(frozen=True, slots=True)
class _ReferenceStudy:
    """A scan of the set; cycle: its error in network intensity, if that was asked for."""

    figures: InputFigures
    cycle: float | None


def calibrate(
    model: Model,
    studies: Sequence[Study],
    options: TranslateOptions,
    translation: Translation | None = None,
    tell: Callable[[int, int], None] = lambda _done, _all: None,
    mark_beyond: float | None = None,
    inference: Inference | None = None,
) -> Calibration:
    """Learn from a reference set what the model's scans are like.

    options: with none left open. translation: by which their cycle errors are learnt too; without
    one those that the model knows stay. tell: is told how many of all studies are done.
    mark_beyond: by so many standard deviations of the cycle error above its mean a study is marked
    from now on; None marks none. inference: what the card is to say of it; None leaves that.
    Raises SettingsError for a model of several channels, and if too few scans can be taken.
    """
    if len(model.card.input_channels) > 1:
        raise SettingsError(
            f"Model {model.card.name} takes {len(model.card.input_channels)} channels, and only "
            "models of one can be calibrated."
        )
    # What an earlier calibration expected is of no interest.
    plain = replace(model, card=replace(model.card, expected=None))

    def measured(study: Study, watch: Stopwatch) -> _ReferenceStudy:
        scans = read_study(study, options, watch)
        plan = plan_read_study(scans, plain, options, watch)
        prepared = prepare_study(scans, plan, plain, options, watch)
        cycle = translation and translation.cycle_error(prepared, watch)
        return _ReferenceStudy(prepared.prepared.figures(), cycle)

    outcomes = list(one_by_one(studies, measured, tell))
    failures = {name: each for name, each in outcomes if isinstance(each, Failure)}
    found = [each for _, each in outcomes if not isinstance(each, Failure)]
    if len(found) < FEWEST_STUDIES:
        raise SettingsError(_too_few(len(found), failures))
    card = replace(
        model.card,
        expected=expectations([study.figures for study in found]),
        inference=inference or model.card.inference,
        rewritten_from=(*model.card.rewritten_from, model.sha256),
    )
    if translation:
        errors = Typical.of([study.cycle for study in found if study.cycle is not None])
        identity = translation.back_translator.back.identity
        card = replace(card, cycle=CycleReference(identity, len(found), errors, mark_beyond))
    content = encode_model(card, model.network, model.reference_input, model.reference_output)
    return Calibration(content, card, failures)


def _too_few(count: int, failures: dict[str, Failure]) -> str:
    name, failure = next(iter(failures.items()), ("", None))
    why = f"; {name}: {failure.reason}" if failure else "."
    return (
        f"A calibration needs {FEWEST_STUDIES} scans or more, better twenty, and {count} could be "
        f"taken{why}"
    )
