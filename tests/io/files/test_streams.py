"""Voxel bytes of a file that several threads read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cuda_cyclegan.io.files import disk, streams
from cuda_cyclegan.io.files.streams import expect_end, fill, open_reader, read_exactly

VOXELS = np.random.default_rng(0).integers(0, 256, 10_001, np.uint8)
HEADER = b"header!"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "voxels"
    path.write_bytes(HEADER + VOXELS.tobytes())
    return path


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LEAST_SIDE_BY_SIDE", 1)
    monkeypatch.setattr(streams, "PART_BYTES", 1000)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From which bytes on parts were read; a disk gives some of what is asked for at a time."""
    begins: list[int] = []
    real: Callable[[int, memoryview, int], int] = disk.read_at

    def read_some(descriptor: int, buffer: memoryview, begin: int) -> int:
        begins.append(begin)
        return real(descriptor, buffer[:700], begin)

    monkeypatch.setattr(streams, "read_at", read_some)
    return begins


def test_a_file_is_read_from_where_the_stream_stands_to_where_it_then_stands(
    file: Path, read: list[int]
) -> None:
    found = np.empty(10_000, np.uint8)
    with open_reader(file, gzip=False) as stream:
        assert read_exactly(stream, len(HEADER)) == HEADER
        fill(stream, found.data)
        assert read_exactly(stream, 1) == VOXELS[-1:].tobytes()
        expect_end(stream)
    np.testing.assert_array_equal(found, VOXELS[:-1])
    assert sorted(read) == sorted(7 + 1000 * part + more for part in range(10) for more in (0, 700))


@pytest.mark.usefixtures("read")
def test_a_file_that_ends_early_is_noticed(file: Path) -> None:
    found = np.empty(10_002, np.uint8)
    with open_reader(file, gzip=False) as stream:
        read_exactly(stream, len(HEADER))
        with pytest.raises(EOFError):
            fill(stream, found.data)


def test_a_system_that_cannot_gives_the_same_bytes(
    file: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "can_read_anywhere", lambda: False)
    found = np.empty(10_001, np.uint8)
    with open_reader(file, gzip=False) as stream:
        stream.read(len(HEADER))
        fill(stream, found.data)
        expect_end(stream)
    np.testing.assert_array_equal(found, VOXELS)
    assert not read
