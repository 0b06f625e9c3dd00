"""The viewer for the jobs of a night or of a batch, by `jobs view`."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest
from support.chromium import needs_chromium, opened_page, wait_for_announcement
from support.dicom_phantoms import Phantom
from support.pages import json_in
from support.processes import started
from support.queue_world import QueueWorld
from support.waiting import ENOUGH

from cuda_cyclegan.cli.render.overview import viewing
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.summary import Selection, overview_of
from cuda_cyclegan.pipelines.view.images import ImageStore
from cuda_cyclegan.pipelines.view.review import load_marks
from cuda_cyclegan.pipelines.view.studies import Viewing, find_viewing


@contextmanager
def served(world: QueueWorld, *words: str) -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """The address of the page of `jobs view`, and its process."""
    command = [sys.executable, "-m", "cuda_cyclegan", "jobs", "view", "--no-browser", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started([*command, "--queue", world.queue], **pipes) as process:
        out: IO[str] = process.stdout
        url = out.readline().strip()
        assert url, process.stderr.read()
        yield url, process


def found(world: QueueWorld, batch: str = "") -> Viewing:
    """Return what the viewer shows."""
    with open_queue(queue_place(world.queue)) as queue:
        return viewing(overview_of(queue, Selection(batch)))


def marks_in(folder: Path) -> dict[str, str]:
    return {mark.study: mark.mark or "" for mark in load_marks(folder / "review.csv")}


@pytest.fixture
def night(world: QueueWorld) -> QueueWorld:
    """A batch with a result and a failure, and one into another folder of results."""
    world.scans(1)
    (world.inputs / "empty.nii").touch()
    world.submit("--name", "evening")
    (world.inputs / "empty.nii").unlink()
    world.did(
        *("submit", str(world.inputs), "--model", str(world.model)),
        *("--output", str(world.folder / "second"), "--name", "later"),
    )
    world.work()
    return world


@pytest.mark.process
def test_a_night_is_opened_and_each_mark_is_stored_beside_its_result(night: QueueWorld) -> None:
    with served(night, "--since", "yesterday") as (url, process):
        with urllib.request.urlopen(url) as answer:
            page = answer.read().decode()
        studies = json_in(page)["studies"]
        assert {study["name"]: study["status"] for study in studies} == {
            "out/000.nii": "translated",
            "out/empty.nii": "failed",
            "second/000.nii": "translated",
        }
        assert "1 failure" in page
        for number, study in enumerate(studies):
            mark = {"mark": "good" if study["status"] == "translated" else "bad"}
            address = urlsplit(url)
            request = urllib.request.Request(
                f"{url}mark/{number}",
                json.dumps(mark).encode(),
                {"Origin": f"{address.scheme}://{address.netloc}"},
            )
            urllib.request.urlopen(request).close()
        process.send_signal(signal.SIGINT)
        assert process.wait(ENOUGH) == 130
    assert marks_in(night.output) == {"000.nii": "good", "empty.nii": "bad"}
    assert marks_in(night.folder / "second") == {"000.nii": "good"}


def test_a_batch_or_one_job_is_opened(night: QueueWorld) -> None:
    batches = {
        row["name"]: row["batch"] for row in json.loads(night.did("jobs", "--json"))["batches"]
    }
    evening = found(night, batches["evening"])
    assert [study.name for study in evening.studies] == ["000.nii", "empty.nii"]
    assert evening.folders == (night.output,)
    [alone] = found(night, f"{batches['evening']}/00002").studies
    assert (alone.name, list(alone.images)) == ("empty.nii", ["input"])


def test_a_result_of_several_jobs_is_listed_once_with_the_last(night: QueueWorld) -> None:
    night.submit()
    night.work()
    rows = [(study.folder.name, study.name, study.row) for study in found(night).studies]
    assert [(folder, name, row and row.status) for folder, name, row in rows] == [
        ("out", "000.nii", "up to date"),
        ("out", "empty.nii", "failed"),
        ("second", "000.nii", "translated"),
    ]


@pytest.mark.parametrize("kind", ["nifti", "dicom"])
def test_marks_have_the_names_under_which_view_shows_the_results(
    world: QueueWorld, kind: str
) -> None:
    if kind == "dicom":
        Phantom(modality="MR").write(world.inputs / "patient" / "series")
    else:
        world.scans(1)
        (world.inputs / "patient").mkdir()
        (world.inputs / "000.nii").rename(world.inputs / "patient" / "000.nii")
    world.submit()
    world.work()
    [study], [shown] = found(world).studies, find_viewing((world.output,)).studies
    assert (study.folder, study.name) == (shown.folder, shown.name)
    images = ImageStore((study,)).study(0)
    assert (list(images.images), images.faults) == (["input", "result"], {})


def test_missing_files_are_named_and_the_rest_is_shown(night: QueueWorld) -> None:
    shutil.rmtree(night.inputs)
    shutil.rmtree(night.folder / "second")
    store = ImageStore(found(night).studies)
    assert store.study(0).images.keys() == {"result"}
    assert "000.nii" in store.study(0).faults["input"]
    assert store.study(2).faults.keys() == {"input", "result"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--name", "never*"], "None of these jobs has ended"),
        (["20261121-k7m2pq"], "The queue has no batch or job 20261121-k7m2pq"),
        (["20261121-k7m2pq", "--name", "evening"], "are for all batches"),
        (["--since", "soon"], "soon"),
    ],
)
def test_nothing_to_show_is_wrong_usage(night: QueueWorld, words: list[str], reason: str) -> None:
    refused = night.run("jobs", "view", *words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert reason in " ".join(refused.stderr.split())


def test_an_unreadable_job_is_left_out(night: QueueWorld) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(night.queue)) as queue, queue:
        queue.execute("UPDATE payloads SET payload = '{' WHERE number = 1")
    assert [study.name for study in found(night).studies] == ["empty.nii"]


@pytest.mark.slow
@needs_chromium
def test_the_page_of_a_night_shows_the_command_that_opens_its_slices(night: QueueWorld) -> None:
    file = night.folder / "night.html"
    night.run("jobs", "summary", "--html", str(file), "--queue", night.queue)
    with opened_page() as page:
        page.goto(file.as_uri())
        code = page.locator("code.command").first
        code.click()
        assert page.evaluate("getSelection().toString()") == code.inner_text()
        command = shlex.split(code.inner_text())
    assert command[:3] == ["cuda-cyclegan", "jobs", "view"]
    assert command[4:] == ["--queue", night.queue]
    with served(night, command[3]) as (url, _), opened_page() as page:
        page.goto(url)
        page.click("text=000.nii")
        page.wait_for_selector("#viewer[data-ready=true]")
        assert page.inner_text("output[data-role=result]")
        page.keyboard.press("3")
        wait_for_announcement(page, "000.nii is marked bad")
    assert marks_in(night.output) == {"000.nii": "bad"}
