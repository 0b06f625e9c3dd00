"""A checkpoint from Python: the command's model file, or what is still to be said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.lazy_modules import torch
from typer.testing import CliRunner

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.errors import OccupiedError

TRAINING = Path(__file__).parents[3] / "sample_data" / "training"
WEIGHTS = TRAINING / "latest_net_G_A.pth"
CARD = cc.CardDraft(
    source=("T1",),
    target=("T2",),
    axes="RAS",
    spacing=(1.0, 1.0, 1.0),
    patch=(32, 32, 32),
    intensity_in=cc.Percentiles(0, 99.5),
    intensity_out=cc.Window(-1000, 2000),
)
SAID = cc.NetworkChoices(unproven=True, padding="reflect", upsampling="nearest")
"""Choices that a search with a reference, which takes seconds, would find."""


def test_the_file_is_that_of_the_command(tmp_path: Path) -> None:
    made = cc.import_checkpoint(str(WEIGHTS), tmp_path / "ours", CARD, SAID)
    said = "--source T1 --target T2 --axes RAS --spacing 1,1,1 --patch 32,32,32"
    maps = "--intensity-in percentile:0,99.5 --intensity-out window:-1000,2000"
    choices = "--unproven --padding reflect --upsampling nearest"
    options = f"{choices} {said} {maps}".split()
    command = ["model", "import", str(WEIGHTS), "--output", str(tmp_path / "theirs"), *options]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert cc.load_model(tmp_path / "ours").sha256 == made.sha256


def test_required_statements_are_listed(tmp_path: Path) -> None:
    with pytest.raises(cc.UndecidedError, match="source: contrast of the input") as raised:
        cc.import_checkpoint(WEIGHTS, tmp_path / "m", cc.CardDraft(), SAID)
    assert raised.value.fields == (
        *("source", "target", "intensity_in", "intensity_out", "axes", "spacing", "patch"),
    )
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_there_stays_unless_it_may_go(tmp_path: Path) -> None:
    output = tmp_path / "m"
    output.write_text("mine")
    with pytest.raises(OccupiedError):
        cc.import_checkpoint(WEIGHTS, output, CARD, SAID)
    assert output.read_text() == "mine"
    cc.import_checkpoint(WEIGHTS, output, CARD, SAID, replace=True)
    assert cc.load_model(output).card.source == "T1"


def test_an_interrupted_import_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cc.import_checkpoint(WEIGHTS, tmp_path / "m", CARD, SAID)
    assert list(tmp_path.iterdir()) == []


MODULE_CARD = cc.CardDraft(
    source=("T1",),
    target=("T2",),
    axes="RAS",
    spacing=(1.0, 1.0, 1.0),
    intensity_in=cc.Percentiles(0, 99.5),
    intensity_out=cc.Window(-1000, 2000),
)


def generator() -> Any:
    """A module as a training has it: in eval mode, with normed layers that work in place."""
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.ReflectionPad3d(1), nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(True)),
        *(nn.Dropout(0.5), nn.Conv3d(4, 1, 3, padding=1), nn.InstanceNorm3d(1), nn.Tanh()),
    ).eval()


def test_a_live_module_becomes_a_proven_model(tmp_path: Path) -> None:
    module = generator()
    model = cc.from_torch(module, torch.zeros(1, 1, 8, 8, 8), tmp_path / "m", MODULE_CARD)
    assert model.card.patch == (8, 8, 8)
    assert model.card.reference.made_by == "training code"
    assert model.network.graph.patch is None
    assert model.reference_input.std() > 0.1
    with torch.no_grad():
        expected = module(torch.from_numpy(model.reference_input)).numpy()
    assert np.array_equal(model.reference_output, expected)
    assert cc.load_model(tmp_path / "m").sha256 == model.sha256
    assert {one.name for one in tmp_path.iterdir()} == {"m"}


def test_a_module_that_cannot_be_a_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    patch, nn = torch.randn(1, 1, 8, 8, 8), torch.nn
    attention = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Upsample(8))
    refused: list[tuple[Any, Any, str]] = [
        (attention, patch, "is the whole patch, so results would differ"),
        (nn.Hardshrink(), patch, r"^Operator aten\.\w+ .* is not supported"),
        (generator().train(), patch, "export the network in eval mode"),
        (generator(), torch.zeros(1, 2, 8, 8, 8), "returns no tensor for the example"),
    ]
    for module, example, reason in refused:
        with pytest.raises(cc.EngineError, match=reason):
            cc.from_torch(module, example, tmp_path / "m", MODULE_CARD)
    assert list(tmp_path.iterdir()) == []


def test_arguments_of_another_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(cc.PipelineError, match=r"must be a torch\.nn\.Module, not int"):
        cc.from_torch(7, torch.zeros(1, 1, 8, 8, 8), tmp_path / "m", MODULE_CARD)
    for example in (torch.zeros(1, 8, 8, 8), "text", torch.full((1, 1, 8, 8, 8), np.nan)):
        with pytest.raises(cc.PipelineError, match=r"Argument example must be .*\[1, C, D, H, W\]"):
            cc.from_torch(generator(), example, tmp_path / "m", MODULE_CARD)
    with pytest.raises(cc.PipelineError, match="on the CPU in float32"):
        cc.from_torch(generator().half(), torch.zeros(1, 1, 8, 8, 8), tmp_path / "m", MODULE_CARD)
    with pytest.raises(
        cc.UndecidedError,
        match=r"^The module does not define the network completely; also set source",
    ):
        cc.from_torch(generator(), torch.zeros(1, 1, 8, 8, 8), tmp_path / "m", cc.CardDraft())
