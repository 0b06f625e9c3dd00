"""Editing of a model card into another file; the model's computation stays the same."""

from dataclasses import dataclass, replace

from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model, encode_model
from ..errors import SettingsError


@dataclass(frozen=True, slots=True)
class CardEdit:
    """New values for a model card; None leaves a field as it is.

    name: name of the model. licence: licence of the weights. source, target: names of the input
    and output channels.
    """

    name: str | None = None
    licence: str | None = None
    source: tuple[str, ...] | None = None
    target: tuple[str, ...] | None = None


def edited_model(model: Model, edit: CardEdit) -> bytes:
    """Return the bytes of a model file of the same identity with an edited model card.

    Only results that contain its labels become pending. Raises SettingsError for an empty edit,
    ModelFileError for values that no model card may have.
    """
    if edit == CardEdit():
        raise SettingsError(
            "Nothing would change; give setting name, setting licence, setting source or "
            "setting target.",
            "name",
            "licence",
            "source",
            "target",
        )
    card = _edited_card(model.card, edit)
    card = replace(card, rewritten_from=(*model.card.rewritten_from, model.sha256))
    return encode_model(card, model.network, model.reference_input, model.reference_output)


def _edited_card(card: ModelCard, edit: CardEdit) -> ModelCard:
    if edit.name is not None:
        card = replace(card, name=edit.name)
    if edit.licence is not None:
        card = replace(card, provenance=replace(card.provenance, licence=edit.licence))
    if edit.source is not None:
        card = replace(card, source=", ".join(edit.source), input_channels=edit.source)
    if edit.target is not None:
        card = replace(card, target=", ".join(edit.target), output_channels=edit.target)
    return card
