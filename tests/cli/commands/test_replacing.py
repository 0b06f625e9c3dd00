"""Results of another model or other settings: said before they go, and asked for on a terminal."""

import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
from support.batch_world import scan, tiny_model
from support.processes import started
from support.translate_world import COMMAND, World
from support.waiting import ENOUGH

OTHER = ("--overlap", "0")
QUESTION = "Replace them? [y/N] "


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two results, of which one is about to be due for another reason anyway."""
    world = World(tmp_path)
    for name in "ab":
        scan(world.inputs / f"{name}.nii")
    assert world.translate("--device", "cpu").exit_code == 0
    scan(world.inputs / "b.nii", seed=2)
    return world


def note(count: int, world: World) -> str:
    results = f"{count} results" if count > 1 else "1 result"
    return f"note: {results} in {world.output}, of another model or other settings, will be"


def test_no_note_is_made_of_what_is_out_of_date_anyway(world: World) -> None:
    done = world.translate("--device", "cpu")
    assert "will be" not in done.stderr
    assert "1 of them again because the input changed" in done.stderr


def test_the_result_of_a_scan_from_another_folder_stays(world: World, tmp_path: Path) -> None:
    """A loop over patients, each with a T1.nii, would leave the result of the last."""
    first, before = world.inputs / "a.nii", world.files()
    world.inputs = tmp_path / "other"
    scan(world.inputs / "a.nii", seed=3)
    done = world.translate("--device", "cpu")
    assert done.exit_code == 1
    assert f"a.nii is the result of another scan, {first}; move it away or use --overwrite" in (
        " ".join(done.stderr.split())
    )
    assert world.files() == before
    assert world.translate("--device", "cpu", "--overwrite").exit_code == 0
    assert "1 up to date" in world.translate("--device", "cpu").stdout


@pytest.mark.parametrize("what", ["settings", "model"])
def test_it_is_said_before_the_first_study(world: World, what: str) -> None:
    if what == "model":
        tiny_model(world.model, seed=3)
    done = world.translate("--device", "cpu", *(OTHER if what == "settings" else ()))
    assert done.exit_code == 0
    reported = " ".join(done.stderr.split())
    assert reported.startswith(
        f"{note(2, world)} replaced, with previews and maps; to keep them, stop now and choose "
        "another output folder."
    ), reported
    assert QUESTION not in done.output


def test_nothing_is_said_if_all_is_to_be_made_anew(world: World) -> None:
    assert "will be" not in world.translate("--device", "cpu", *OTHER, "--overwrite").stderr


def answered(command: Sequence[str], answer: bytes, reads: IO[bytes] | None) -> tuple[int, str]:
    """Exit status and what is shown on a terminal, on which a question gets an answer.

    reads: what the program reads in place of the terminal.
    """
    ours, theirs = os.openpty()
    shown, is_answered = b"", False
    with started(
        command,
        stdin=reads or theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        while select.select([ours], [], [], ENOUGH)[0]:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # nobody has the terminal any more
                break
            shown += part
            if QUESTION.encode() in shown and not is_answered:  # it may come in parts
                os.write(ours, answer)
                is_answered = True
        status = process.wait(ENOUGH)
    os.close(ours)
    return status, shown.decode()


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "status"), [(b"\n", 2), (b"no\n", 2), (b"\x04", 2), (b"y\n", 0), (b"YES\n", 0)]
)
def test_a_terminal_is_asked(world: World, answer: bytes, status: int) -> None:
    before, record = world.files(), world.manifest()
    command = [*COMMAND, *world.arguments("--device", "cpu", *OTHER)]
    found, shown = answered(command, answer, None)
    assert found == status, shown
    assert shown.count(QUESTION) == 1
    assert shown.index("will be") < shown.index(QUESTION)
    if status == 0:
        assert world.files().keys() == before.keys()
        assert world.files() != before
        return
    assert (world.files(), world.manifest()) == (before, record)
    assert "Nothing was changed." in shown


@pytest.mark.process
@pytest.mark.parametrize("how", ["--overwrite", "a pipe"])
def test_nobody_is_asked_who_said_it_already_or_cannot_answer(world: World, how: str) -> None:
    options = ("--overwrite",) if how == "--overwrite" else ()
    command = [*COMMAND, *world.arguments("--device", "cpu", *OTHER, *options)]
    with Path(os.devnull).open("rb") as nothing:
        found, shown = answered(command, b"", nothing if how == "a pipe" else None)
    assert (found, QUESTION in shown) == (0, False), shown
