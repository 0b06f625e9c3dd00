"""The model card as JSON text, and strictly back."""

import json
from typing import cast

from .architectures import ResNetSpec, UNetSpec
from .card import Identity, MinMax, ModelCard, Percentiles, Window, ZScore
from .card_rules import check_card
from .errors import ModelFileError
from .records import Json, from_json, to_json

KINDS = {
    ResNetSpec: "resnet",
    UNetSpec: "unet",
    Window: "window",
    Percentiles: "percentiles",
    MinMax: "minmax",
    ZScore: "zscore",
    Identity: "identity",
}


def card_to_json(card: ModelCard) -> str:
    """JSON text, the same for equal cards; raises ModelFileError if it could not be read back."""
    checked = from_json(ModelCard, to_json(card, KINDS), KINDS, "")
    check_card(checked)
    return json.dumps(to_json(checked, KINDS), ensure_ascii=False, separators=(",", ":"))


def card_from_json(text: str) -> ModelCard:
    """The card; raises ModelFileError, which names the field that is wrong."""
    card = cast("ModelCard", from_json(ModelCard, strict_json(text, "model card"), KINDS, ""))
    check_card(card)
    return card


def strict_json(text: str | bytes, what: str) -> Json:
    """Parsed JSON without repeated keys; raises ModelFileError naming `what`."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ModelFileError(f"The {what} is not valid JSON: {reason}.") from error


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found
