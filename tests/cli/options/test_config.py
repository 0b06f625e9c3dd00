"""Defaults from config files, and what is said about wrong ones."""

import json
import re
from pathlib import Path
from typing import cast

import pytest
from support.batch_world import scan, tiny_model
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.options.config import ConfigValues, effects_in, options_of
from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.jobs.queue.job import StudyJob
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CUDA_CYCLEGAN_QUEUE", raising=False)


def user_config(folder: Path, text: str) -> Path:
    place = folder / "user" / "cuda-cyclegan" / "cuda-cyclegan.toml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_files_give_defaults_and_what_is_typed_comes_first(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    user_config(
        tmp_path,
        f'queue = "{tmp_path}/private/user.db"\n[translate]\nmodel = "{model}"\noverlap = 0.5\n',
    )
    Path("cuda-cyclegan.toml").write_text(
        '[translate]\npatch = [8, 8, 8]\noverlap = "75%"\n[submit]\nname = "from the file"\n'
    )
    scan(tmp_path / "in" / "a.nii")
    done = run("submit", tmp_path / "in", "--output", tmp_path / "out", "--overlap", "0")
    assert done.exit_code == 0, done.stderr
    [batch] = json.loads(run("jobs", "--json").stdout)["batches"]
    assert batch["name"] == "from the file"
    with open_queue(queue_place(f"{tmp_path}/private/user.db")) as queue:
        [job] = queue.jobs("")
    queued = StudyJob.from_json(job.payload)
    assert (queued.options.patch, queued.options.overlap) == ((8, 8, 8), 0)
    (tmp_path / "named.toml").write_text(f'queue = "{tmp_path}/private/named.db"')
    typed = run("--config", tmp_path / "named.toml", "jobs")
    assert "named.db" in typed.stderr


def test_translate_takes_its_defaults(tmp_path: Path) -> None:
    user_config(tmp_path, '[translate]\noutput = "results"\n')
    model = tiny_model(tmp_path / "model.safetensors")
    Path("cuda-cyclegan.toml").write_text(
        f'[translate]\nmodel = "{model}"\npatch = "8,8,8"\npreview = true\n'
    )
    scan(tmp_path / "in" / "a.nii")
    planned = run("plan", tmp_path / "in")
    assert planned.exit_code == 0, planned.stderr
    assert run("translate", tmp_path / "in", "--report", "r.json").exit_code == 0
    assert json.loads(Path("r.json").read_text())["settings"]["patch"] == [8, 8, 8]
    assert Path("results/a.nii.preview.png").exists()


def test_the_folders_file_is_named_where_it_is_used() -> None:
    Path("cuda-cyclegan.toml").write_text(
        '[translate]\nmodel = "m"\ntune = "off"\n[submit]\npriority = "low"\n'
    )
    for command, keys in (
        ("translate", "model, tune"),
        ("plan", "model, tune"),
        ("submit", "model, priority"),
        ("watch", "model"),
    ):
        reported = run(command, ".", "--output", "out").stderr.splitlines()
        assert reported[0] == f"Defaults from ./cuda-cyclegan.toml: {keys}", command
    assert "Defaults" not in run("jobs").stderr
    assert "Defaults" not in run("--config", "cuda-cyclegan.toml", "plan", ".").stderr


ROOT = cast("TyperGroup", get_command(app))
OPTIONS = [
    (command, option) for command in ROOT.commands for option in options_of(ROOT.commands[command])
]


def effect_of(command: str, option: str) -> str:
    return effects_in(ROOT.commands[command])[option]


def value_of(command: str, key: str) -> str:
    """A value that the option takes, as TOML."""
    option = options_of(ROOT.commands[command])[key]
    samples = {
        "compare": '["x"]',
        "cudnn": '["x"]',
        "input": '["x"]',
        "json": '"b.json"',
        "plot": '"b.png"',
        "segmentations": '["x", "x"]',
        "against": '"pytorch"',
        "layout": '"bids"',
        "port": "11112",
        "associations": "3",
    }
    return "true" if option.is_flag else samples.get(key, '"x"')


def test_every_option_of_every_command_states_its_effect() -> None:
    for command, option in OPTIONS:
        effect_of(command, option)


def test_effects_that_were_judged_once_stay() -> None:
    # Each of these would let a folder of a stranger do harm.
    assert {option for command, option in OPTIONS if effect_of(command, option)} == {
        *("address", "against", "allow-synthetic", "any-contrast", "any-modality", "associations"),
        *(
            "audit",
            "audit-syslog",
            "compare",
            "csv",
            "cudnn",
            "export",
            "folder",
            "follow-links",
            "force",
            "html",
        ),
        *("inbox-limit", "input", "json", "keep-private-tags", "layout", "log-file", "mask"),
        *("metrics", "on-failure", "output", "overwrite", "pairs", "plot", "port", "queue"),
        *("reader", "release", "report", "reserve", "result-name", "review", "show-marks"),
        *("scheduler", "segmentations", "show-phi", "test", "tls-certificate", "tls-key"),
        *("tls-trusted", "trace", "truth", "verbose", "with-marks", "write-config"),
    }
    assert {command for command, option in OPTIONS if option == "json"} > {
        command for command, option in OPTIONS if option == "json" and effect_of(command, option)
    }


def metavar_of(command: str, key: str) -> str:
    return options_of(ROOT.commands[command])[key].metavar or ""


def test_no_option_that_takes_a_path_is_harmless_but_models() -> None:
    paths = {
        (command, key)
        for command, key in OPTIONS
        if {"FILE", "DIR"} & set(re.findall("[A-Z]+", metavar_of(command, key)))
    }
    assert ("translate", "output") in paths
    assert {key for command, key in paths if not effect_of(command, key)} == {
        "cycle-check",
        "model",
    }


@pytest.mark.parametrize(
    ("command", "key"), [(command, key) for command, key in OPTIONS if effect_of(command, key)]
)
def test_harmful_settings_are_refused_in_the_folders_file_only(
    tmp_path: Path, command: str, key: str
) -> None:
    text = f"[{command}]\n{key} = {value_of(command, key)}\n"
    file = Path("cuda-cyclegan.toml")
    file.write_text(text)
    refused = run("jobs")
    assert refused.exit_code == 2
    assert f"./cuda-cyclegan.toml: [{command}] {key} decides" in refused.stderr
    assert "--config" in refused.stderr
    assert "no queue at" in run("--config", file, "jobs").stderr
    file.unlink()
    user_config(tmp_path, text)
    assert "no queue at" in run("jobs").stderr


def test_a_queue_of_the_folders_file_is_refused_without_its_password() -> None:
    Path("cuda-cyclegan.toml").write_text('queue = "postgresql://me:secret@host/jobs"')
    refused = run("jobs")
    assert refused.exit_code == 2
    assert "./cuda-cyclegan.toml: queue decides" in refused.stderr
    assert "secret" not in refused.stderr


def test_in_the_folder_of_the_users_file_it_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = user_config(tmp_path, f'queue = "{tmp_path}/own.db"')
    monkeypatch.chdir(own.parent)
    assert "own.db" in run("jobs").stderr


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("color = 1", "color is not known; known are queue"),
        ("[jobs]\nx = 1", "jobs is not known"),
        ("worker = 3", "worker is not known"),
        ("[worker]\nspeed = 3", "[worker] speed is not known; known are batch, device"),
        ("[translate]\noverlapp = 1", "[translate] overlapp is not known; did you mean overlap?"),
        ("[translate]\noverlap = 'much'", "[translate] overlap: 'much' is neither a fraction"),
        ("[translate]\nnan-to = 'much'", "[translate] nan-to: 'much' is not a valid number."),
        ("[worker]\ntries = 0", "[worker] tries: "),
        ("[translate]\noverlap = 7", "[translate] overlap: "),
        ("[submit]\npriority = 'soon'", "[submit] priority: "),
        ("[worker]\nuntil-empty = 'yes'", "[worker] until-empty must be true or false"),
        ("[translate]\nchannel = 'T1=*_T1w'", 'channel must be a list: channel = ["T1=*_T1w"]'),
        ("[translate]\nvolume = 1.5", "[translate] volume: '1.5' is neither a number"),
        ("[translate]\nvolume = true", "[translate] volume: 'True' is neither a number"),
        ("queue = 7 7", "is not valid TOML"),
        ("queue = " + "[" * 100_000, "is not valid TOML"),
        ("[translate", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(text: str, reported: str) -> None:
    Path("cuda-cyclegan.toml").write_text(text)
    refused = run("jobs")
    assert refused.exit_code == 2
    assert "cuda-cyclegan.toml" in refused.stderr
    assert reported in refused.stderr
    assert "Traceback" not in refused.output


def test_a_file_that_others_can_change_counts_only_by_name() -> None:
    Path("cuda-cyclegan.toml").write_text("")
    Path("cuda-cyclegan.toml").chmod(0o666)
    refused = run("doctor", "--help")
    assert refused.exit_code == 2
    assert "--config" in refused.stderr
    assert run("--config", "cuda-cyclegan.toml", "doctor", "--help").exit_code == 0


def test_the_example_of_the_page_is_taken(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    example = page.read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    user_config(tmp_path, example)
    taken = run("plan", ".", "--output", "results")
    assert "Model /share/t1-to-t2.safetensors does not exist" in taken.stderr


def test_a_named_file_that_is_missing_is_reported() -> None:
    refused = run("--config", "nowhere.toml", "jobs")
    assert refused.exit_code == 2
    assert "nowhere.toml" in refused.stderr


SECRET = 'queue = "postgresql://me:secret@localhost:1/jobs"'


@pytest.mark.parametrize(
    ("mode", "text", "warned"),
    [
        (0o644, SECRET, True),
        (0o640, f"[worker]\n{SECRET}", True),
        (0o600, SECRET, False),
        (0o644, 'queue = "postgresql://me@localhost:1/jobs"', False),
    ],
)
def test_a_file_with_a_password_that_others_can_read_is_warned_of(
    tmp_path: Path, mode: int, text: str, *, warned: bool
) -> None:
    user_config(tmp_path, text).chmod(mode)
    reported = run("doctor", "--help").stderr
    assert ("Warning: other users can read" in " ".join(reported.split())) is warned
    assert "secret" not in reported


@pytest.mark.parametrize(
    ("command", "key", "stated", "taken"),
    [
        ("watch", "settle", "10 min", 600.0),
        ("watch", "settle", 45, 45.0),
        ("translate", "tune-seconds", "2 min", 120.0),
        ("worker", "tune-seconds", "1 h", 3600.0),
        ("bench", "seconds", "3 s", 3.0),
        ("bench", "patience", 60.5, 60.5),
        ("translate", "overlap", "50%", 0.5),
        ("bench", "overlap", 0.75, 0.75),
    ],
)
def test_durations_and_percentages_are_taken_as_typed(
    command: str, key: str, stated: object, taken: float
) -> None:
    source = ConfigValues(Context(ROOT), "here: ")
    option = options_of(ROOT.commands[command])[key]
    assert source.taken(key, option, stated) == taken
    with pytest.raises(ConfigError, match=rf"here: {key}: '-1' is "):
        source.taken(key, option, -1)
