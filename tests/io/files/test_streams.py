"""Voxel bytes of a file that several threads read."""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import WITH_FIXTURES

from cuda_cyclegan.io.files import disk, streams
from cuda_cyclegan.io.files.streams import (
    PackedReader,
    TooManyBytesError,
    expect_end,
    fill,
    open_reader,
    read_exactly,
)

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
    """Offsets at which parts were read; a disk returns some of the requested bytes at a time."""
    begins: list[int] = []
    real: Callable[[int, memoryview, int], int] = disk.read_into

    def read_some(descriptor: int, buffer: memoryview, begin: int) -> int:
        begins.append(begin)
        return real(descriptor, buffer[:700], begin)

    monkeypatch.setattr(streams, "read_into", read_some)
    return begins


def test_a_file_is_read_from_where_the_stream_stands_to_where_it_then_stands(
    file: Path, read: list[int]
) -> None:
    found = np.empty(10_000, np.uint8)
    with open_reader(file) as stream:
        assert read_exactly(stream, len(HEADER)) == HEADER
        fill(stream, found.data)
        assert read_exactly(stream, 1) == VOXELS[-1:].tobytes()
        expect_end(stream)
    np.testing.assert_array_equal(found, VOXELS[:-1])
    assert sorted(read) == sorted(7 + 1000 * part + more for part in range(10) for more in (0, 700))


@pytest.mark.usefixtures("read")
def test_a_file_that_ends_early_is_noticed(file: Path) -> None:
    found = np.empty(10_002, np.uint8)
    with open_reader(file) as stream:
        read_exactly(stream, len(HEADER))
        with pytest.raises(EOFError):
            fill(stream, found.data)


def test_a_system_that_cannot_gives_the_same_bytes(
    file: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "can_read_anywhere", lambda: False)
    found = np.empty(10_001, np.uint8)
    with open_reader(file) as stream:
        stream.read(len(HEADER))
        fill(stream, found.data)
        expect_end(stream)
    np.testing.assert_array_equal(found, VOXELS)
    assert not read


PACKS: dict[streams.Packing, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bzip2": bz2.compress,
}


@settings(suppress_health_check=WITH_FIXTURES)
@given(
    packing=st.sampled_from(list(PACKS)),
    parts=st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=4),
    tail=st.sampled_from([b"", bytes(9), b"more"]),
    steps=st.integers(1, 4000),
)
def test_streams_one_after_the_other_are_unpacked(
    packing: streams.Packing, parts: list[bytes], tail: bytes, steps: int
) -> None:
    plain = b"".join(parts)
    file = io.BytesIO(b"".join(map(PACKS[packing], parts)) + tail)
    reader: Any = PackedReader(file, packing)
    found = bytearray(len(plain))
    for begin in range(0, len(plain), steps):
        fill(reader, memoryview(found)[begin : begin + steps])
    assert bytes(found) == plain
    assert reader.finish() == (tail == b"more")


@pytest.mark.parametrize("packing", PACKS)
def test_a_packed_stream_that_is_cut_or_goes_on_is_noticed(packing: streams.Packing) -> None:
    packed = PACKS[packing](VOXELS.tobytes())
    for end, size in ((-1, len(VOXELS)), (-40, len(VOXELS)), (len(packed), len(VOXELS) - 1)):
        reader: Any = PackedReader(io.BytesIO(packed[:end]), packing)
        with pytest.raises((EOFError, TooManyBytesError)):  # noqa: PT012
            fill(reader, memoryview(bytearray(size)))
            reader.finish()
