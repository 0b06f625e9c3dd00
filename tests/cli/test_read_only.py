"""Commands in a container: a read-only root, no home, a nameless user, one place to write."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_world import scan
from support.translate_world import World
from support.waiting import ENOUGH

READ_ONLY = """
set -e
results=$1 home=$2; shift 2
mount --make-rprivate /
mount --bind "$results" "$results"
mount -o remount,bind,ro /
cd /
exec unshare --user --map-user=10001 --map-group=10001 \\
    env -i PATH=/usr/bin:/bin $home PYTHONDONTWRITEBYTECODE=1 "$@"
"""
NAMESPACE = ["unshare", "--mount", "bash", "-c", READ_ONLY, "bash"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can make a namespace with a read-only root")
    made = World(tmp_path)
    made.output.mkdir()
    places = str(tmp_path / "x"), str(made.output / "x")
    refused = run(made, "sh", "-c", 'touch "$1" "$2"; test -e "$2"', "sh", *places)
    if refused.returncode or (tmp_path / "x").exists():
        pytest.skip(f"no read-only root can be made here: {refused.stderr}")
    (made.output / "x").unlink()
    scan(made.inputs / "a.nii.gz")
    return made


def run(
    world: World, *words: object, home: str = "HOME=/nonexistent"
) -> "subprocess.CompletedProcess[str]":
    command = [*NAMESPACE, str(world.output), home, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=ENOUGH)


def reported(world: World, *words: object, status: int = 0, home: str = "HOME=/nonexistent") -> str:
    done = run(world, sys.executable, "-m", "cuda_cyclegan", *words, home=home)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.process
def test_a_folder_is_translated_and_a_record_kept(world: World) -> None:
    words = ("translate", *world.arguments("--device", "cpu"))
    assert "1 translated" in reported(world, *words)
    assert "1 up to date" in reported(world, *words)


@pytest.mark.slow
def test_a_worker_does_jobs_of_a_queue_among_the_results(world: World) -> None:
    queue = ("--queue", world.output / "queue" / "queue.db")
    reported(world, "submit", *world.arguments(), *queue)
    assert "translated: a.nii.gz" in reported(
        world, "worker", "--device", "cpu", "--until-empty", *queue
    )


@pytest.mark.slow
def test_command_without_a_writable_place_reports_it_in_a_sentence(world: World) -> None:
    assert "choose another with --queue" in reported(world, "submit", *world.arguments(), status=2)
    assert "give another queue with --queue" in reported(world, "jobs", status=2)
    examined = reported(world, "doctor", status=1)
    assert "choose another folder with --folder, or make it writable" in examined


@pytest.mark.slow
def test_a_user_without_a_home_translates_and_is_reported_of_the_queue(world: World) -> None:
    nameless = "LANG=C.UTF-8"  # in the place of HOME
    words = ("translate", *world.arguments("--device", "cpu"))
    assert "1 translated" in reported(world, *words, home=nameless)
    assert "no home folder to keep a queue" in reported(world, "jobs", status=2, home=nameless)
