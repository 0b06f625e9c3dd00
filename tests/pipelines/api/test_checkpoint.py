"""A checkpoint from Python: the command's model file, or what is still to be said."""

from pathlib import Path
from typing import Any

import pytest
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
"""What a search with a reference, which takes seconds, would find."""


def test_the_file_is_that_of_the_command(tmp_path: Path) -> None:
    made = cc.import_checkpoint(str(WEIGHTS), tmp_path / "ours", CARD, SAID)
    said = "--source T1 --target T2 --axes RAS --spacing 1,1,1 --patch 32,32,32"
    maps = "--intensity-in percentile:0,99.5 --intensity-out window:-1000,2000"
    choices = "--unproven --padding reflect --upsampling nearest"
    options = f"--output {tmp_path / 'theirs'} {choices} {said} {maps}"
    command = ["model", "import", str(WEIGHTS), *options.split()]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert cc.load_model(tmp_path / "ours").sha256 == made.sha256


def test_what_is_to_be_said_is_listed(tmp_path: Path) -> None:
    with pytest.raises(cc.UndecidedError, match="source: contrast that goes in") as raised:
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
