"""Words that are not quite a command line get the nearest one."""

from pathlib import Path

import pytest
from support.queue_world import QueueWorld
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.errors import sentence

NEAREST = {
    "import": "model import",
    "inspect": "model inspect",
    "help": "--help",
    "version": "--version",
    "-V": "--version",
    "predict": "translate",
    "transalte": "translate",
    "list": "jobs",
}


@pytest.mark.parametrize("word", NEAREST)
def test_a_word_of_another_program_is_answered_with_this_ones(word: str) -> None:
    done = CliRunner().invoke(app, [word])
    assert done.exit_code == 2
    assert f"Did you mean '{NEAREST[word]}'?" in done.stderr


def test_a_misspelt_command_of_the_queue_is_no_batch(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    world.scans(1)
    world.submit()
    for word, command in (("sumary", "jobs summary"), ("cancle", "jobs cancel")):
        done = world.run("jobs", word)
        assert done.exit_code == 2
        assert f"no batch or job {word}; did you mean '{command}'?" in done.stderr
    assert "'jobs' lists all batches" in world.run("jobs", "list").stderr


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("translate scans", "'--model' / '-m' and '--output' / '-o'"),
        ("submit scans", "'--model' / '-m' and '--output' / '-o'"),
        ("watch", "'FOLDER', '--model' / '-m' and '--output' / '-o'"),
        ("model import", "'CHECKPOINT' and '--output' / '-o'"),
        ("translate scans --model m", "option '--output' / '-o'"),
    ],
)
def test_all_that_is_missing_is_named_at_once(words: str, missing: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2
    assert f"Missing {missing}." in done.stderr


def test_setting_of_a_config_file_is_not_missing(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[translate]\noutput = "o"\n')
    done = CliRunner().invoke(app, ["--config", str(config), "translate", "scans"])
    assert "Missing option '--model' / '-m'." in done.stderr


def test_an_error_of_the_system_without_a_file_names_none() -> None:
    assert sentence(OSError(32, "Broken pipe")) == "The system reports: Broken pipe."
    assert sentence(OSError(13, "No", "a.nii")) == "a.nii cannot be used (No)."
