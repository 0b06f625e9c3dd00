"""Private elements: gone from a derived series at every depth, or kept as they are if asked."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_judges import conformance_errors, is_part_10, judge
from support.dicom_phantoms import STORED, Phantom
from support.dicom_real import real_series

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.pixels.reading import DicomHeader
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation, Volume
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
IDENTITY = Derivation("identity", "CT", "CT", "0", "0" * 64, STORED)
REAL = (pytest.param("77654033/CT2", marks=pytest.mark.slow), "98892001/CT5N")
"""CT series of scanners, in pydicom's own test files."""


def taken(folder: Path, *, keep: bool) -> Volume:
    choice = Choice(fewest_slices=2, allow_uneven=True, keep_private=keep)
    [study] = discover([folder], None, choice).studies
    return read(study)


def derived(volume: Volume, folder: Path) -> list[Path]:
    write(volume, folder, IDENTITY)
    return sorted(folder.iterdir())


def private(dataset: Any) -> dict[int, Any]:
    """Private elements at the top, by tag."""
    return {int(element.tag): element for element in dataset if element.tag.is_private}


def everywhere(dataset: Any) -> Iterator[Any]:
    """All private elements, at any depth."""
    for element in dataset:
        if element.tag.is_private:
            yield element
        if element.VR == "SQ":
            for item in element.value:
                yield from everywhere(item)


def same(one: Any, other: Any) -> bool:
    """Whether two elements hold the same; a value without a known type is compared as bytes."""
    if one.VR == "SQ":
        return all(
            same(a, b)
            for item, its in zip(one.value, other.value, strict=True)
            for a, b in zip(item, its, strict=True)
        )
    return one.tag == other.tag and one.value == other.value


@pytest.mark.parametrize("name", REAL)
def test_nothing_private_is_left_unless_asked(name: str, tmp_path: Path) -> None:
    volume = taken(real_series(name), keep=False)
    header = volume.header
    assert isinstance(header, DicomHeader)
    assert not any(private(each) for each in header.headers)
    for path in derived(volume, tmp_path / "out"):
        assert list(everywhere(pydicom.dcmread(path))) == []


@pytest.mark.parametrize("name", REAL)
def test_kept_elements_are_those_of_their_own_slice(name: str, tmp_path: Path) -> None:
    volume = taken(real_series(name), keep=True)
    header = volume.header
    assert isinstance(header, DicomHeader)
    results = derived(volume, tmp_path / "out")
    files = {frame.instance: frame.file for frame in header.frames}
    sources = {
        instance: (private(pydicom.dcmread(file)), conformance_errors(file))
        for instance, file in files.items()
    }
    assert len(results) == len(header.frames)
    for path in results:
        result = pydicom.dcmread(path)
        instance = result.SourceImageSequence[0].ReferencedSOPInstanceUID
        (expected, old_faults), found = sources[instance], private(result)
        assert len(expected) > 90
        assert expected.keys() == found.keys()
        assert all(same(element, found[tag]) for tag, element in expected.items())
        assert conformance_errors(path) <= old_faults
    assert is_part_10(*results)


@pytest.mark.parametrize("syntax", ["--write-xfer-implicit", "--write-xfer-big"])
def test_elements_in_another_encoding_are_kept(syntax: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for path in real_series("98892001/CT5N").iterdir():
        subprocess.run([judge("dcmconv"), syntax, path, tmp_path / "in" / path.name], check=True)
    paths = derived(taken(tmp_path / "in", keep=True), tmp_path / "out")
    plain = derived(taken(real_series("98892001/CT5N"), keep=True), tmp_path / "plain")
    for path, original in zip(paths, plain, strict=True):
        expected, found = private(pydicom.dcmread(original)), private(pydicom.dcmread(path))
        assert expected.keys() == found.keys()
        differing = [hex(tag) for tag in expected if not same(expected[tag], found[tag])]
        assert differing == []


def marked(dataset: Any, value: str) -> None:
    dataset.private_block(0x2005, "MAKER 001", create=True).add_new(0x10, "LO", value)


def mark(path: Path) -> None:
    """Private elements at every place of an enhanced object that has some in real files."""
    dataset = pydicom.dcmread(path)
    marked(dataset, "object")
    marked(dataset.SharedFunctionalGroupsSequence[0], "shared")
    for at, groups in enumerate(dataset.PerFrameFunctionalGroupsSequence):
        marked(groups, f"frame {at}")
    dataset.save_as(path)


@pytest.mark.parametrize("keep", [True, False])
def test_an_enhanced_object_keeps_them_where_they_are(keep: bool, tmp_path: Path) -> None:
    path = tmp_path / "in" / "one"
    write_enhanced(Phantom("MR", intercept=0.0), path)
    mark(path)
    volume = taken(path.parent, keep=keep)
    to_mr = Derivation("identity", "T1", "MR", "0", "0" * 64, STORED)
    write(volume, tmp_path / "out", to_mr)
    [made] = (tmp_path / "out").iterdir()
    result = pydicom.dcmread(made)
    values = [element.value for element in everywhere(result) if element.VR == "LO"]
    header = volume.header
    assert isinstance(header, DicomHeader)
    frames = [f"frame {frame.number}" for frame in header.frames]
    creators = ["MAKER 001"] * (2 + len(frames))
    expected = ["object", "shared", *frames, *creators] if keep else []
    assert sorted(values) == sorted(expected)
    assert conformance_errors(made) <= conformance_errors(path)


def test_private_element_in_a_sequence_of_the_study_is_private_too(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        code = pydicom.Dataset()
        code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "1", "99X", "Head"
        marked(code, "Doe^Jane")
        data.ProcedureCodeSequence = [code]

    Phantom().write(tmp_path / "in", edit)
    for keep in (False, True):
        volume = taken(tmp_path / "in", keep=keep)
        made = pydicom.dcmread(derived(volume, tmp_path / f"out-{keep}")[0])
        assert made.ProcedureCodeSequence[0].CodeMeaning == "Head"
        assert bool(list(everywhere(made.ProcedureCodeSequence[0]))) == keep
