"""A result that is written while its voxels come."""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.batch_world import scan
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import DiskFullError
from cuda_cyclegan.io.files import file_writers
from cuda_cyclegan.io.files.file_writers import HashedFile
from cuda_cyclegan.io.files.parts import NO_GATE, Gate, is_part
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.io.writing import is_written_in_order, write
from cuda_cyclegan.pipelines.results import written_ahead
from cuda_cyclegan.pipelines.results.written_ahead import WrittenAhead

SLICES = 40
SHAPE = (256, 128, SLICES)
"""Shape with slices of 64 KiB, so that a write holds 32 of them."""


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    scan(tmp_path / "scans" / "a.nii", 3, SHAPE)
    [study] = discover([tmp_path / "scans"], tmp_path / "results").studies
    return read(study)


def coming(volume: Volume) -> Volume:
    """The same result before its first voxel is made."""
    return volume.with_voxels(np.full_like(volume.voxels, -1), keeps_unit=True)


def left(folder: Path) -> list[Path]:
    """Files below a folder, and parts."""
    return [path for path in folder.rglob("*") if path.is_file() or is_part(path.name)]


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_it_is_the_file_that_is_written_at_the_end(
    volume: Volume, tmp_path: Path, name: str
) -> None:
    hashes = write(volume, tmp_path / "then" / name)
    made, target = coming(volume), tmp_path / "ahead" / name
    ahead = WrittenAhead(made, target, NO_GATE)
    for slices in (7, 33, 39):
        made.voxels[:, :, :slices] = volume.voxels[:, :, :slices]
        ahead.on_rows(slices)
    made.voxels[...] = volume.voxels
    assert not target.exists()
    assert ahead.put(NO_GATE) == hashes
    assert target.read_bytes() == (tmp_path / "then" / name).read_bytes()
    assert left(target.parent) == [target]


def test_slices_are_written_as_soon_as_they_are_final(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashedFile, "block", 1 << 20)
    made, target = coming(volume), tmp_path / "ahead" / "a.nii"
    made.voxels[...] = volume.voxels
    ahead = WrittenAhead(made, target, NO_GATE)
    ahead.on_rows(32)
    eventually(
        lambda: any(file.stat().st_size > 1 << 20 for file in tmp_path.rglob("*.part/a.nii")),
        evidence=lambda: left(tmp_path),
    )
    ahead.cancel()


def test_cancelled_file_leaves_nothing(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_ahead, "_PATIENCE", ENOUGH)
    target = tmp_path / "ahead" / "a.nii"
    WrittenAhead(coming(volume), target, NO_GATE).cancel()
    assert not target.parent.exists()
    ahead = WrittenAhead(coming(volume), target, NO_GATE)
    ahead.on_rows(32)
    eventually(lambda: left(target.parent))
    ahead.cancel()
    ahead.cancel()
    assert not left(target.parent)
    whole = WrittenAhead(coming(volume), target, NO_GATE)
    whole.on_rows(SLICES)
    eventually(lambda: left(target.parent))
    whole.cancel()
    assert not left(target.parent)


def test_both_gates_are_passed_each_in_its_turn(volume: Volume, tmp_path: Path) -> None:
    passed = list[tuple[str, int]]()

    def gate(name: str) -> Gate:
        @contextmanager
        def pass_it(files: Sequence[Path]) -> Generator[None]:
            passed.append((name, len(files)))
            yield

        return Gate(pass_it)

    ahead = WrittenAhead(volume, tmp_path / "ahead" / "a.nii", gate("of parts"))
    ahead.put(gate("of results"))
    assert passed == [("of parts", 0), ("of results", 1)]


def test_a_full_disk_is_reported_when_the_result_is_put(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_writers.HashedFile, "write", refuse)
    target = tmp_path / "ahead" / "a.nii"
    ahead = WrittenAhead(volume, target, NO_GATE)
    ahead.on_rows(SLICES)
    with pytest.raises(DiskFullError, match="the disk is full"):
        ahead.put(NO_GATE)
    assert not left(target.parent)


def test_a_volume_that_lies_otherwise_waits_for_its_end(volume: Volume) -> None:
    assert is_written_in_order(volume, Path("a.nii.gz"))
    assert not is_written_in_order(volume, Path("a.hdr"))
    turned = volume.with_voxels(np.ascontiguousarray(volume.voxels))
    assert not is_written_in_order(turned, Path("a.nii"))
    backwards = volume.with_voxels(volume.voxels[:, :, ::-1])
    assert not is_written_in_order(backwards, Path("a.nii"))
