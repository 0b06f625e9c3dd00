"""Unfinished results stay as long as their writer lives, and go once it is dead."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.processes import started
from support.waiting import ENOUGH

from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.io.files import parts
from cuda_cyclegan.io.files.atomic import whole_file, whole_files, whole_folder
from cuda_cyclegan.io.files.parts import (
    ABANDONED_AFTER_SECONDS,
    PREFIX,
    Gate,
    part_beside,
    remove_leftovers,
    remove_parts_of_this_process,
)

WRITER = """
import os, pathlib, sys
from cuda_cyclegan.io.files import atomic
with getattr(atomic, sys.argv[1])(pathlib.Path(sys.argv[2])) as part:
    (part / "1.dcm" if part.is_dir() else part).write_text("half")
    print("writing", flush=True)
    sys.stdin.readline()
"""
CLEANER = """
import pathlib, sys
from cuda_cyclegan.io.files.parts import remove_leftovers
print(remove_leftovers(pathlib.Path(sys.argv[1])))
"""
STARTING = """
import pathlib, subprocess, sys
del sys.argv[1:3]
code = sys.argv.pop(1).replace('print("writing"', 'start(); print("writing"')
def start():
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    (pathlib.Path(sys.argv[2]).parent / "child").write_text(str(child.pid))
exec(code)
"""
"""The writer, which starts a program that outlives it."""

BEGINNERS = """
import pathlib, secrets, sys, threading
from concurrent.futures import ThreadPoolExecutor
from cuda_cyclegan.io.files.parts import part_beside, remove_parts_of_this_process
folder, draw = pathlib.Path(sys.argv[1]), secrets.token_hex
drawing = threading.Barrier(4)
everyone_writes = threading.Barrier(4, lambda: print(remove_parts_of_this_process(folder)))
def draw_together(count):
    drawing.wait()
    return draw(count)
def write(number):
    with part_beside(folder / f"{number}"):
        everyone_writes.wait()
secrets.token_hex = draw_together
with ThreadPoolExecutor(4) as threads:
    list(threads.map(write, range(4)))
"""
"""Four threads that create the first parts of their process at the same time."""

OTHER_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]
WAYS = ("whole_file", "whole_files", "whole_folder")


@contextmanager
def writer(
    target: Path, way: str = "whole_file", *before: str
) -> "Generator[subprocess.Popen[str]]":
    """Another process in the middle of writing; it ends well when it is given a line."""
    with started(
        [*before, sys.executable, "-c", WRITER, way, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "writing\n"
        yield process


def clean(folder: Path, *before: str) -> int:
    """Remove leftovers in another process."""
    command = [*before, sys.executable, "-c", CLEANER, str(folder)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def age(path: Path) -> None:
    long_ago = time.time() - 2 * ABANDONED_AFTER_SECONDS
    for each in (*path.rglob("*"), path):
        os.utime(each, (long_ago, long_ago))


@pytest.mark.parametrize("way", WAYS)
def test_the_part_of_a_living_process_stays_and_that_of_a_killed_one_goes(
    tmp_path: Path, way: str
) -> None:
    with writer(tmp_path / "a", way) as process:
        assert remove_leftovers(tmp_path) == 0
        assert len(names(tmp_path)) == 1
        process.kill()
        process.wait()
        assert remove_leftovers(tmp_path) == 1
        assert names(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
def test_process_namespaces_leave_each_others_parts_alone(tmp_path: Path, way: str) -> None:
    """Numbers of processes mean something else there, and the host has the same name."""
    if subprocess.run([*OTHER_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a process namespace")
    with writer(tmp_path / "theirs", way, *OTHER_NAMESPACE) as theirs:
        assert remove_leftovers(tmp_path) == 0
        with writer(tmp_path / "ours", way) as ours:
            assert clean(tmp_path, *OTHER_NAMESPACE) == 0
            for process in (theirs, ours):
                process.communicate("go on\n")
                assert process.returncode == 0
    assert names(tmp_path) == ["ours", "theirs"]


def test_a_living_writers_part_stays_however_old_it_is(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a") as part:
        age(part.parent)
        assert clean(tmp_path) == 0


def test_a_folder_that_moved_aside_is_not_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, replace, cleaned = tmp_path / "series", Path.replace, list[int]()
    target.mkdir()
    (target / "1.dcm").write_text("old")

    def fail_to_name(path: Path, place: Path) -> Path:
        if place == target and path.name == "new":
            cleaned.append(clean(tmp_path))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(path, place)

    monkeypatch.setattr(Path, "replace", fail_to_name)
    with pytest.raises(WriteError, match="was not written"), whole_folder(target) as part:
        (part / "1.dcm").write_text("new")
    assert cleaned == [0]
    assert names(tmp_path) == ["series"]
    assert (target / "1.dcm").read_text() == "old"


def test_the_cause_is_reported_although_moving_the_old_folder_back_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, replace = tmp_path / "series", Path.replace
    target.mkdir()

    def fail_twice(path: Path, place: Path) -> Path:
        if place == target:
            code = {"new": errno.ENOSPC, "old": errno.EROFS}[path.name]
            raise OSError(code, os.strerror(code))
        return replace(path, place)

    monkeypatch.setattr(Path, "replace", fail_twice)
    with pytest.raises(WriteError, match="the disk is full"), whole_folder(target):
        pass
    assert names(tmp_path) == []


def test_threads_of_one_process_leave_each_others_parts_alone(tmp_path: Path) -> None:
    everyone_writes = threading.Barrier(8)

    def write(number: int) -> int:
        with whole_file(tmp_path / f"{number}") as part:
            part.write_text("half")
            everyone_writes.wait(ENOUGH)
            removed = remove_leftovers(tmp_path)
            everyone_writes.wait(ENOUGH)
            return removed

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(write, range(8))) == 0
    assert len(names(tmp_path)) == 8


def test_parts_of_this_process_are_reported_from_those_of_others(tmp_path: Path) -> None:
    with writer(tmp_path / "theirs") as process:
        with pytest.raises(WriteError, match="moved or removed"), whole_file(tmp_path / "ours"):
            assert remove_parts_of_this_process(tmp_path) == 1
        process.communicate("go on\n")
        assert process.returncode == 0
    assert names(tmp_path) == ["theirs"]


def test_the_first_parts_of_a_process_are_known_as_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGINNERS, str(tmp_path)]
    assert subprocess.check_output(command, text=True, timeout=ENOUGH) == "4\n"
    assert names(tmp_path) == []


def test_a_program_that_is_started_meanwhile_does_not_keep_the_part(tmp_path: Path) -> None:
    with writer(tmp_path / "a", "whole_file", sys.executable, "-c", STARTING) as process:
        process.kill()
        process.wait()
        assert remove_leftovers(tmp_path) == 1
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_forked_child_does_not_take_its_parents_parts_for_its_own(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a") as part:
        child = os.fork()
        if not child:
            removed = remove_parts_of_this_process(tmp_path) + remove_leftovers(tmp_path)
            os._exit(removed)
        assert os.waitpid(child, 0)[1] == 0
        part.write_text("whole")
    assert names(tmp_path) == ["a"]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    def use_all_ways() -> int:
        with whole_file(tmp_path / "a"), whole_files(tmp_path / "b"), whole_folder(tmp_path / "c"):
            pass
        with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "d"):
            raise ZeroDivisionError
        with writer(tmp_path / "e"):
            remove_leftovers(tmp_path)
        remove_leftovers(tmp_path)
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    assert use_all_ways() == use_all_ways()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF])
def test_without_locks_a_part_is_abandoned_when_it_has_not_changed_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with whole_file(tmp_path / "a") as part:
        part.write_text("whole")
        assert remove_leftovers(tmp_path) == 0
        monkeypatch.undo()
        assert clean(tmp_path) == 0, "one with locks must not take one without for abandoned"
        os.utime(part.parent, (0, 0))  # its file is new
        assert clean(tmp_path) == 0
    assert names(tmp_path) == ["a"]

    monkeypatch.setattr(fcntl, "flock", refuse)
    with suppress(WriteError), whole_file(tmp_path / "b") as part:
        age(part.parent)
        assert remove_leftovers(tmp_path) == 1
    assert names(tmp_path) == ["a"]


def test_without_locks_the_age_of_a_part_file_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer(tmp_path / "a") as process:
        process.kill()
    [part] = tmp_path.iterdir()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert remove_leftovers(tmp_path) == 0
    age(part)
    assert remove_leftovers(tmp_path) == 1


def test_parts_of_other_systems_and_versions_go_after_a_day(tmp_path: Path) -> None:
    """A lock that another machine holds is not seen here; earlier versions took none."""
    other = f"{PREFIX}{'0' * 16}-0badf00d-12345678.part"
    earlier = [f"{PREFIX}0badf00d-{os.getpid()}-12345-ee.part", f"{PREFIX}0badf00d-4711-ff.part"]
    (tmp_path / "sub" / other).mkdir(parents=True)
    (tmp_path / "sub" / other / "half.raw").touch()
    for name in (*earlier, "mine.part"):
        (tmp_path / name).touch()
    assert remove_leftovers(tmp_path) == 0
    for path in tmp_path.iterdir():
        age(path)
    assert remove_leftovers(tmp_path) == 3
    assert names(tmp_path) == ["mine.part", "sub"]


def test_a_link_or_pipe_with_the_name_of_a_part_is_not_followed(tmp_path: Path) -> None:
    with part_beside(tmp_path / "a") as part:
        name = part.name
    scans = tmp_path / "scans"
    scans.mkdir()
    (tmp_path / name).symlink_to(scans)
    os.mkfifo(tmp_path / f"{name}.part")
    assert remove_leftovers(tmp_path) == 0
    assert scans.is_dir()


def test_a_part_that_another_run_removed_before_its_lock_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, tries = os.open, iter(range(2))

    def too_late(path: Path, flags: int, *mode: int) -> int:
        if next(tries, None) is not None:
            Path(path).rmdir()
        return opened(path, flags, *mode)

    monkeypatch.setattr(parts.os, "open", too_late)
    with whole_file(tmp_path / "a") as part:
        monkeypatch.undo()
        part.write_text("whole")
        assert clean(tmp_path) == 0
    assert names(tmp_path) == ["a"]


@pytest.mark.slow
def test_many_runs_that_clean_while_many_write(tmp_path: Path) -> None:
    """The moments between making and locking a part, and between locking and removing one."""
    over = threading.Event()

    def clean_up() -> int:
        removed = 0
        while not over.is_set():
            removed += remove_leftovers(tmp_path)
        return removed

    def write(number: int) -> None:
        with whole_file(tmp_path / f"{number}") as part:
            part.write_text("whole")

    with ThreadPoolExecutor(2) as cleaners, ThreadPoolExecutor(4) as writers:
        cleaning = [cleaners.submit(clean_up) for _ in range(2)]
        try:
            list(writers.map(write, range(400)))
        finally:
            over.set()
        for each in cleaning:
            each.result()
    assert len(names(tmp_path)) == 400


@pytest.mark.parametrize("suffix", [".hdr", ".img"])
def test_file_that_names_the_result_moves_last_of_several(tmp_path: Path, suffix: str) -> None:
    moved: list[str] = []

    @contextmanager
    def passed(files: Sequence[Path]) -> Generator[None]:
        moved.extend(file.name for file in files)
        yield

    target = tmp_path / f"a{suffix}"
    with whole_files(target, Gate(passed)) as part:
        for each in (".hdr", ".img", ".mat"):
            part.with_suffix(each).touch()
    assert sorted(moved) == ["a.hdr", "a.img", "a.mat"]
    assert moved[-1] == target.name
