"""A full disk: objects are refused with A700, which is stored, and taken when there is room."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node_world import NodeWorld, phantom
from support.processes import started
from support.waiting import eventually

SMALL_DISK = "mount -t tmpfs -o size=2600k none '{state}' || exit 99; echo mounted; exec sleep 600"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeWorld]:
    found = NodeWorld(tmp_path, options=("--reserve", "0.001MB"))
    try:
        yield found
    finally:
        found.close()


def can_mount(folder: Path) -> bool:
    trial = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none '{folder}'"]
    tools = all(map(shutil.which, ("unshare", "nsenter")))
    return tools and subprocess.run(trial, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_what_does_not_fit_is_refused_and_what_was_taken_stays(world: NodeWorld) -> None:
    world.state.mkdir(mode=0o700)
    if not can_mount(world.state):
        pytest.skip("needs mount namespaces")
    script = SMALL_DISK.format(state=world.state)
    with started(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"mounted\n"
        check(world, ("nsenter", f"--target={holder.pid}", "--mount"))


def check(world: NodeWorld, prefix: tuple[str, ...]) -> None:
    """prefix: enters the namespace with the small disk."""

    def inside(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*prefix, *command], capture_output=True, text=True, check=False)

    def taken() -> int:
        return int(inside("sh", "-c", f"ls '{world.state}'/inbox/*/*/*.dcm | wc -l").stdout)

    def studies() -> Any:
        done = inside(*world.command("node", "--status", "--json"))
        assert done.returncode == 0, done.stderr
        found: Any = json.loads(done.stdout)
        assert found["running"] is True
        return found["studies"]

    process = world.start(prefix=prefix)
    files = phantom(0, 300).write(world.folder / "sources")
    assert world.send(files) != 0
    world.wait_for("refused")
    held = taken()
    assert 0 < held < 300
    assert inside("ls", f"{world.state}/incoming").stdout == ""
    gap = {"images": held, "refused": 1}  # storescu stops there
    eventually(lambda: studies() and gap.items() <= studies()[0].items(), evidence=world.said)
    process.kill()
    process.wait()
    process = world.start(prefix=prefix)
    assert world.send(files[:1]) != 0  # the sender comes back to a disk that is still full
    eventually(lambda: gap.items() <= studies()[0].items(), evidence=world.said)
    grown = inside("mount", "-o", "remount,size=64m", str(world.state))
    assert grown.returncode == 0, grown.stderr
    assert world.send(files) == 0, world.said()
    assert taken() == 300
    eventually(lambda: [each["refused"] for each in studies()] == [0], evidence=world.said)
