"""The same object in another encoding is known again, and another one is not taken for it."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.uid import JPEGLosslessSV1, JPEGLSLossless
from support.dicom_judges import judge
from support.dicom_pacs import orthanc
from support.node_world import phantom

from cuda_cyclegan.io.dicom_network.objects import is_same_object

pydicom: Any = _pydicom
UIDS = ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file with a sequence and private elements."""
    file, *_ = phantom(0, 2).write(tmp_path / "source")
    dataset = pydicom.dcmread(file)
    item = pydicom.Dataset()
    item.ReferencedSOPInstanceUID = "1.2.3"
    item.PurposeOfReferenceCodeSequence = [pydicom.Dataset()]
    dataset.ReferencedImageSequence = [item, item]
    block = dataset.private_block(0x0029, "SOMEBODY", create=True)
    block.add_new(1, "LO", "odd")
    block.add_new(2, "SQ", [item])
    dataset.save_as(file)
    return file


@pytest.mark.parametrize(
    "command",
    [
        ["dcmconv", "+te"],
        ["dcmconv", "+te", "-e"],
        ["dcmconv", "+ti"],
        ["dcmconv", "+ti", "-e"],
        ["dcmcrle"],
        ["dcmcjpeg", "+tl"],
        ["dcmcjpls"],
    ],
    ids=" ".join,
)
def test_the_same_object_from_dcmtk(source: Path, tmp_path: Path, command: Sequence[str]) -> None:
    name, *options = command
    other = tmp_path / "other.dcm"
    subprocess.run([judge(name), *options, source, other], check=True, capture_output=True)
    assert other.read_bytes() != source.read_bytes()
    assert is_same_object(source, other)
    assert is_same_object(other, source)


@pytest.mark.slow
def test_the_same_object_as_orthanc_packs_it(source: Path, tmp_path: Path) -> None:
    with orthanc(tmp_path / "orthanc") as pacs:
        held = pacs.post("/instances", source.read_bytes())
        for syntax in (JPEGLosslessSV1, JPEGLSLossless):
            other = tmp_path / f"{syntax}.dcm"
            asked = {"Transcode": syntax, "Keep": [*UIDS], "Force": True}
            other.write_bytes(pacs.posted(f"/instances/{held['ID']}/modify", asked))
            assert pydicom.dcmread(other).file_meta.TransferSyntaxUID == syntax
            assert is_same_object(source, other)


def change_the_name(dataset: Any) -> None:
    dataset.PatientName = "Other^Name"


def change_an_item(dataset: Any) -> None:
    dataset.ReferencedImageSequence[1].ReferencedSOPInstanceUID = "1.2.4"


def change_a_private_element(dataset: Any) -> None:
    dataset[0x0029, 0x1001].value = "od"


def change_a_pixel(dataset: Any) -> None:
    dataset.PixelData = bytes([dataset.PixelData[0] ^ 1]) + dataset.PixelData[1:]


@pytest.mark.parametrize(
    "change", [change_the_name, change_an_item, change_a_private_element, change_a_pixel]
)
def test_an_object_that_was_changed_is_another(
    source: Path, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    dataset = pydicom.dcmread(source)
    change(dataset)
    dataset.save_as(tmp_path / "other.dcm")
    assert not is_same_object(source, tmp_path / "other.dcm")


@pytest.mark.parametrize("left", [0, 100, 200, 900])
def test_unreadable_object_is_not_the_same(source: Path, tmp_path: Path, left: int) -> None:
    other = tmp_path / "other.dcm"
    other.write_bytes(source.read_bytes()[:left])
    assert not is_same_object(source, other)
    assert not is_same_object(other, source)


def test_patients_who_differ_in_what_is_no_text_are_two(source: Path, tmp_path: Path) -> None:
    """A wrong character set, for instance, would decode both to one."""
    plain = source.read_bytes()
    assert plain.count(b"HOSP-4711") == 1
    plain = plain.replace(b"ISO_IR 100", b"ISO_IR 192")
    files = [tmp_path / "one", tmp_path / "other"]
    for file, letter in zip(files, (b"\xc4", b"\xdc"), strict=True):
        file.write_bytes(plain.replace(b"HOSP-4711", letter + b"OSP-4711"))
    assert not is_same_object(*files)
    assert is_same_object(files[0], files[0])
