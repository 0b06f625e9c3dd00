"""A model's identity changes with what changes voxels, and with nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np
import pytest
from support.model_cards import model_parts

from cuda_cyclegan.engine.model.card import Established, Identity, ModelCard, Window
from cuda_cyclegan.engine.model.model import Model, decode_model, encode_model
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray

parts = cache(model_parts)
Changed: TypeAlias = Callable[[ModelCard], ModelCard]


def model_of(
    changed: Changed = lambda card: card, weights: Mapping[str, FloatArray] | None = None
) -> Model:
    """A model of which some is changed."""
    card, network, *pair = parts()
    network = Network(network.graph, {**network.weights, **(weights or {})})
    return decode_model(encode_model(changed(card), network, *pair))


SAME: dict[str, Changed] = {
    "name": lambda card: replace(card, name="Better"),
    "contrasts": lambda card: replace(card, source="PD", input_channels=("PD",)),
    "licence": lambda card: replace(card, provenance=replace(card.provenance, licence="MIT")),
    "provenance": lambda card: replace(
        card, provenance=replace(card.provenance, notes="none", layout="x")
    ),
    "reference": lambda card: replace(
        card, reference=replace(card.reference, made_by="training code")
    ),
    "established": lambda card: replace(card, established=Established("code", "junyanz")),
    "patch": lambda card: replace(card, patch=(32, 32, 32)),
    "history": lambda card: replace(card, rewritten_from=("0" * 64,)),
}
OTHER: dict[str, Changed] = {
    "axes": lambda card: replace(card, axes="LPS"),
    "spacing": lambda card: replace(card, spacing=None),
    "intensity in": lambda card: replace(card, intensity_in=Identity()),
    "intensity out": lambda card: replace(card, intensity_out=Window(0.0, 1001.0)),
    "input range": lambda card: replace(card, input_range="0..1"),
    "output range": lambda card: replace(card, output_range="open"),
    "small volumes": lambda card: replace(card, small_volume_padding="minimum"),
}


@pytest.mark.parametrize("name", SAME)
def test_words_leave_it_as_it_is(name: str) -> None:
    model = model_of(SAME[name])
    assert model.identity == model_of().identity
    assert model.sha256 != model_of().sha256


@pytest.mark.parametrize("name", OTHER)
def test_what_changes_voxels_changes_it(name: str) -> None:
    assert model_of(OTHER[name]).identity != model_of().identity


def test_one_weight_changes_it() -> None:
    name = "block0.conv0.weight"
    weight = model_of().network.weights[name] + np.float32(1e-6)
    assert model_of(weights={name: weight}).identity != model_of().identity


def test_it_is_the_same_in_every_version() -> None:
    found = model_of(
        lambda card: replace(card, provenance=replace(card.provenance, importer="another"))
    )
    assert found.identity == IDENTITY


IDENTITY = "7059e15f3e0051d5f1063f944d1f50d563f07aa8d93fa5d1df457d77b06dd0d3"
"""Of this very model; results of all users are due again if it changes."""


def test_results_are_known_by_the_hashes_of_all_files() -> None:
    model = model_of(lambda card: replace(card, rewritten_from=("0" * 64,)))
    assert model.known_as == (model.identity, model.sha256, "0" * 64)
