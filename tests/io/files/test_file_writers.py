"""Gzip and zlib streams packed on several threads, against zlib."""

import io
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.io.files import file_writers as packing
from cuda_cyclegan.io.files.file_writers import GzipWriter, HashedFile

GZIP = 16 + zlib.MAX_WBITS
BLOCK = bytes(range(256)) * 700


def write(
    file: BinaryIO, writes: Sequence[bytes | memoryview], kind: Literal["gzip", "zlib"] = "gzip"
) -> None:
    with GzipWriter(HashedFile(file), kind) as writer:
        for data in writes:
            writer.write(data)


def packed(writes: Sequence[bytes | memoryview]) -> bytes:
    file = io.BytesIO()
    write(file, writes)
    return file.getvalue()


@given(st.lists(st.binary(max_size=3000) | st.just(BLOCK), max_size=40))
def test_written_bytes_are_unpacked_from_one_member(writes: list[bytes]) -> None:
    unpacker = zlib.decompressobj(GZIP)
    assert unpacker.decompress(packed(writes)) == b"".join(writes)
    assert unpacker.eof
    assert unpacker.unused_data == b""


@given(st.lists(st.binary(max_size=3000) | st.just(BLOCK), max_size=40))
def test_written_zlib_bytes_are_unpacked(writes: list[bytes]) -> None:
    file = io.BytesIO()
    write(file, writes, "zlib")
    unpacker = zlib.decompressobj()
    assert unpacker.decompress(file.getvalue()) == b"".join(writes)
    assert unpacker.eof
    assert unpacker.unused_data == b""


def test_the_bytes_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = [BLOCK[:length] for length in range(0, len(BLOCK), 9973)]
    wanted = packed(writes)
    with ThreadPoolExecutor(1) as alone:
        monkeypatch.setattr(packing, "_threads", lambda: alone)
        assert packed(writes) == wanted


def test_a_view_is_packed_as_its_bytes() -> None:
    assert packed([memoryview(BLOCK)]) == packed([BLOCK])


def test_a_failure_in_the_block_leaves_the_file_without_an_end() -> None:
    file = io.BytesIO()
    with suppress(KeyError), GzipWriter(HashedFile(file)) as writer:
        writer.write(BLOCK)
        raise KeyError
    unpacker = zlib.decompressobj(GZIP)
    unpacker.decompress(file.getvalue())
    assert not unpacker.eof


def test_a_full_disk_is_reported() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no device that is always full")
    with pytest.raises(OSError, match="No space"), full.open("wb") as file:
        write(file, [BLOCK] * 100)
