"""The overview of a night by `jobs summary`."""

import json
from datetime import datetime, timedelta

import pytest
from support.pages import json_in
from support.queue_world import QueueWorld

from cuda_cyclegan.cli.commands import view
from cuda_cyclegan.cli.commands.queue import summary
from cuda_cyclegan.io.errors import DiskFullError


@pytest.fixture
def night(world: QueueWorld) -> QueueWorld:
    """Two studies translated and one failed in one batch, and one that waits in another."""
    world.scans(2)
    (world.inputs / "empty.nii").touch()
    world.submit("--name", "evening")
    world.work()
    world.pass_time(60)
    (world.inputs / "empty.nii").unlink()
    world.submit("--name", "later", "--overlap", "0.5", "--at", "2100-01-01T00:00")
    return world


def test_a_night_is_one_table_with_failures_by_cause(night: QueueWorld) -> None:
    reported = night.run("jobs", "summary", "--since", "yesterday")
    assert reported.exit_code == 1
    head, _, evening, later, _, total, *rest = reported.stdout.splitlines()
    assert head.split()[:6] == ["batch", "translated", "failed", "open", "working", "time"]
    assert evening.split()[1:4] == ["evening", "2", "1"]
    assert later.split()[1:3] == ["later", "2"]
    assert total.split()[:4] == ["all", "2", "1", "2"]
    text = "\n".join(rest)
    assert "2 translated, 1 failed, 2 open, in 2 batches" in text
    assert "Failures by cause: 1 unreadable" in text
    assert " studies per hour (idle time not counted)\n" in text
    assert "Later: 2 jobs wait until 2100-01-01 00:00" in text
    assert "empty.nii: unreadable: " in reported.stderr


def test_an_overview_covers_a_name_a_route_or_a_time(night: QueueWorld) -> None:
    assert "3 open" not in night.did("jobs", "summary", "--name", "lat*")
    assert "2 open, in 1 batch\n" in night.did("jobs", "summary", "--name", "lat*")
    assert "no job, in 0 batches" in night.did("jobs", "summary", "--route", "T1TOT2")
    night.pass_time(3600)
    moment = (datetime.now() - timedelta(minutes=30)).isoformat()
    assert "2 open, in 1 batch\n" in night.did("jobs", "summary", "--since", moment)
    assert night.run("jobs", "summary").exit_code == 1
    for wrong in (
        ["--since", "2100-01-01"],
        ["--since", "x"],
        ["--report", "a.json"],
        ["x", "--name", "a"],
    ):
        assert night.run("jobs", "summary", *wrong).exit_code == 2


def test_an_overview_continues_the_last_one_that_was_written(
    night: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.pass_time(3600)
    last = ("jobs", "summary", "--since", "last")
    page = ("--html", f"{night.folder}/page.html")

    def fail(*_: object) -> None:
        raise DiskFullError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(summary, "save_page", fail)
        assert "the disk is full" in night.run(*last, *page).stderr
    with monkeypatch.context() as patch:
        patch.setattr(view, "serve", lambda *_, **__: None)
        assert night.run("jobs", "view", "--since", "last", "--no-browser").exit_code == 0
    for name, status in (("evening", 1), ("evening", 0), ("even*", 1), ("even*", 0)):
        reported = night.run(*last, "--name", name)
        assert (reported.exit_code, "1 failed" in reported.stdout) == (status, status == 1), name
    for batches, status in (("2 batches", 1), ("1 batch\n", 0)):
        reported = night.run(*last)
        assert (reported.exit_code, f"2 open, in {batches}" in reported.stdout) == (status, True)
    assert night.run(*last, night.did("jobs").split()[0]).exit_code == 2


def test_an_overview_is_stored_under_the_date(night: QueueWorld) -> None:
    files = ["--html", f"{night.folder}/%Y-%m-%d.html", "--json", f"{night.folder}/%Y-%m-%d.json"]
    assert night.run("jobs", "summary", *files).exit_code == 1
    today = f"{datetime.now():%Y-%m-%d}"
    found = json.loads((night.folder / f"{today}.json").read_text())
    assert found["schema"] == "cuda-cyclegan/overview/1"
    assert found["totals"] == {
        "translated": 2,
        "up_to_date": 0,
        "failed": 1,
        "cancelled": 0,
        "open": 2,
    }
    assert found["causes"] == {"unreadable": 1}
    assert [batch["name"] for batch in found["batches"]] == ["evening", "later"]
    assert found["batches"][0]["failures"][0]["study"] == "empty.nii"
    assert found["waiting"][0]["jobs"] == 2
    page = (night.folder / f"{today}.html").read_text()
    assert "1 failure" in page
    assert page.index("1 failure") < page.index("2 jobs wait until") < page.index("evening")
    refused = night.run("jobs", "summary", *files)
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    assert night.run("jobs", "summary", *files, "--force").exit_code == 1
    printed = night.run("jobs", "summary", "--json", "-")
    assert json.loads(printed.stdout)["totals"]["failed"] == 1


def test_the_page_of_a_night_lists_its_studies_with_their_slices(world: QueueWorld) -> None:
    world.scans(2)
    world.submit("--name", "evening", "--preview")
    world.work()
    (world.inputs / "empty.nii").touch()
    batch = world.submit("--preview")
    world.work()
    page = world.folder / "pages" / "night.html"
    page.parent.mkdir()
    assert world.run("jobs", "summary", "--html", str(page)).exit_code == 1
    text = page.read_text()
    found = json_in(text)
    assert [study["name"] for study in found["studies"]][:2] == ["000.nii", "001.nii"]
    assert list(json_in(text, "pictures")) == ["0", "1"]
    assert found["studies"][0]["file"] == "./../out/000.nii.preview.png"
    assert 'data-first="2" data-end="5"' in text
    assert f'<a href="#{batch}">' in text
    assert f'<h2 id="{batch}">' in text
    assert f">cuda-cyclegan jobs view {batch}</code>" in text


def test_an_unreadable_job_stops_no_overview(night: QueueWorld) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(night.queue)) as queue, queue:
        queue.execute("UPDATE payloads SET payload = '{', result = NULL")
    reported = night.run("jobs", "summary")
    assert reported.exit_code == 1
    assert "in 2 batches" in reported.stdout
