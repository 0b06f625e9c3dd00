"""`--result-name`: names of results by a pattern, clashes, and results of earlier runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import mixing_model, recorded, scan, tiny_model
from support.queue_world import QueueWorld
from support.translate_world import one_sentence
from typer.testing import CliRunner, Result

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app

NAMED = "{stem}_{target}synth{ext}"


class World:
    """Two scans, in a folder of their own each, and models there and elsewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs, self.output = root / "scans", root / "results"
        self.model = tiny_model(root / "model.safetensors")
        scan(self.inputs / "a.nii.gz", 1)
        scan(self.inputs / "ward" / "b.nrrd.nii", 2)

    def run(self, command: str, *options: str, model: Path | None = None) -> Result:
        words = [command, self.inputs, "--model", model or self.model, "--output", self.output]
        return CliRunner().invoke(app, [*map(str, words), "--device", "cpu", *options])

    def rows(self, *options: str, model: Path | None = None) -> dict[str, dict[str, Any]]:
        report = self.root / "report.json"
        report.unlink(missing_ok=True)
        self.run("translate", *options, "--report", str(report), model=model)
        return {row["name"]: row for row in json.loads(report.read_text())["studies"]}

    def statuses(self, *options: str, model: Path | None = None) -> dict[str, str]:
        return {name: row["status"] for name, row in self.rows(*options, model=model).items()}

    def made(self) -> set[str]:
        files = (path for path in self.output.rglob("*") if path.is_file())
        return {path.relative_to(self.output).as_posix() for path in files}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_results_are_named_by_the_pattern_and_stay_up_to_date(world: World) -> None:
    names = {"a_T2synth.nii.gz", "ward/b.nrrd_T2synth.nii"}
    assert world.statuses("--name", NAMED) == dict.fromkeys(names, "translated")
    assert world.made() == names
    assert world.statuses("--result-name", NAMED) == dict.fromkeys(names, "up to date")
    entries = {entry["output"]: entry for entry in recorded(world.output)}
    assert entries["ward/b.nrrd_T2synth.nii"]["mirrored"] == ["ward/b.nrrd.nii"]


def test_maps_and_previews_are_named_after_the_result(world: World) -> None:
    world.run("translate", "--name", NAMED, "--preview", "--spread", "2")
    assert {name for name in world.made() if name.startswith("a")} == {
        "a_T2synth.nii.gz",
        "a_T2synth.nii.gz.preview.png",
        "a_T2synth.map-spread-mean.nii.gz",
        "a_T2synth.map-spread-sd.nii.gz",
    }


@pytest.mark.parametrize(("first", "later"), [((), ("--name", NAMED)), (("--name", NAMED), ())])
def test_results_of_earlier_runs_keep_their_names(
    world: World, first: tuple[str, ...], later: tuple[str, ...]
) -> None:
    [*names] = world.statuses(*first)
    scan(world.inputs / "new.nii.gz", 3)
    rows = world.rows(*later)
    new = "new_T2synth.nii.gz" if later else "new.nii.gz"
    assert {name: row["status"] for name, row in rows.items()} == {
        **dict.fromkeys(names, "up to date"),
        new: "translated",
    }
    notes = rows["a_T2synth.nii.gz" if first else "a.nii.gz"]["notes"]
    assert any("its result of an earlier run keeps the name a" in note for note in notes)
    assert not any(row["due"] for row in rows.values())


def test_a_changed_scan_replaces_the_result_that_it_has(world: World) -> None:
    world.run("translate")
    scan(world.inputs / "a.nii.gz", 7)
    rows = world.rows("--name", NAMED)
    assert (rows["a.nii.gz"]["status"], rows["a.nii.gz"]["due"]) == (
        "translated",
        "the input changed",
    )
    assert world.made() == {"a.nii.gz", "ward/b.nrrd.nii"}


def test_a_result_that_was_deleted_gets_its_new_name(world: World) -> None:
    world.run("translate")
    (world.output / "a.nii.gz").unlink()
    assert world.statuses("--name", NAMED)["a_T2synth.nii.gz"] == "translated"


def test_results_of_two_models_lie_beside_each_other(world: World) -> None:
    other = tiny_model(world.root / "other.safetensors", 5, target="PD")
    world.run("translate", "--name", NAMED)
    rows = world.rows("--name", NAMED, model=other)
    assert {*rows} == {"a_PDsynth.nii.gz", "ward/b.nrrd_PDsynth.nii"}
    assert not any("earlier" in "".join(row["notes"]) or row["due"] for row in rows.values())
    assert {*world.statuses("--name", NAMED).values()} == {"up to date"}


def test_each_channel_has_a_name_of_its_own(world: World) -> None:
    shutil.rmtree(world.inputs)
    scan(world.inputs / "p_T1.nii.gz", 1)
    model = mixing_model(world.model, ((1.0,), (2.0,)), ("T1",), ("CT", "PET"))
    assert {*world.rows("--name", "{stem}-syn", model=model)} == {"p_T1-syn_CT.nii.gz"}
    assert world.made() == {"p_T1-syn_CT.nii.gz", "p_T1-syn_PET.nii.gz"}
    assert {*world.statuses("--name", "{stem}-syn", model=model).values()} == {"up to date"}
    shutil.rmtree(world.output)
    world.run("translate", "--name", "{channel}_of_{stem}", model=model)
    assert world.made() == {"CT_of_p_T1.nii.gz", "PET_of_p_T1.nii.gz"}
    assert {*world.statuses(model=model).values()} == {"up to date"}
    (world.output / "PET_of_p_T1.nii.gz").unlink()
    assert {*world.statuses(model=model).values()} == {"translated"}


class TestClashes:
    def test_both_inputs_are_named_before_anything_is_computed(self, world: World) -> None:
        scan(world.inputs / "c.nii.gz", 3)
        for command in ("plan", "translate"):
            done = world.run(command, "--name", "{target}")
            reported = "its result would overwrite that of"
            assert f"{reported} c.nii.gz; move one away, or change --result-name" in done.output
            assert f"{reported} a.nii.gz; move one away, or change --result-name" in done.output
        assert world.made() == {"ward/T2.nii"}

    def test_names_that_differ_in_case_alone_clash_where_the_disk_ignores_it(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from cuda_cyclegan.pipelines.results import names

        monkeypatch.setattr(names, "_ignores_case", lambda _: True)
        scan(world.inputs / "A.nii.gz", 3)
        done = world.run("plan", "--name", NAMED)
        assert "would overwrite that of a.nii.gz (their names differ only in case" in done.output

    def test_a_submission_refuses_them_and_queues_the_others(self, tmp_path: Path) -> None:
        queue = QueueWorld(tmp_path)
        queue.scans(2)
        scan(queue.inputs / "ward" / "x.nii")
        paths = [str(queue.inputs), "--model", str(queue.model), "--output", str(queue.output)]
        done = queue.run("submit", *paths, "--result-name", "{target}")
        assert done.exit_code == 1
        assert "its result would overwrite that of 001.nii" in done.stderr
        assert "1 study queued" in done.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--name", "{stm}"), "unknown field {stm}"),
        (("--name", "x/{stem}"), "path separator"),
        (("--name", "{stem}.nii.gz"), "ends in an extension"),
        (("--name", "{stem}", "--layout", "bids"), "--layout bids defines the result names"),
        (("--format", "dicom", "--layout", "bids"), "--layout bids always writes NIfTI files"),
        (("--bids-suffix", "T2w"), "needs --layout bids"),
        (("--bids-suffix", "T2w.nii", "--layout", "bids"), "not a suffix such as T2w"),
    ],
)
def test_impossible_name_is_wrong_usage(
    world: World, options: tuple[str, ...], complaint: str
) -> None:
    done = world.run("translate", *options)
    assert done.exit_code == 2
    assert complaint in one_sentence(done)
    assert not world.output.exists()


def test_a_result_whose_file_is_named_takes_no_pattern(world: World) -> None:
    words = ["translate", world.inputs / "a.nii.gz", "--model", world.model]
    words += ["--output", world.root / "x.nii.gz", "--name", NAMED]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 2
    assert "give a folder there" in one_sentence(done)


def test_python_takes_patterns_and_refuses_wrong_ones(world: World) -> None:
    options = cc.TranslateOptions(result_name="{stem}-{source}")
    report = cc.translate_folder(
        world.inputs, world.model, world.output, device="cpu", options=options
    )
    assert [row.name for row in report.studies] == ["a-T1.nii.gz", "ward/b.nrrd-T1.nii"]
    with pytest.raises(cc.PipelineError, match=r"'\{x\}' of setting result-name has the unknown"):
        cc.translate_folder(
            world.inputs,
            world.model,
            world.output,
            device="cpu",
            options=cc.TranslateOptions(result_name="{x}"),
        )


def test_jobs_make_the_results_that_a_batch_makes(tmp_path: Path) -> None:
    queue = QueueWorld(tmp_path)
    scan(queue.inputs / "p_T1.nii.gz", 1)
    mixing_model(queue.model, ((1.0,), (2.0,)), ("T1",), ("CT", "PET"))
    options = ("--result-name", "{channel}-{stem}", "--sidecar")
    batch = queue.submit(*options)
    queue.work()
    assert queue.states(batch) == ["done"]
    names = {path.name for path in queue.output.iterdir()}
    assert {name for name in names if "nii" in name} == {"CT-p_T1.nii.gz", "PET-p_T1.nii.gz"}
    assert {name for name in names if "json" in name} == {"CT-p_T1.json", "PET-p_T1.json"}
    (tmp_path / "other").mkdir()
    world = World(tmp_path / "other")
    world.inputs, world.output = queue.inputs, queue.output
    kept = world.statuses("--name", "{channel}-{stem}", "--sidecar", model=queue.model)
    assert kept == {"CT-p_T1.nii.gz": "up to date"}


def test_results_are_evaluated_by_the_names_of_their_scans(world: World) -> None:
    world.run("translate", "--name", NAMED)
    words = ["evaluate", str(world.output), "--truth", str(world.inputs), "--any-truth"]
    report = world.root / "evaluation.csv"
    done = CliRunner().invoke(app, [*words, "--csv", str(report)])
    assert done.exit_code == 0, done.output
    lines = report.read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:3]] == [
        "a_T2synth.nii.gz",
        "ward/b.nrrd_T2synth.nii",
    ]


def test_a_folder_of_results_is_evaluated_against_that_of_its_scans(world: World) -> None:
    world.run("translate", "--name", NAMED)
    ward = str(world.output / "ward"), str(world.inputs / "ward")
    below = CliRunner().invoke(app, ["evaluate", ward[0], "--truth", ward[1], "--any-truth"])
    assert below.exit_code == 0, below.output


def test_results_under_other_names_are_not_taken_for_scans(world: World) -> None:
    world.output = world.inputs / "results"
    world.run("translate", "--name", NAMED)
    world.output = world.root / "second"
    assert {*world.rows()} == {"a.nii.gz", "ward/b.nrrd.nii"}
