"""The generator that translates back: its file, and whether it is the counterpart of the other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...engine.errors import ModelFileError
from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model, load_model
from ..errors import SettingsError
from ..settings import TranslateOptions
from ..study.voxels.resampling import SAME_SPACING
from .cycle_error import CycleRule


def back_model(model: Model, options: TranslateOptions) -> Model | None:
    """The model that is to translate back, if one is asked for.

    Raises ModelFileError if its file is none or another than was meant, and SettingsError if it is
    no counterpart of `model`.
    """
    asked = options.cycle_check
    if asked is None:
        return None
    back = load_model(Path(asked.model))
    if asked.sha256 not in ("", back.sha256):
        raise ModelFileError(
            f"{asked.model} is another model than when the job was submitted; submit again, or "
            "put the old file back."
        )
    check_counterpart(model.card, back.card)
    return back


def check_counterpart(card: ModelCard, back: ModelCard) -> None:
    """Raise SettingsError, with the difference, unless `back` undoes what `card` does."""
    for difference in _differences(card, back):
        raise SettingsError(
            f"Model {back.name} is no way back from {card.name}: {difference}; name its "
            "counterpart of the same training with setting cycle-check."
        )


def cycle_rule(card: ModelCard, back: str) -> CycleRule:
    """How errors of a model's results are judged; back: identity of what leads them back."""
    known = card.cycle
    return CycleRule(back, known.limit if known and known.back == back else None)


def check_read(options: TranslateOptions, back: Model | None) -> TranslateOptions:
    """The options with the model that is meant, by its hash."""
    asked = options.cycle_check
    if asked is None or back is None:
        return options
    return replace(options, cycle_check=replace(asked, sha256=back.sha256))


def back_options(options: TranslateOptions, back: Model) -> TranslateOptions:
    """With what a result is translated back: as forward, on tiles of that model if on tiles."""
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
        yield "one of them has several channels, and only results of models of one are led back"
    here, there = (card.source, card.target), (back.target, back.source)
    if [*map(_plain, here)] != [*map(_plain, there)]:
        yield (
            f"it translates {back.source} to {back.target}, and the other {card.source} to "
            f"{card.target} ('model edit' changes the words)"
        )
    if not _equal_spacing(_spacing(card), _spacing(back)):
        yield f"it was trained at {_mm(back)}, and the other at {_mm(card)}"
    if (card.intensity_in, card.input_range) != (back.intensity_out, back.output_range):
        yield "the intensities that it makes are not those that the other takes"
    if (card.intensity_out, card.output_range) != (back.intensity_in, back.input_range):
        yield "the intensities that it takes are not those that the other makes"


def _plain(words: str) -> str:
    return " ".join(words.casefold().split())


def _spacing(card: ModelCard) -> dict[str, float] | None:
    """Millimetres by anatomical axis, as axes may stand in another order."""
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
