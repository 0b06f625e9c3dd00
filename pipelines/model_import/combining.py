"""Combination of models into an ensemble: one model that computes the mean of theirs, and their
disagreement on request.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ...engine.cpu.session import open_cpu_generator
from ...engine.decoding import encode
from ...engine.errors import CheckpointError
from ...engine.model.intensity_maps import is_bent
from ...engine.model.model_card import Established, ModelCard, Provenance, Reference
from ...engine.model.model_file import Model, decode_model, encode_model
from ...engine.model.reference import (
    TOLERANCE,
    Verification,
    array_sha256,
    check_reference_cost,
    reference_extents,
    reference_input,
    verify,
)
from ...engine.network.ensemble import mean_network
from ...engine.network.graph import LARGEST_WEIGHTS, Graph
from ...engine.network.layers import FloatArray
from ..program import program_version
from .card_draft import default_name

_MAY_DIFFER = frozenset(
    ("name", "architecture", "provenance", "reference", "established", "rewritten_from")
) | {"expected", "profiles", "cycle", "results", "pipeline"}
"""Fields of the model card that do not state how scans become patches, and patches results."""

_WEAKEST_FIRST = ("unproven", "not recorded", "graph", "code", "reference")


@dataclass(frozen=True, slots=True)
class Combined:
    """Ensemble as decoded from the bytes of its file.

    model: the model. content: those bytes. verification: comparison with the mean of the models'
    outputs. dropped: kinds of figures on the models' cards that do not
    hold for their mean.
    """

    model: Model
    content: bytes
    verification: Verification
    dropped: tuple[str, ...]


def combined_model(
    models: Sequence[Model], name: str | None = None, *, disagreement: bool = False
) -> Combined:
    """Return the model whose network computes the mean of the outputs of two or more models.

    The mean is that of network intensities, before they are mapped to those of results. The
    reference is the mean of the models' stored references if all have the same input; otherwise
    that of their outputs for the fixed input. name: on the card; None states contrasts and number.
    disagreement: whether the network also computes the mean absolute deviation of the outputs from
    their mean. Raises CheckpointError, which names the difference, unless the cards agree, and
    ModelFileError if the network would be too large.
    """
    _check_distinct(models)
    _check_cards(models)
    if disagreement:
        _check_deviation(models[0].card)
    size = sum(weight.nbytes for model in models for weight in model.network.weights.values())
    if size > LARGEST_WEIGHTS:
        raise CheckpointError(
            f"The models have {size / 2**30:.1f} GiB of weights, but one model file may hold at "
            f"most {LARGEST_WEIGHTS >> 30} GiB; combine fewer of them."
        )
    network = mean_network([model.network for model in models], disagreement=disagreement)
    patch, outputs, made_by = _references(models, network.graph)
    output = _mean(outputs)
    if disagreement:
        output = np.concatenate([output, _mean([abs(one - output) for one in outputs])], axis=1)
    reference = Reference(array_sha256(patch), array_sha256(output), made_by)
    card = _card(models, network.graph, reference, name)
    card = replace(card, disagreement=len(models) if disagreement else 0)
    content = encode_model(card, network, patch, output)
    model = decode_model(content)
    verification = verify(model)
    if not verification.passed:
        raise CheckpointError(
            f"The combined network differs from the mean of {_listed(models)} by a relative error "
            f"of {verification.relative_error:.2g}, but at most {TOLERANCE:g} is allowed; check "
            "each with 'model verify'."
        )
    return Combined(model, content, verification, tuple(_dropped(models)))


def _listed(models: Sequence[Model]) -> str:
    *most, last = map(_label, models)
    return f"{', '.join(most)} and {last}"


def _label(model: Model) -> str:
    return str(model.path or model.card.name)


def _check_distinct(models: Sequence[Model]) -> None:
    if len(models) < 2:
        raise CheckpointError("A single model has no mean with others; name two or more.")
    (identity, count), *_ = Counter(model.identity for model in models).most_common()
    if count > 1:
        same = [model for model in models if model.identity == identity]
        raise CheckpointError(
            f"{_listed(same)} hold the same network; name models of different trainings."
        )


def _check_cards(models: Sequence[Model]) -> None:
    """Raise CheckpointError, which names all differences, unless all cards agree with the first."""
    for model in models:
        if model.card.disagreement:
            raise CheckpointError(
                f"{_label(model)} is a combined model with disagreement, and the mean of such "
                "models has no meaning; name the models that it was combined from."
            )
    first, *others = models
    names = [field.name for field in fields(ModelCard) if field.name not in _MAY_DIFFER]
    for other in others:
        pairs = [(name, _text(first, name), _text(other, name)) for name in names]
        found = [f"{name} ({one} and {another})" for name, one, another in pairs if one != another]
        if found:
            raise CheckpointError(
                f"The model cards of {_listed([first, other])} differ in {', '.join(found)}; only "
                "models that treat scans and results alike can be combined."
            )


def _check_deviation(card: ModelCard) -> None:
    """Raise CheckpointError if a deviation of results could not be shown by one map."""
    if len(card.output_channels) > 1:
        raise CheckpointError(
            f"The models have {len(card.output_channels)} output channels, but a disagreement is "
            "computed for one only; combine them without it."
        )
    if is_bent(card.maps_out[0]):
        raise CheckpointError(
            "The models' results come through a logarithm or a gamma curve, so a disagreement "
            "would not be in their unit; combine them without it."
        )


def _text(model: Model, name: str) -> str:
    return json.dumps(encode(getattr(model.card, name)), ensure_ascii=False)


def _references(
    models: Sequence[Model], graph: Graph
) -> tuple[FloatArray, list[FloatArray], Literal["training code", "cuda-cyclegan"]]:
    """Return a patch, the models' outputs for it, and their origin."""
    patch = models[0].reference_input
    if all(np.array_equal(model.reference_input, patch) for model in models):
        is_proved = all(model.card.reference.made_by == "training code" for model in models)
        outputs = [model.reference_output for model in models]
        return patch, outputs, "training code" if is_proved else "cuda-cyclegan"
    extents = reference_extents(graph)
    check_reference_cost(graph, extents)
    patch, outputs = reference_input(graph.in_channels, extents), list[FloatArray]()
    for model in models:
        with open_cpu_generator(model.network) as generator:
            outputs.append(generator(patch))
    return patch, outputs, "cuda-cyclegan"


def _mean(outputs: Sequence[FloatArray]) -> FloatArray:
    return np.stack(outputs).mean(axis=0, dtype=np.float64).astype(np.float32)


def _card(
    models: Sequence[Model], graph: Graph, reference: Reference, name: str | None
) -> ModelCard:
    card = models[0].card
    contrasts = default_name(card.input_channels, card.output_channels)
    return replace(
        card,
        name=name or f"{contrasts}, mean of {len(models)}",
        architecture=graph,
        provenance=_provenance(models),
        reference=reference,
        established=_weakest([model.card.established for model in models]),
        rewritten_from=(),
        expected=None,
        profiles=None,
        cycle=None,
        results=None,
        pipeline=None,
    )


def _weakest(found: Sequence[Established]) -> Established:
    weakest = min(found, key=lambda each: _WEAKEST_FIRST.index(each.by))
    codes = dict.fromkeys(each.code for each in found if each.by == weakest.by)
    return replace(weakest, code=", ".join(codes))


def _provenance(models: Sequence[Model]) -> Provenance:
    """Return the origin of the weights: hash of the models' hashes, with each file in the notes."""
    names = [Path(_label(model)).name for model in models]
    licences = [model.card.provenance.licence for model in models]
    stated = ", ".join(dict.fromkeys(licence or "not stated" for licence in licences))
    return Provenance(
        source=", ".join(names),
        sha256=hashlib.sha256("".join(model.sha256 for model in models).encode()).hexdigest(),
        layout=f"mean of {len(models)} models",
        importer=f"cuda-cyclegan {program_version()}",
        notes="; ".join(
            f"{name}: SHA-256 {model.sha256}, from {model.card.provenance.source}"
            for name, model in zip(names, models, strict=True)
        ),
        licence=stated if any(licences) else "",
    )


def _dropped(models: Sequence[Model]) -> list[str]:
    cards = [model.card for model in models]
    found = {
        "statistics of a reference set": any(
            card.expected or card.cycle or card.results for card in cards
        ),
        "proof by a whole scan": any(card.pipeline for card in cards),
    }
    return [words for words, applies in found.items() if applies]
