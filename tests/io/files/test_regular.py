"""The openers of files that others made, one in each layer: only regular ones, and at once."""

import os
import socket
from pathlib import Path
from types import ModuleType

import pytest

from cuda_cyclegan.engine import regular_files
from cuda_cyclegan.io.files import regular


@pytest.fixture(params=[regular, regular_files], ids=["io", "engine"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def refusal(module: ModuleType, path: Path) -> str | None:
    with pytest.raises(OSError, match=r".+") as caught:
        module.open_regular(path)
    return caught.value.strerror


def test_a_file_is_read_by_its_own_name_and_by_that_of_a_link(
    module: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "file", tmp_path / "link"):
        assert module.read_regular(path) == b"content"
        with module.open_regular(path) as file:
            assert Path(file.name) == path  # as libraries ask for it
            assert file.read(3) == b"con"


def test_what_is_no_file_is_refused_without_waiting(module: ModuleType, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "link", tmp_path / "socket", Path(os.devnull)):
            assert refusal(module, path) == "it is a pipe, socket or device, not a file"
    assert refusal(module, tmp_path / "a\0b") == "its name holds a zero byte"
    with pytest.raises(IsADirectoryError):
        module.open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        module.open_regular(tmp_path / "missing")
