"""A disk that fills up refuses objects with A700, and takes them again when there is room."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node_world import NodeWorld, phantom

IN_A_SMALL_WORLD = "mount -t tmpfs -o size=400k none {state} || exit 99; exec "


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeWorld]:
    found = NodeWorld(tmp_path, options=("--reserve", "0.001MB"))
    try:
        yield found
    finally:
        found.close()


def inside(process: int, *command: str) -> "subprocess.CompletedProcess[str]":
    """A command in the namespace of a process."""
    entered = ["nsenter", f"--target={process}", "--mount", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=False)


def can_mount(folder: Path) -> bool:
    trial = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {folder}"]
    tools = all(map(shutil.which, ("unshare", "nsenter")))
    return tools and subprocess.run(trial, capture_output=True, check=False).returncode == 0


@pytest.mark.process
def test_what_does_not_fit_is_refused_and_what_was_taken_stays(world: NodeWorld) -> None:
    world.state.mkdir(mode=0o700)
    if not can_mount(world.state):
        pytest.skip("needs mount namespaces")
    script = IN_A_SMALL_WORLD.format(state=world.state)
    process = world.start(prefix=("unshare", "--mount", "sh", "-c", f'{script} "$@"', "sh"))
    files = phantom(0, 300).write(world.folder / "sources")
    assert world.send(files) != 0
    world.wait_for("refused")
    held = int(inside(process.pid, "sh", "-c", f"ls {world.state}/inbox/*/*/*.dcm | wc -l").stdout)
    assert 0 < held < 300
    assert inside(process.pid, "ls", f"{world.state}/incoming").stdout == ""
    grown = inside(process.pid, "mount", "-o", "remount,size=64m", str(world.state))
    assert grown.returncode == 0, grown.stderr
    assert world.send(files) == 0, world.said()
    shown = inside(process.pid, *world.command("node", "--status", "--json"))
    found: Any = json.loads(shown.stdout)
    assert found["running"] is True
    now = int(inside(process.pid, "sh", "-c", f"ls {world.state}/inbox/*/*/*.dcm | wc -l").stdout)
    assert now == 300
