"""Shards of one command: each does its share, together they do all, and the record has it all."""

import errno
import fcntl
import json
import os
import pickle
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_world import scan
from support.processes import started
from support.translate_world import World, one_sentence
from typer.testing import CliRunner

from cuda_cyclegan import shards, translate_shard
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.errors import (
    OutputFolderAwaitedError,
    OutputFolderError,
    SettingsError,
)
from cuda_cyclegan.pipelines.report.codec import read_report
from cuda_cyclegan.pipelines.results.manifest import Manifest, load
from cuda_cyclegan.pipelines.results.sharers import WORKERS, Sharers
from cuda_cyclegan.pipelines.shard import Shard

STUDIES = [f"{letter}.nii" for letter in "abcdefgh"]
PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text("utf-8")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for seed, name in enumerate(STUDIES):
        scan(made.inputs / name, seed=seed)
    return made


def not_reached(world: World) -> int:
    return read_report(world.kept_report()).batch.not_reached


@given(st.sets(st.text(min_size=1), max_size=40), st.integers(1, 12))
def test_each_path_belongs_to_one_shard_whatever_the_others_are(
    paths: set[str], count: int
) -> None:
    shards = [Shard(number + 1, count) for number in range(count)]
    for path in paths:
        assert sum(shard.takes(path) for shard in shards) == 1
    first = shards[0]
    assert {path for path in paths if first.takes(path)} == set(filter(first.takes, paths))


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "1/0", "a/b", "-1/4", "1/2/3"])
def test_a_text_that_is_no_shard_is_refused(text: str, world: World) -> None:
    result = world.translate("--shard", text)
    assert result.exit_code == 2
    assert "shard" in result.stderr
    assert not world.output.exists()


def test_shards_make_together_what_one_command_makes(world: World) -> None:
    assert world.translate().exit_code == 0
    whole = world.files()
    world.output = world.output.with_name("in-shards")
    sizes: list[int] = []
    for number in range(1, 4):
        before = len(world.files()) if world.output.exists() else 0
        result = world.translate("--shard", f"{number}/3")
        assert result.exit_code == 0, result.output
        sizes.append(len(world.files()) - before)
        assert len(world.files()) + not_reached(world) == len(STUDIES)
    assert world.files() == whole
    assert sum(sizes) == len(STUDIES)
    assert world.kept_statuses() == dict.fromkeys(STUDIES, "translated")
    assert len(load(world.output)) == len(STUDIES)


@pytest.mark.slow
def test_shards_at_once_lose_nothing(world: World) -> None:
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", *world.arguments()]
    report = [f"--report={world.report}"]
    running = [
        subprocess.Popen([*command, f"--shard={number}/4", *report], stderr=subprocess.PIPE)
        for number in range(1, 5)
    ]
    for each in running:
        _, error = each.communicate()
        assert each.returncode == 0, error.decode()
    assert world.kept_statuses() == dict.fromkeys(STUDIES, "translated")
    assert not_reached(world) == 0
    assert set(world.rows()) == {*STUDIES}
    assert len(load(world.output)) == len(STUDIES)


@pytest.mark.slow
def test_32_shards_at_once_complete_record_report_and_bids_files(world: World) -> None:
    for name in STUDIES:
        (world.inputs / name).unlink()
    for seed in range(40):
        scan(world.inputs / f"sub-{seed:02}" / "anat" / f"sub-{seed:02}_T1w.nii", seed=seed)
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", *world.arguments()]
    command += ["--layout", "bids", "--device", "cpu", f"--report={world.report}"]
    with ExitStack() as together:
        running = [
            together.enter_context(
                started([*command, f"--shard={number}/32"], stderr=subprocess.PIPE, text=True)
            )
            for number in range(1, 33)
        ]
        for each in running:
            _, error = each.communicate()
            assert each.returncode == 0, error
    results = [path for path in world.files() if path.endswith(".nii")]
    assert len(results) == len(load(world.output)) == 40
    assert {*world.kept_statuses()} == {*world.rows()} == {*results}
    assert {row["status"] for row in world.rows().values()} == {"translated"}
    assert not_reached(world) == 0
    assert {path.with_suffix(".json").name for path in map(Path, results)} <= {
        Path(path).name for path in world.files()
    }
    described = json.loads((world.output / "dataset_description.json").read_text())
    assert described["DatasetType"] == "derivative"
    alone = world.output.with_name("alone")
    world.output, first = alone, world.files()
    assert world.translate("--layout", "bids").exit_code == 0
    assert {*world.files()} == {*first}


def test_an_empty_shard_is_no_error(world: World) -> None:
    for name in STUDIES[1:]:
        (world.inputs / name).unlink()
    codes = [world.translate("--shard", f"{number}/3").exit_code for number in (1, 2, 3)]
    assert codes == [0, 0, 0]
    assert world.kept_statuses() == {"a.nii": "translated"}
    (world.inputs / "a.nii").unlink()
    assert world.translate("--shard", "1/3").exit_code == 3


def test_an_unreadable_input_fails_one_shard_alone(world: World) -> None:
    (world.inputs / "broken.nii").write_bytes(b"\x5c\x01" + bytes(400))
    codes = [world.translate("--shard", f"{number}/3").exit_code for number in (1, 2, 3)]
    assert sorted(codes) == [0, 0, 1]


def test_a_shard_with_other_options_is_refused(world: World) -> None:
    assert world.translate("--shard", "1/2").exit_code == 0
    for options, named in (
        (("--overlap", "0.5"), "options"),
        (("--include", "a*"), "inputs and filters"),
    ):
        refused = world.translate("--shard", "2/2", *options)
        assert refused.exit_code == 2
        assert named in one_sentence(refused)
    refused = world.translate("--shard", "2/3")
    assert "differ in their number" in one_sentence(refused)
    assert len(world.kept_statuses()) + not_reached(world) == len(STUDIES)
    assert world.translate("--shard", "2/3", "--overwrite").exit_code == 0


def test_a_shard_fails_beside_a_failed_study_of_another(world: World) -> None:
    """The kept report shows the failure after every other shard has ended, too."""
    scan(world.inputs / "z.nii", shape=(20, 18, 16, 2))
    for number in (1, 2, 3):
        world.translate("--shard", f"{number}/3")
    assert world.kept_statuses()["z.nii"] == "failed"
    assert not_reached(world) == 0


def test_the_same_shard_runs_once_at_a_time(world: World) -> None:
    world.translate("--shard", "1/2")
    group = json.loads((world.kept_report().parent / "sharers.json").read_text())
    sharers = Sharers(group["who"], group["alike"])
    with (
        Manifest(world.output, shared=sharers) as manifest,
        manifest.sole("shard-1-of-2.lock", "it"),
    ):
        assert "Shard 1/2 is running already" in one_sentence(world.translate("--shard", "1/2"))
        assert world.translate("--shard", "2/2").exit_code == 0
        assert "Another run" in one_sentence(world.translate())
        other = world.translate("--shard", "2/3", "--overwrite")
        assert "differ in their number are writing" in one_sentence(other)


def test_a_folder_without_locks_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of NFS without its lock daemon, or of Lustre without -o flock."""

    def missing(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as without_locks:
        without_locks.setattr(fcntl, "flock", missing)
        for number in (1, 2):
            refused = world.translate("--shard", f"{number}/2")
            assert refused.exit_code == 2
            assert "cannot be locked (No locks available), so two" in one_sentence(refused)
    assert not world.files()
    assert [world.translate("--shard", f"{number}/2").exit_code for number in (1, 2)] == [0, 0]


def test_runs_of_one_kind_share_a_folder(tmp_path: Path) -> None:
    output = tmp_path / "results"
    shards = Sharers("shards", {"options": "a"})
    with (
        Manifest(output, shared=WORKERS),
        Manifest(output, shared=WORKERS),
        pytest.raises(OutputFolderAwaitedError, match="Workers of a queue are writing"),
    ):
        Manifest(output, shared=shards).__enter__()
    with (
        Manifest(output, shared=shards, begins_anew=False),
        pytest.raises(OutputFolderAwaitedError, match="Shards are writing"),
    ):
        Manifest(output, shared=WORKERS).__enter__()
    other = Sharers("shards", {"options": "b"})
    with pytest.raises(OutputFolderError, match="differ in options wrote"):
        Manifest(output, shared=other, begins_anew=False).__enter__()
    with Manifest(output, shared=other):
        pass


def test_a_torn_record_of_sharers_is_written_anew(tmp_path: Path) -> None:
    output = tmp_path / "results"
    shards = Sharers("shards", {"options": "a"})
    with Manifest(output, shared=shards) as manifest:
        file = manifest.record / "sharers.json"
        content = file.read_bytes()
    file.write_bytes(content[:7])
    with Manifest(output, shared=shards, begins_anew=False):
        assert file.read_bytes() == content


def test_a_torn_record_of_sharers_at_work_lets_nobody_in(tmp_path: Path) -> None:
    shards = Sharers("shards", {"options": "a"})
    with Manifest(tmp_path / "results", shared=shards) as manifest:
        file = manifest.record / "sharers.json"
        file.write_bytes(file.read_bytes()[:7])
        with pytest.raises(OutputFolderAwaitedError, match="Other runs are writing"):
            Manifest(tmp_path / "results", shared=shards).__enter__()


def test_plan_shows_the_share(world: World) -> None:
    shown = [
        CliRunner().invoke(app, ["plan", *world.arguments("--shard", f"{number}/2")])
        for number in (1, 2)
    ]
    assert [one.exit_code for one in shown] == [0, 0]
    named = [{name for name in STUDIES if name in one.stdout} for one in shown]
    assert named[0] | named[1] == {*STUDIES}
    assert not named[0] & named[1]


def test_shards_go_to_other_processes_as_pickles(world: World) -> None:
    parts = shards(world.inputs, world.model, world.output, 2, device="cpu")
    reports = [translate_shard(pickle.loads(pickle.dumps(part))) for part in parts]
    assert sorted(row.name for report in reports for row in report.studies) == STUDIES
    assert world.kept_statuses() == dict.fromkeys(STUDIES, "translated")


@pytest.mark.slow
def test_lines_of_the_page_for_joblib_translate_every_study(world: World) -> None:
    [lines] = re.findall(r"\n(import cuda_cyclegan as cc\n.*?)\n\nimport ray", PAGE, re.DOTALL)
    paths = {
        "/data/scans": world.inputs,
        "/data/t1-to-t2.safetensors": world.model,
        "/data/results": world.output,
    }
    for stated, path in paths.items():
        assert stated in lines
        lines = lines.replace(stated, str(path))
    program = world.inputs.with_name("program.py")
    program.write_text(lines)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert world.kept_statuses() == dict.fromkeys(STUDIES, "translated")


def test_shards_in_python_are_checked(world: World) -> None:
    with pytest.raises(SettingsError, match="at least 1"):
        shards(world.inputs, world.model, world.output, 0)
    wrong: Any = "1/2"
    with pytest.raises(SettingsError, match="FolderShard"):
        translate_shard(wrong)


@pytest.mark.slow
def test_shards_of_an_evaluation_are_all_of_it(world: World) -> None:
    for name in STUDIES[3:]:
        (world.inputs / name).unlink()
    assert world.translate().exit_code == 0
    truth = ["--truth", str(world.inputs), "--any-truth"]
    rows: list[str] = []
    for number in (1, 2):
        file = world.report.with_name(f"{number}.json")
        words = ["evaluate", str(world.output), *truth, "--json", str(file)]
        result = CliRunner().invoke(app, [*words, "--shard", f"{number}/2"])
        assert result.exit_code == 0, result.output
        rows += [row["name"] for row in json.loads(file.read_text())["studies"]]
    assert sorted(rows) == STUDIES[:3]
    alone = ["evaluate", str(world.output / "a.nii"), "--truth", str(world.inputs / "a.nii")]
    codes = [
        CliRunner().invoke(app, [*alone, "--any-truth", "--shard", f"{number}/2"]).exit_code
        for number in (1, 2)
    ]
    assert codes == [0, 0]
