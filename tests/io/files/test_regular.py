"""The opener of files that others made: only regular ones, and without waiting."""

import os
import socket
from pathlib import Path

import pytest

from cuda_cyclegan.io.files.regular import NotRegularError, open_regular, read_regular


def refusal(path: Path) -> str | None:
    with pytest.raises(OSError, match=r".+") as caught:
        open_regular(path)
    return caught.value.strerror


def test_a_file_is_read_by_its_own_name_and_by_that_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "file", tmp_path / "link"):
        assert read_regular(path) == b"content"
        with open_regular(path) as file:
            assert Path(file.name) == path  # as libraries ask for it
            assert file.read(3) == b"con"


def test_place_without_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "link", tmp_path / "socket", Path(os.devnull)):
            assert refusal(path) == "it is a pipe, socket or device, not a file"
    assert refusal(tmp_path / "a\0b") == "its name contains a zero byte"
    with pytest.raises(NotRegularError):
        read_regular(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")
