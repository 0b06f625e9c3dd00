"""Documents at places that a user names: what is there stays, but for a file, which is replaced."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import ENOUGH

from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.io.files import documents
from cuda_cyclegan.io.files.documents import (
    is_descriptor,
    why_not_writable,
    would_replace,
    write_document,
)

FULL = Path("/dev/full")


@contextmanager
def read_meanwhile(pipe: Path) -> Generator[list[bytes]]:
    """Yield what a reader gets of a pipe that the block writes."""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    yield found
    reader.join(ENOUGH)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def refusal(target: Path) -> str:
    with pytest.raises(WriteError) as caught:
        write_document(target, b"new")
    return str(caught.value)


def test_a_file_and_one_behind_links_are_replaced_whole(tmp_path: Path) -> None:
    far = tmp_path / "far" / "a.json"
    far.parent.mkdir()
    far.write_bytes(b"old")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(far)
    before = far.stat().st_ino
    assert would_replace(tmp_path / "first")
    write_document(tmp_path / "first", b"new")
    assert (tmp_path / "first").is_symlink()
    assert far.read_bytes() == b"new"
    assert far.stat().st_ino != before
    assert [path.name for path in far.parent.iterdir()] == ["a.json"]
    assert not would_replace(tmp_path / "free")
    write_document(tmp_path / "free", b"new")
    assert (tmp_path / "free").read_bytes() == b"new"


def test_a_pipe_gets_the_bytes_and_stays(
    pipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PATIENCE_SECONDS", ENOUGH)
    (tmp_path / "link").symlink_to(pipe)
    for name in (pipe, tmp_path / "link"):
        assert not would_replace(name)
        with read_meanwhile(pipe) as found:
            write_document(name, b"new" * 100_000)
        assert found == [b"new" * 100_000]
    assert pipe.is_fifo()


def test_a_pipe_without_a_reader_is_abandoned(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PATIENCE_SECONDS", 0.0)
    assert refusal(pipe) == (
        f"{pipe} was not written: no program reads from the pipe; start its reader first."
    )
    assert pipe.is_fifo()


@pytest.mark.skipif(not FULL.exists(), reason="this system has no file that is always full")
def test_a_device_is_written_to_and_its_refusal_counts(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to(FULL)
    assert "the disk is full" in refusal(tmp_path / "full")
    assert (tmp_path / "full").is_symlink()
    assert FULL.is_char_device()
    (tmp_path / "null").symlink_to(os.devnull)
    write_document(tmp_path / "null", b"new")
    assert Path(os.devnull).is_char_device()


def test_an_open_file_goes_on_where_it_is(tmp_path: Path) -> None:
    if not Path("/dev/fd").exists():
        pytest.skip("this system has no names of open files")
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(b"before ")
        for name in ("/dev/fd", "/proc/self/fd"):
            assert not would_replace(Path(name, str(log.fileno())))
            write_document(Path(name, str(log.fileno())), b"new ")
        log.write(b"after")
    assert (tmp_path / "log").read_bytes() == b"before new new after"


@pytest.mark.process
def test_another_name_of_standard_output_is_known_as_that(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from cuda_cyclegan.io.files.documents import *;"
        "print(is_descriptor(Path('/dev/stdout'), 1), flush=True);"
        "write_document(Path('/dev/stdout'), b'new')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"True\nnew"
    assert not is_descriptor(tmp_path / "out", 1)


def test_file_without_a_document_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "to folder").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "ring").symlink_to("ring")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "socket"))
        for name, reported in {
            "folder": "is a folder; give a file name in it",
            "to folder": "is a folder; give a file name in it",
            "dangling": "nowhere, which is missing; create that file or choose another output",
            "socket": "is a socket or a disk; give a file name",
        }.items():
            assert (why_not_writable(tmp_path / name) or "").endswith(reported)
            assert refusal(tmp_path / name).endswith(f"{reported}.")
        assert "cannot be used" in (why_not_writable(tmp_path / "ring") or "")
        assert "Too many" in refusal(tmp_path / "ring")
        assert (tmp_path / "socket").is_socket()
    assert not (tmp_path / "nowhere").exists()
    assert "zero byte" in refusal(tmp_path / "a\0b")


def test_a_link_that_changes_before_the_writing_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger may change it in a folder for all."""
    (tmp_path / "other").write_bytes(b"kept")
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("other")
    real = os.open

    def swapped(path: Path, *how: int) -> int:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("file")
        return real(path, *how)

    monkeypatch.setattr(os, "open", swapped)
    assert "its link changed meanwhile" in refusal(tmp_path / "link")
    assert (tmp_path / "other").read_bytes() == b"kept"
