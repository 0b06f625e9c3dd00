"""A model's identity changes with what changes voxels, and with nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from support.model_cards import model_parts

from cuda_cyclegan.engine.model.card import Established, Identity, ModelCard, Window
from cuda_cyclegan.engine.model.model import Model, decode_model, encode_model
from cuda_cyclegan.engine.network.graph import Network

CARD, NETWORK, *PAIR = model_parts()


def model_of(card: ModelCard = CARD, network: Network = NETWORK) -> Model:
    return decode_model(encode_model(card, network, *PAIR))


SAME = {
    "name": replace(CARD, name="Better"),
    "contrasts": replace(CARD, source="PD", input_channels=("PD",)),
    "licence": replace(CARD, provenance=replace(CARD.provenance, licence="MIT")),
    "provenance": replace(CARD, provenance=replace(CARD.provenance, notes="none", layout="x")),
    "reference": replace(CARD, reference=replace(CARD.reference, made_by="training code")),
    "established": replace(CARD, established=Established("code", "junyanz")),
    "patch": replace(CARD, patch=(32, 32, 32)),
    "history": replace(CARD, rewritten_from=("0" * 64,)),
}
OTHER = {
    "axes": replace(CARD, axes="LPS"),
    "spacing": replace(CARD, spacing=None),
    "intensity in": replace(CARD, intensity_in=Identity()),
    "intensity out": replace(CARD, intensity_out=Window(0.0, 1001.0)),
    "input range": replace(CARD, input_range="0..1"),
    "output range": replace(CARD, output_range="open"),
    "small volumes": replace(CARD, small_volume_padding="minimum"),
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
    weights = {**NETWORK.weights, name: NETWORK.weights[name] + np.float32(1e-6)}
    assert model_of(network=Network(NETWORK.graph, weights)).identity != model_of().identity


def test_it_is_the_same_in_every_version() -> None:
    found = model_of(replace(CARD, provenance=replace(CARD.provenance, importer="another")))
    assert found.identity == IDENTITY


IDENTITY = "7059e15f3e0051d5f1063f944d1f50d563f07aa8d93fa5d1df457d77b06dd0d3"
"""Of this very model; results of all users are due again if it changes."""


def test_results_are_known_by_the_hashes_of_all_files() -> None:
    model = model_of(replace(CARD, rewritten_from=("0" * 64,)))
    assert model.known_as == (model.identity, model.sha256, "0" * 64)
