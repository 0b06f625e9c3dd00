"""The translate command as a user or a script meets it: what it makes, and what it keeps."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.batch_world import bad_scans, scan, tiny_model
from support.io_files import write_later
from support.translate_world import World, without_privileges

from cuda_cyclegan.engine.devices import choose_device


class TestWhatIsMade:
    def test_the_output_mirrors_the_input(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        scan(world.inputs / "deep" / "er" / "b c.nii.gz")
        result = world.translate()
        assert result.exit_code == 0, result.output
        assert set(world.files()) == {"a.nii", "deep/er/b c.nii.gz"}
        assert "2 studies" in result.stdout
        assert "2 translated" in result.stdout

    def test_two_runs_make_the_same_bytes(self, world: World) -> None:
        scan(world.inputs / "a.nii.gz", seed=1)
        scan(world.inputs / "b.nii", seed=2)
        world.translate()
        first = world.files()
        assert world.translate("--overwrite").exit_code == 0
        assert world.files() == first

    def test_an_output_folder_inside_the_input_is_not_translated_again(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.output = world.inputs / "results"
        assert world.translate().exit_code == 0
        second = world.translate()
        assert second.exit_code == 0
        assert "1 study" in second.stdout
        assert set(world.files()) == {"a.nii"}

    def test_a_volume_of_a_4d_file_is_translated_when_chosen(self, world: World) -> None:
        scan(world.inputs / "a.nii", shape=(20, 18, 16, 2))
        assert world.translate().exit_code == 1
        assert world.translate("--volume", "1").exit_code == 0


def change_scan(path: Path) -> None:
    """Give a scan other voxels."""
    write_later(path, scan(path.parents[1] / "other.nii", seed=9).read_bytes())


class TestResume:
    def test_up_to_date_result_is_kept(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.translate()
        before = (world.output / "a.nii").stat()
        result = world.translate()
        assert result.exit_code == 0
        assert "1 up to date" in result.stdout
        assert (world.output / "a.nii").stat() == before

    @pytest.mark.parametrize(
        ("change", "options", "word"),
        [
            (lambda w: change_scan(w.inputs / "a.nii"), [], "the input changed"),
            (lambda w: tiny_model(w.model, seed=9), [], "the model changed"),
            (lambda _: None, ["--overlap", "0.5"], "the settings changed"),
            (lambda w: (w.output / "a.nii").unlink(), [], "its result was deleted"),
        ],
    )
    def test_changed_study_is_translated_again_and_reported(
        self, world: World, change: Callable[[World], object], options: list[str], word: str
    ) -> None:
        scan(world.inputs / "a.nii", seed=1)
        scan(world.inputs / "b.nii", seed=2)
        world.translate()
        change(world)
        result = world.translate(*options)
        assert result.exit_code == 0
        assert word in result.stderr
        assert "redone" in result.stdout
        assert world.translate(*options).stdout.count("2 up to date") == 1

    def test_only_the_failed_are_tried_again(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        broken = world.inputs / "b.nii"
        broken.write_bytes(b"")
        assert world.translate().exit_code == 1
        scan(broken)
        result = world.translate()
        assert result.exit_code == 0
        assert "1 translated, 1 up to date" in result.stdout

    def test_a_foreign_file_is_never_destroyed_without_a_word(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.output.mkdir()
        (world.output / "a.nii").write_bytes(b"somebody's work")
        result = world.translate("--report", str(world.report))
        assert result.exit_code == 1
        assert world.files() == {"a.nii": b"somebody's work"}
        assert world.rows()["a.nii"]["class"] == "occupied"
        assert "--overwrite" in result.stderr
        assert world.translate("--overwrite").exit_code == 0
        assert world.files()["a.nii"] != b"somebody's work"

    def test_the_input_folder_as_output_destroys_nothing(self, world: World) -> None:
        before = scan(world.inputs / "a.nii").read_bytes()
        world.output = world.inputs
        assert world.translate("--overwrite").exit_code != 0
        assert (world.inputs / "a.nii").read_bytes() == before


class TestBadInput:
    def test_each_bad_study_fails_alone_with_its_class(self, world: World) -> None:
        expected = bad_scans(world.inputs)
        scan(world.inputs / "good.nii.gz")
        scan(world.inputs / "z" / "good.nii")
        (world.inputs / "z" / "loop").symlink_to(world.inputs)
        result = world.translate("--report", str(world.report))
        assert result.exit_code == 1
        assert "Traceback" not in result.output
        rows = world.rows()
        assert {name: row["class"] for name, row in rows.items() if row["class"]} == expected
        assert {name for name, row in rows.items() if row["status"] == "translated"} == {
            "good.nii.gz",
            "z/good.nii",
        }
        assert set(world.files()) == {"good.nii.gz", "z/good.nii"}
        for name in expected:
            reason = rows[name]["reason"]
            assert "\n" not in reason
            assert reason.endswith(".")
            assert f"failed: {name}: " in result.stderr

    @pytest.mark.process
    def test_a_file_that_may_not_be_read_fails_alone(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        scan(world.inputs / "b.nii").chmod(0)
        result = world.run("--report", str(world.report), prefix=without_privileges())
        assert result.returncode == 1
        rows = world.rows()
        assert rows["a.nii"]["status"] == "translated"
        assert rows["b.nii"]["class"] == "unreadable"
        assert "cannot be read: permission denied" in rows["b.nii"]["reason"]

    def test_input_that_is_no_file_is_skipped_without_waiting_for_it(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        os.mkfifo(world.inputs / "b.nii")
        result = world.translate("--report", str(world.report))
        assert result.exit_code == 0
        [skipped] = json.loads(world.report.read_text())["skipped"]
        assert "pipe" in skipped["reason"]

    def test_the_traceback_is_there_when_asked_for(self, world: World) -> None:
        (world.inputs / "a.nii").write_bytes(b"")
        assert "Traceback" not in world.translate().output
        assert "Traceback" in world.translate("--verbose").output

    def test_names_cannot_speak_to_the_terminal(self, world: World) -> None:
        scan(world.inputs / "[red]a\nb\x1b[31m\u202e.nii")
        (world.inputs / os.fsdecode(b"\xff[dim]\x1b[2J.nii")).touch()
        for options in ((), ("--dry-run",), ("--quiet",), ("--overwrite", "--verbose")):
            result = world.translate(*options)
            assert "\x1b" not in result.output
            assert "\u202e" not in result.output
            assert r"\udcff[dim]\x1b[2J.nii" in result.output
            if "--quiet" not in options:
                assert r"[red]a\nb\x1b[31m\u202e.nii" in result.stdout


@pytest.mark.process
def test_several_devices_make_the_same_files_as_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate("abcd"):
        scan(world.inputs / f"{name}.nii.gz", seed)
    assert world.translate().exit_code == 0
    alone = world.files()
    pair = choose_device("cpu"), choose_device("onnxruntime:CPU")
    monkeypatch.setattr("cuda_cyclegan.pipelines.decisions.choose_devices", lambda *_: pair)
    result = world.translate("--overwrite", "--report", str(world.report))
    assert result.exit_code == 0, result.output
    assert "4 translated" in result.stdout
    assert world.files() == alone
    assert json.loads(world.report.read_text())["use"]["devices"] == 2
