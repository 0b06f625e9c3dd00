"""Defaults from config files, and what is said about wrong ones."""

import json
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("CUDA_CYCLEGAN_QUEUE", raising=False)


def user_config(folder: Path, text: str) -> None:
    place = folder / "user" / "cuda-cyclegan" / "cuda-cyclegan.toml"
    place.parent.mkdir(parents=True)
    place.write_text(text)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_files_give_defaults_and_what_is_typed_comes_first(tmp_path: Path) -> None:
    user_config(tmp_path, f'queue = "{tmp_path}/private/user.db"\n[translate]\noverlap = 0.5\n')
    model = tiny_model(tmp_path / "model.safetensors")
    Path("cuda-cyclegan.toml").write_text(
        f'queue = "{tmp_path}/private/queue.db"\n'
        f'[translate]\nmodel = "{model}"\npatch = [8, 8, 8]\n[submit]\nname = "from the file"\n'
    )
    scan(tmp_path / "in" / "a.nii")
    done = run("submit", tmp_path / "in", "--output", tmp_path / "out", "--overlap", "0")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "private" / "queue.db").exists()
    assert not (tmp_path / "private" / "user.db").exists()
    [batch] = json.loads(run("jobs", "--json").stdout)["batches"]
    assert batch["name"] == "from the file"
    typed = run("--config", tmp_path / "user/cuda-cyclegan/cuda-cyclegan.toml", "jobs")
    assert "no queue at" in typed.stderr


def test_translate_takes_its_defaults(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    Path("cuda-cyclegan.toml").write_text(
        f'[translate]\nmodel = "{model}"\noutput = "results"\npatch = "8,8,8"\npreview = true\n'
    )
    scan(tmp_path / "in" / "a.nii")
    planned = run("plan", tmp_path / "in")
    assert planned.exit_code == 0, planned.stderr
    assert run("translate", tmp_path / "in", "--report", "r.json").exit_code == 0
    assert json.loads(Path("r.json").read_text())["settings"]["patch"] == [8, 8, 8]
    assert Path("results/a.nii.preview.png").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("color = 1", "color is not known; there are queue"),
        ("[jobs]\nx = 1", "jobs is not known"),
        ("worker = 3", "worker is not known"),
        ("[worker]\nspeed = 3", "[worker] speed is not known; there are batch, device"),
        ("[worker]\ntries = 0", "[worker] tries: "),
        ("[translate]\noverlap = 7", "[translate] overlap: "),
        ("[submit]\npriority = 'soon'", "[submit] priority: "),
        ("[worker]\nuntil-empty = 'yes'", "[worker] until-empty must be true or false"),
        ("queue = 7 7", "is not valid TOML"),
        ("[translate", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(text: str, told: str) -> None:
    Path("cuda-cyclegan.toml").write_text(text)
    refused = run("jobs")
    assert refused.exit_code == 2
    assert "cuda-cyclegan.toml" in refused.stderr
    assert told in refused.stderr
    assert "Traceback" not in refused.output


def test_a_file_that_others_can_change_counts_only_by_name() -> None:
    Path("cuda-cyclegan.toml").write_text("")
    Path("cuda-cyclegan.toml").chmod(0o666)
    refused = run("doctor", "--help")
    assert refused.exit_code == 2
    assert "--config" in refused.stderr
    assert run("--config", "cuda-cyclegan.toml", "doctor", "--help").exit_code == 0


def test_the_example_of_the_readme_is_taken() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    example = readme.partition("```toml\n")[2].partition("```")[0]
    Path("cuda-cyclegan.toml").write_text(example)
    taken = run("plan", ".", "--output", "results")
    assert "Model /share/t1-to-t2.safetensors does not exist" in taken.stderr


def test_a_named_file_that_is_missing_is_told() -> None:
    refused = run("--config", "nowhere.toml", "jobs")
    assert refused.exit_code == 2
    assert "nowhere.toml" in refused.stderr
