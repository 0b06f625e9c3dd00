"""The words of a model's card, said anew in another file; what it computes stays as it is."""

from dataclasses import dataclass, replace

from ...engine.model.card import ModelCard
from ...engine.model.model import Model, encode_model
from ..errors import SettingsError


@dataclass(frozen=True, slots=True)
class NewWords:
    """What the card is to say instead; None leaves a word as it is.

    name: of the model. licence: of the weights. source, target: names of the channels that go in
    and come out.
    """

    name: str | None = None
    licence: str | None = None
    source: tuple[str, ...] | None = None
    target: tuple[str, ...] | None = None


def rewritten(model: Model, words: NewWords) -> bytes:
    """Bytes of a model file of the same identity, whose results stay up to date.

    Raises SettingsError if nothing is said, ModelFileError for words that no card may hold.
    """
    if words == NewWords():
        raise SettingsError(
            "Nothing is to be said anew; give setting name, setting licence, setting source or "
            "setting target."
        )
    card = _with_words(model.card, words)
    card = replace(card, rewritten_from=(*model.card.rewritten_from, model.sha256))
    return encode_model(card, model.network, model.reference_input, model.reference_output)


def _with_words(card: ModelCard, words: NewWords) -> ModelCard:
    if words.name is not None:
        card = replace(card, name=words.name)
    if words.licence is not None:
        card = replace(card, provenance=replace(card.provenance, licence=words.licence))
    if words.source is not None:
        card = replace(card, source=", ".join(words.source), input_channels=words.source)
    if words.target is not None:
        card = replace(card, target=", ".join(words.target), output_channels=words.target)
    return card
