"""Damaged and hostile DICOM files: one typed sentence for the series, and the process lives on."""

import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.uid import JPEG2000Lossless
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_judges import judge
from support.dicom_phantoms import PATIENT, STORED, Phantom
from support.frames import unpack_here
from support.tiers import WITH_FIXTURES, examples

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.pixels.decoding import decode
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import ScanError, UnreadableScanError
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
PHANTOM = Phantom(slices=3, rows=48, columns=40)
TWO = Choice(fewest_slices=2)
DERIVATION = Derivation("model", "CT", "CT", "0", "0" * 64, STORED)
MANY = settings(
    max_examples=examples(60, fast=10),
    suppress_health_check=WITH_FIXTURES,
)


@st.composite
def damages(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """Offsets and what is written over the byte there; most fall into the first half."""
    offsets = st.one_of(st.integers(128, min(size, 1600) - 1), st.integers(128, size - 1))
    return draw(st.lists(st.tuples(offsets, st.integers(0, 255)), min_size=1, max_size=6))


EXPLICIT = b"1.2.840.10008.1.2.1"


def damaged(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(content)
    for offset, value in changes:
        changed[offset] = value
    return bytes(changed)


def survives(folder: Path) -> None:
    """All that may come of a folder are results or ScanErrors that do not name the patient."""
    for study in discover([folder], None, TWO).studies:
        with suppress(ScanError):
            write(read(study, 0), folder.parent / "out", DERIVATION)


@MANY
@given(data=st.data())
def test_any_bytes_in_a_slice_are_survived(tmp_path: Path, data: st.DataObject) -> None:
    paths = PHANTOM.write(tmp_path / "in")
    content = paths[1].read_bytes()
    paths[1].write_bytes(damaged(content, data.draw(damages(len(content)))))
    survives(tmp_path / "in")


@MANY
@given(data=st.data())
def test_any_bytes_in_an_enhanced_object_are_survived(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "in" / "one"
    write_enhanced(replace(PHANTOM, modality="MR", rows=8, columns=8), path, times=2)
    content = path.read_bytes()
    path.write_bytes(damaged(content, data.draw(damages(len(content)))))
    survives(tmp_path / "in")


def test_several_transfer_syntaxes(tmp_path: Path) -> None:
    for path in PHANTOM.write(tmp_path / "in"):
        content = path.read_bytes()
        assert content.count(EXPLICIT) == 1
        path.write_bytes(content.replace(EXPLICIT, EXPLICIT[:-2] + b"\\1"))
    [study] = discover([tmp_path / "in"], None, TWO).studies
    with pytest.raises(UnreadableScanError, match="has no transfer syntax"):
        read(study, 0)


def by_dcmtk(*command: str) -> Callable[[Path], None]:
    def pack(path: Path) -> None:
        made = path.with_suffix(".packed")
        subprocess.run([judge(command[0]), *command[1:], path, made], check=True)
        made.replace(path)

    return pack


def by_openjpeg(path: Path) -> None:
    dataset = pydicom.dcmread(path)
    dataset.compress(JPEG2000Lossless, generate_instance_uid=False)
    dataset.save_as(path)


PACKINGS = {
    "JPEG lossless": by_dcmtk("dcmcjpeg", "--encode-lossless-sv1"),
    "JPEG extended": by_dcmtk("dcmcjpeg", "--encode-extended"),
    "JPEG-LS": by_dcmtk("dcmcjpls", "--encode-lossless"),
    "RLE": by_dcmtk("dcmcrle"),
    "JPEG 2000": by_openjpeg,
}


@cache
def packed(packing: str, folder: Path) -> bytes:
    path = PHANTOM.write(folder / packing)[0]
    PACKINGS[packing](path)
    return path.read_bytes()


@MANY
@given(data=st.data())
@pytest.mark.parametrize("packing", PACKINGS)
def test_any_bytes_in_packed_pixels_are_survived(
    tmp_path_factory: pytest.TempPathFactory, packing: str, data: st.DataObject
) -> None:
    content = packed(packing, tmp_path_factory.getbasetemp())
    start = content.index(b"\xe0\x7f\x10\x00")
    offsets = st.integers(start + 12, len(content) - 1)
    changes = data.draw(st.lists(st.tuples(offsets, st.integers(0, 255)), min_size=1, max_size=6))
    path = tmp_path_factory.mktemp("packed") / "one"
    path.write_bytes(damaged(content, changes))
    with suppress(ScanError):
        decode(pydicom.dcmread(path), path, 0, unpack_here)


@pytest.mark.parametrize("element", ["ImagePositionPatient", "ImageOrientationPatient"])
@pytest.mark.parametrize("far", [1e10, 1e300])
def test_a_slice_that_is_said_to_lie_beyond_any_patient_fails_its_series_alone(
    tmp_path: Path, element: str, far: float
) -> None:
    def edit(data: Any, at: int) -> None:
        if at == 1:
            setattr(data, element, [f"{far:g}", *getattr(data, element)[1:]])

    PHANTOM.write(tmp_path / "in" / "damaged", edit)
    replace(PHANTOM, series="1.2.3.9").write(tmp_path / "in" / "sound")
    damaged, sound = discover([tmp_path / "in"], None, TWO).studies
    assert damaged.blocker is not None
    assert "have no pixels or no position" in damaged.blocker.reason
    assert read(sound).shape == (40, 48, 3)


def test_slices_that_lie_too_far_apart_are_not_resampled(tmp_path: Path) -> None:
    def edit(data: Any, at: int) -> None:
        if at == 11:
            data.ImagePositionPatient[2] = 100_000

    replace(PHANTOM, slices=12).write(tmp_path / "in", edit)
    [study] = discover([tmp_path / "in"], None, replace(TWO, allow_uneven=True)).studies
    with pytest.raises(UnreadableScanError, match=r"an even grid would have .* pixels; repair"):
        read(study)


def test_an_element_that_cannot_be_understood_quotes_nobody(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        data.add_new("ImagePositionPatient", "LO", PATIENT)
        data.add_new("RescaleSlope", "LO", PATIENT)

    PHANTOM.write(tmp_path / "in", edit)
    found = discover([tmp_path / "in"], None, TWO)
    assert found.studies == ()
    assert PATIENT not in str(found.skipped)


@pytest.mark.parametrize("slope", ["", "0"])
def test_a_slope_that_is_none_counts_as_one_and_has_a_note(tmp_path: Path, slope: str) -> None:
    PHANTOM.write(tmp_path / "in", lambda data, _: data.add_new("RescaleSlope", "LO", slope))
    [study] = discover([tmp_path / "in"], None, TWO).studies
    volume = read(study)
    assert volume.slope == 1.0
    assert volume.notes == ("its headers have no rescale slope, or one of 0; 1 is used",)


@pytest.mark.parametrize("slope", ["nan", "inf", "much"])
@pytest.mark.parametrize("element", ["RescaleSlope", "RescaleIntercept"])
def test_a_slope_that_is_no_number_is_refused(tmp_path: Path, element: str, slope: str) -> None:
    PHANTOM.write(tmp_path / "in", lambda data, at: at or data.add_new(element, "LO", slope))
    [study] = discover([tmp_path / "in"], None, TWO).studies
    with pytest.raises(
        UnreadableScanError, match="its rescale slope and intercept are not numbers"
    ):
        read(study)
