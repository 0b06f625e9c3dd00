"""No file takes far more memory, or time, than its bytes."""

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import DeflatedExplicitVRLittleEndian
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom

from cuda_cyclegan.io.dicom import bounded_reading
from cuda_cyclegan.io.dicom.bounded_reading import ItemCount, TooManyItemsError
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import UnreadableScanError
from cuda_cyclegan.io.reading import read

PHANTOM = Phantom()
NAME = b"\x10\0\x10\0PN"
"""Place where the name of the patient begins, in explicit VRs."""
ITEM, END_OF_ITEM, END = (struct.pack("<HHI", 0xFFFE, at, 0) for at in (0xE000, 0xE00D, 0xE0DD))
ENDLESS_ITEM = ITEM[:4] + b"\xff" * 4
REFERENCED = (0x0008, 0x1115)
MEBIBYTE = 1 << 20


def sequence(items: bytes, tag: tuple[int, int] = REFERENCED, *, endless: bool) -> bytes:
    length = 0xFFFFFFFF if endless else len(items)
    return struct.pack("<HH2sHI", *tag, b"SQ", 0, length) + items + (END if endless else b"")


def with_elements(path: Path, elements: bytes, before: bytes = NAME) -> None:
    content = path.read_bytes()
    at = content.index(before)
    path.write_bytes(content[:at] + elements + content[at:])


def reported(folder: Path) -> str:
    """Return why no volume comes of a folder."""
    [study] = discover([folder], None).studies
    with pytest.raises(UnreadableScanError) as error:
        read(study)
    return str(error.value)


@pytest.mark.parametrize(
    "items",
    [
        sequence(ITEM * 4_000, endless=True),
        sequence((ENDLESS_ITEM + END_OF_ITEM) * 4_000, endless=True),
        sequence(ITEM * 4_000, endless=False),
        sequence(ITEM * 4_000, (0x5200, 0x9230), endless=False),
        sequence(ENDLESS_ITEM + sequence(ITEM * 4_000, endless=False) + END_OF_ITEM, endless=True),
        b"".join(sequence(ITEM * 150, (0x0008, 0x1111 + at), endless=False) for at in range(10)),
    ],
    ids=["empty", "endless", "known length", "of frames", "within another", "several"],
)
def test_more_empty_items_than_anybody_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: bytes
) -> None:
    monkeypatch.setattr(bounded_reading, "_FEW_ITEMS", 1_000)
    paths = replace(PHANTOM, modality="MR").write(tmp_path)
    with_elements(paths[3], items, NAME if items[:2] == b"\x08\0" else b"\xe0\x7f\x10\0")
    assert "im003" in reported(tmp_path)


def test_no_data_set_has_more_items_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_reading, "MOST_ITEMS", 10)
    count = ItemCount()
    for _ in range(10):
        count.add(ITEM + bytes(1000))
    with pytest.raises(TooManyItemsError):
        count.add(ITEM)


@pytest.mark.parametrize("big_endian", [False, True])
def test_items_are_counted_across_pieces(monkeypatch: pytest.MonkeyPatch, big_endian: bool) -> None:
    monkeypatch.setattr(bounded_reading, "MOST_ITEMS", 6)
    item = struct.pack(">HHI" if big_endian else "<HHI", 0xFFFE, 0xE000, 0)
    count = ItemCount(big_endian=big_endian)
    content = (item + bytes(95)) * 7
    for at in range(0, len(content) - 103, 3):
        count.add(memoryview(content)[at : at + 3])
    with pytest.raises(TooManyItemsError):
        count.add(content[-106:])


def test_enhanced_objects_have_as_many_items_as_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reading, "_FEW_ITEMS", 5)
    write_enhanced(replace(PHANTOM, modality="MR"), tmp_path / "in" / "one")
    [study] = discover([tmp_path / "in"], None).studies
    np.testing.assert_array_equal(read(study).voxels.T, PHANTOM.voxels())


def test_a_sequence_beyond_the_start_of_a_file_is_read(tmp_path: Path) -> None:
    """The sequence's items continue after the bytes that are parsed first."""
    paths = PHANTOM.write(tmp_path)
    item = struct.pack("<HHI", 0xFFFE, 0xE000, 200) + struct.pack("<HH2sH", 8, 0x1155, b"UI", 192)
    with_elements(paths[3], sequence((item + b"1.2".ljust(192, b"\0")) * 300, endless=True))
    [study] = discover([tmp_path], None).studies
    np.testing.assert_array_equal(read(study).voxels.T, PHANTOM.voxels())


def deflate(path: Path, change: Callable[[bytes], bytes] = lambda plain: plain) -> None:
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.save_as(path)
    content = path.read_bytes()
    start = 144 + struct.unpack_from("<I", content, 140)[0]
    plain = zlib.decompress(content[start:], -zlib.MAX_WBITS)
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    path.write_bytes(content[:start] + packer.compress(change(plain)) + packer.flush())


def test_a_deflated_series_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_reading, "_MOST_BYTES_OF_A_HEADER", 1 << 16)
    phantom = replace(PHANTOM, slices=8, rows=300, columns=300)
    for path in phantom.write(tmp_path):
        deflate(path)
    [study] = discover([tmp_path], None).studies
    np.testing.assert_array_equal(read(study).voxels.T, phantom.voxels())


VAST = struct.pack("<HH2sHI", 0x0009, 0x1001, b"OB", 0, 60 * MEBIBYTE)
BEHIND = struct.pack("<HH2sHI", 0xFFFC, 0xFFFC, b"OB", 0, 60 * MEBIBYTE)


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_deflated_data_set_is_unpacked_as_far_as_its_header_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(bounded_reading, "_MOST_BYTES_OF_A_HEADER", MEBIBYTE)

    def change(plain: bytes) -> bytes:
        zeros = bytes(60 * MEBIBYTE)
        if where == "behind":
            return plain + BEHIND + zeros
        at = plain.index(NAME)
        return plain[:at] + VAST + zeros + plain[at:]

    paths = PHANTOM.write(tmp_path)
    deflate(paths[3], change)
    assert paths[3].stat().st_size < MEBIBYTE
    tracemalloc.start()
    try:
        assert "im003" in reported(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_a_cut_deflated_file_is_named(tmp_path: Path) -> None:
    paths = PHANTOM.write(tmp_path)
    deflate(paths[3])
    paths[3].write_bytes(paths[3].read_bytes()[:-100])
    assert "im003" in reported(tmp_path)
