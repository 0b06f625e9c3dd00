"""Links that are not followed, as each command tells of them."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.batch_world import scan
from support.queue_world import QueueWorld

from cuda_cyclegan.io.links import LEADS_OUT
from cuda_cyclegan.pipelines.report.codec import read_report

HINT = "Use --follow-links to follow links that lead outside the inputs."


class World(QueueWorld):
    """A scan among the inputs, and a link to one that lies elsewhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        scan(self.inputs / "a.nii")
        self.far = scan(folder / "far" / "secret.nii", 1)
        self.link = self.inputs / "link.nii"
        self.link.symlink_to(self.far)
        self.report = folder / "report.json"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path)) as world:
        yield world


@pytest.mark.parametrize("command", ["translate", "plan --strict", "discover", "submit"])
def test_a_link_that_is_not_followed_has_a_row_and_makes_the_status_1(
    world: World, command: str
) -> None:
    done = world.command(*command.split())
    assert done.exit_code == 1, done.output
    reported = f"{world.link}: {LEADS_OUT}"
    assert reported.replace(" ", "") in done.output.replace(" ", "").replace("\n", "")
    assert HINT in done.output
    followed = world.command(*command.split(), "--follow-links")
    assert followed.exit_code == 0, followed.output
    assert LEADS_OUT not in followed.output


def test_quiet_and_the_report_show_it_too(world: World) -> None:
    done = world.command("translate", "--quiet", "--report", str(world.report))
    assert done.exit_code == 1
    assert done.stdout == ""
    assert f"failed: {world.link}: {LEADS_OUT}" in done.stderr
    [row] = json.loads(world.report.read_text())["skipped"]
    assert row == {"path": str(world.link), "reason": LEADS_OUT, "missed": True, "kind": ""}
    [skip] = read_report(world.report).batch.skipped
    assert skip.missed
    assert world.made() == {"a.nii"}


def test_a_link_that_is_reported_as_a_failure_is_not_said_to_be_skipped(world: World) -> None:
    done = world.command("translate", "--report", str(world.report))
    assert "1 file or folder unread, which may contain scans" in done.stdout
    assert "skipped" not in done.output


def test_discover_shows_it_in_json(world: World) -> None:
    done = world.command("discover", "--json")
    assert done.exit_code == 1
    [row] = json.loads(done.stdout)["skipped"]
    assert row == {"path": str(world.link), "reason": LEADS_OUT, "missed": True, "kind": ""}


def test_nothing_but_links_is_no_study(world: World) -> None:
    (world.inputs / "a.nii").unlink()
    for command in ("translate", "plan", "discover", "submit"):
        done = world.command(command)
        assert done.exit_code == 3, done.output
        assert LEADS_OUT in done.output


def test_a_config_may_ask_for_all_links(world: World) -> None:
    config = world.folder / "own.toml"
    config.write_text("[translate]\nfollow-links = true\n")
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    for command in ("translate", "plan", "submit"):
        done = world.run("--config", str(config), command, *paths)
        assert done.exit_code == 0, done.output
    assert world.made() == {"a.nii", "link.nii"}


def test_jobs_go_by_what_submit_was_reported(world: World) -> None:
    world.submit("--follow-links")
    world.work()
    assert world.made() == {"a.nii", "link.nii"}


def test_a_link_that_was_named_makes_a_job(world: World) -> None:
    paths = [str(world.link), "--model", str(world.model), "--output", str(world.output)]
    world.did("submit", *paths)
    world.work()
    assert world.made() == {"link.nii"}


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_scan_that_became_a_link_after_it_was_submitted_is_not_read(
    world: World, what: str
) -> None:
    world.link.unlink()
    inside = scan(world.inputs / "sub" / "secret.nii", 2)
    batch = world.submit()
    inside.unlink()
    if what == "file":
        inside.symlink_to(world.far)
    else:
        inside.parent.rmdir()
        inside.parent.symlink_to(world.far.parent)
    world.work()
    assert world.made() == {"a.nii"}
    [failed] = [row for row in world.jobs(batch) if row["state"] == "failed"]
    assert "changed since it was submitted" in json.dumps(failed)


@pytest.mark.process
def test_watch_follows_no_link(world: World) -> None:
    (world.inputs / "again.nii").symlink_to("a.nii")
    process = world.watch()
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if " 1 study queued" in line:
            break
    process.send_signal(signal.SIGTERM)
    said += process.stderr.readlines()
    process.stderr.close()
    assert process.wait() == 143
    for link in ("again.nii", "link.nii"):
        reported = f"{world.inputs / link} is not queued: it is a link and is not followed"
        assert [reported in line for line in said].count(True) == 1
    world.work()
    assert world.made() == {"a.nii"}
    assert "--follow-links" not in world.run("watch", "--help").stdout


def test_the_system_is_never_read(world: World) -> None:
    world.link.unlink()
    world.link.symlink_to("/proc/self")
    done = world.command("translate", "--follow-links")
    assert done.exit_code == 1
    assert "it is a link into a system folder" in " ".join(done.stderr.split())
    assert sys.executable not in done.output
