"""Inputs that exist and cannot be read: no command ends with 0, and nothing of them is written."""

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.batch_world import identity_model, scan
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld
from support.waiting import wait_for

from cuda_cyclegan.pipelines.jobs.submission import Complaints
from cuda_cyclegan.pipelines.report.codec import read_report

MR = Phantom("MR", slices=28, intercept=0.0)


class World(QueueWorld):
    """A sound scan, and a series of 28 slices whose last three are empty."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        identity_model(self.model)
        scan(self.inputs / "a.nii")
        self.slices = MR.write(self.inputs / "mr")
        self.whole = [path.read_bytes() for path in self.slices]
        for path in self.slices[-3:]:
            path.write_bytes(b"")

    def mend(self) -> None:
        for path, content in zip(self.slices, self.whole, strict=True):
            path.write_bytes(content)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path)) as world:
        yield world


def flat(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("command", ["translate", "plan --strict", "discover", "submit"])
def test_each_command_shows_the_files_and_the_series(world: World, command: str) -> None:
    done = world.command(*command.split())
    assert done.exit_code == 1, done.output
    said = flat(done.output)
    for path in world.slices[-3:]:
        assert flat(f"failed: {path}: it is empty; copy it again") in said
    assert flat("3 files next to its 25 images cannot be read and may be slices of it") in said
    world.mend()
    mended = world.command(*command.split())
    assert mended.exit_code == 0, mended.output


def test_nothing_of_the_series_is_written_and_the_rest_is(world: World) -> None:
    report = world.folder / "report.json"
    done = world.command("translate", "--quiet", "--report", str(report))
    assert (done.exit_code, done.stdout) == (1, "")
    assert flat("im025: it is empty") in flat(done.stderr)
    assert flat("may be slices of it") in flat(done.stderr)
    assert world.made() == {"a.nii"}
    rows = json.loads(report.read_text())
    assert [row["missed"] for row in rows["skipped"]] == [True] * 3
    [failed] = [row for row in rows["studies"] if row["status"] == "failed"]
    assert failed["class"] == "unreadable"
    assert read_report(report).batch.failures[0].failure is not None


def test_jobs_are_made_of_what_is_whole(world: World) -> None:
    world.command("submit")
    world.work()
    assert world.made() == {"a.nii"}


def test_a_slice_that_is_damaged_after_it_was_submitted_fails_its_job(world: World) -> None:
    world.mend()
    world.command("submit")
    world.slices[-1].write_bytes(world.whole[-1][:-100])
    world.work()
    assert world.made() == {"a.nii"}


def test_many_files_with_one_reason_share_a_line(world: World) -> None:
    for path in world.slices[2:]:
        path.write_bytes(b"")
    done = world.command("discover")
    reported = f"{world.inputs / 'mr'}: 26 files, im002 to im027: it is empty"
    assert flat(f"failed: {reported}") in flat(done.output)
    assert flat(done.output).count(flat("it is empty; copy it again")) == 4  # and three in the row


def test_nothing_but_damage_is_no_study_and_is_reported(world: World) -> None:
    shutil.rmtree(world.inputs)
    world.inputs.mkdir()
    (world.inputs / "a.dcm").write_bytes(b"")
    for command in ("translate", "plan", "discover", "submit"):
        done = world.command(command)
        assert done.exit_code == 3, done.output
        assert flat(f"failed: {world.inputs / 'a.dcm'}: it is empty") in flat(done.output)


@pytest.mark.slow
def test_a_watched_folder_waits_for_what_is_not_whole(world: World) -> None:
    process = world.watch()
    said = wait_for(process, " 1 study queued")
    world.mend()
    said += wait_for(process, " 1 study queued")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    assert "im025 is not queued: it is empty" in said
    world.work()
    assert "a.nii" in world.made()
    assert len(list(world.output.rglob("*.dcm"))) == 28


def test_complaints_are_reported_once_and_after_a_while() -> None:
    now = [0.0]
    complaints = Complaints(10.0, lambda: now[0])
    assert complaints.due({"a": "empty", "b": "cut"}) == {}
    now[0] = 5.0
    assert complaints.due({"a": "empty"}) == {}
    now[0] = 10.0
    assert complaints.due({"a": "empty", "b": "cut"}) == {"a": "empty"}
    now[0] = 30.0
    assert complaints.due({"a": "empty", "b": "cut"}) == {"b": "cut"}


def test_results_that_another_input_moves_are_reported(world: World) -> None:
    world.mend()
    alone = [str(world.inputs / "mr"), "--model", str(world.model), "--output", str(world.output)]
    assert world.run("translate", *alone).exit_code == 0
    label = next(path.name for path in world.output.iterdir() if path.name.startswith("series"))
    plan = world.command("plan")
    assert plan.exit_code == 0
    said = flat(plan.output)
    assert flat(f"note: mr/{label}: its earlier result is {label}") in said
    assert flat("redone: its earlier result has another name") in said
    again = world.run("plan", *alone)
    assert "another name" not in again.output


def test_discover_opens_the_headers_of_files(world: World) -> None:
    world.mend()
    scan(world.inputs / "four.nii", shape=(8, 8, 8, 3))
    (world.inputs / "page.nii").write_text("<html>" * 200)
    done = world.command("discover")
    assert done.exit_code == 1
    [row] = [line for line in done.output.splitlines() if "/a.nii " in line]
    assert row.split()[-4:] == ["nifti", "20x18x16", "1x1x1", "accepted"]
    said = flat(done.output)
    assert flat("four.nii contains 3 volumes (8 x 8 x 8 x 3); select one of 0 to 2 with") in said
    assert flat(f"failed: {world.inputs / 'page.nii'} is a web page or an error message") in said
    rows = {
        Path(row["path"]).name: row
        for row in json.loads(world.command("discover", "--json").stdout)["files"]
    }
    assert rows["a.nii"]["extents"] == [20, 18, 16]
    four = rows["four.nii"]
    assert (four["verdict"], four["failed"], four["volumes"]) == ("refused", False, 3)
    assert (rows["page.nii"]["verdict"], rows["page.nii"]["failed"]) == ("refused", True)


def test_descriptions_of_all_rows_are_shown_where_that_is_asked_for(world: World) -> None:
    world.mend()
    for command in ("discover", "plan"):
        hidden, shown = world.command(command), world.command(command, "--show-phi")
        assert "plain MR" not in hidden.output
        assert "plain MR" in shown.output
    rows = json.loads(world.command("discover", "--show-phi", "--json").stdout)["series"]
    assert [row["description"] for row in rows] == ["plain MR"]
