"""A checkpoint from Python: the command's model file, or what is still to be said."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.errors import OccupiedError

TRAINING = Path(__file__).parents[3] / "sample_data" / "training"
WEIGHTS, REFERENCE = TRAINING / "latest_net_G_A.pth", TRAINING / "reference.npz"
CARD = cc.CardDraft(
    source=("T1",),
    target=("T2",),
    axes="RAS",
    spacing=(1.0, 1.0, 1.0),
    patch=(32, 32, 32),
    intensity_in=cc.Percentiles(0, 99.5),
    intensity_out=cc.Window(-1000, 2000),
)


def test_the_file_is_that_of_the_command(tmp_path: Path) -> None:
    made = cc.import_checkpoint(WEIGHTS, tmp_path / "ours", CARD, reference=str(REFERENCE))
    said = "--source T1 --target T2 --axes RAS --spacing 1,1,1 --patch 32,32,32"
    maps = "--intensity-in percentile:0,99.5 --intensity-out window:-1000,2000"
    files = ["--output", str(tmp_path / "theirs"), "--reference", str(REFERENCE)]
    command = ["model", "import", str(WEIGHTS), *files, *said.split(), *maps.split()]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert cc.load_model(tmp_path / "ours").sha256 == made.sha256


def test_what_is_to_be_said_is_listed(tmp_path: Path) -> None:
    with pytest.raises(cc.UndecidedError, match="source: contrast that goes in") as raised:
        cc.import_checkpoint(WEIGHTS, tmp_path / "m", cc.CardDraft(), reference=REFERENCE)
    assert raised.value.fields == (
        *("source", "target", "intensity_in", "intensity_out", "axes", "spacing", "patch"),
    )
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_there_stays_unless_it_may_go(tmp_path: Path) -> None:
    output = tmp_path / "m"
    output.write_text("mine")
    with pytest.raises(OccupiedError):
        cc.import_checkpoint(WEIGHTS, output, CARD, reference=REFERENCE)
    assert output.read_text() == "mine"
    cc.import_checkpoint(WEIGHTS, output, CARD, reference=REFERENCE, replace=True)
    assert cc.load_model(output).card.source == "T1"


def test_an_interrupted_import_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cc.import_checkpoint(WEIGHTS, tmp_path / "m", CARD, reference=REFERENCE)
    assert list(tmp_path.iterdir()) == []
