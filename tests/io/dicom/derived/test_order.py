"""A derived series is numbered as its source is, from head to feet or from feet to head."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import STORED, Edit, Phantom
from support.dicom_real import real_series

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
CT = Phantom(slices=6)
DERIVATION = Derivation("identity", "CT", "CT", "0", "0" * 64, STORED)
UP, DOWN = list(range(6)), list(range(5, -1, -1))


def derived(folder: Path, into: Path, derivation: Derivation = DERIVATION) -> list[Any]:
    """The objects of the result, by the names of their files."""
    [study] = discover([folder], None, Choice(fewest_slices=2, allow_uneven=True)).studies
    write(read(study), into, derivation)
    return [pydicom.dcmread(path) for path in sorted(into.iterdir())]


def numbered(numbers: Sequence[int | None]) -> Edit:
    def edit(data: Any, at: int) -> None:
        data.InstanceNumber = numbers[at]
        if numbers[at] is None:
            del data.InstanceNumber

    return edit


def sources(made: Sequence[Any]) -> list[int]:
    """Places in the stack, from 0, of the sources of images that are in instance order."""
    assert [data.InstanceNumber for data in made] == list(range(1, len(made) + 1))
    uids = [data.SourceImageSequence[0].ReferencedSOPInstanceUID for data in made]
    return [int(uid.rpartition(".")[2]) - 1 for uid in uids]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1, 2, 3, 4, 5, 6], UP),
        ([6, 5, 4, 3, 2, 1], DOWN),
        ([115, 90, 70, 30, 9, 3], DOWN),
        ([1, 4, 2, 5, 3, 6], [0, 2, 4, 1, 3, 5]),
        ([None] * 6, UP),
        ([3] * 6, UP),
        ([9, 8, 8, 7, 7, 6], DOWN),
        ([1, 2, 3, 1, 2, 3], UP),
    ],
    ids=[
        "up",
        "down",
        "with gaps",
        "interleaved",
        "missing",
        "equal",
        "partly equal",
        "begun anew",
    ],
)
def test_images_are_numbered_in_the_order_of_the_source(
    tmp_path: Path, numbers: Sequence[int | None], expected: list[int]
) -> None:
    CT.write(tmp_path / "in", numbered(numbers))
    made = derived(tmp_path / "in", tmp_path / "out")
    assert sources(made) == expected
    for data, at in zip(made, expected, strict=True):
        assert list(data.ImagePositionPatient) == list(CT.positions()[at])
        assert (data.pixel_array == CT.voxels()[at]).all()


def test_a_resampled_series_runs_as_its_source_does(tmp_path: Path) -> None:
    tilted = replace(CT, step=(0.0, 0.5, 2.0))
    tilted.write(tmp_path / "in", numbered([6, 5, 4, 3, 2, 1]))
    made = derived(tmp_path / "in", tmp_path / "out")
    heights = [data.ImagePositionPatient[2] for data in made]
    assert heights == sorted(heights, reverse=True)
    assert len(heights) == 6


@pytest.mark.parametrize("target", ["MR", "CT"])
def test_frames_of_an_enhanced_source_keep_their_order(tmp_path: Path, target: str) -> None:
    """Frames run from top to bottom, against the stack."""
    phantom = replace(CT, modality="MR", intercept=0.0)
    path = tmp_path / "in" / "one"
    write_enhanced(phantom, path)
    source = pydicom.dcmread(path)
    source.ImagePositionPatient = [0, 0, 0]  # which some makers leave beside those of the frames
    source.save_as(path)
    made = derived(tmp_path / "in", tmp_path / "out", replace(DERIVATION, target=target))
    if target == "MR":
        frames = list(made[0].PerFrameFunctionalGroupsSequence)
        origins = [frame.DerivationImageSequence[0] for frame in frames]
        places = [frame.PlanePositionSequence[0] for frame in frames]
        in_stack = [frame.FrameContentSequence[0].InStackPositionNumber for frame in frames]
        assert in_stack == [1, 2, 3, 4, 5, 6]
        pixels = list(made[0].pixel_array)
    else:
        origins, places, pixels = made, made, [data.pixel_array for data in made]
    numbers = [origin.SourceImageSequence[0].ReferencedFrameNumber for origin in origins]
    assert numbers == [1, 2, 3, 4, 5, 6]
    for place, values, at in zip(places, pixels, DOWN, strict=True):
        assert list(place.ImagePositionPatient) == list(phantom.positions()[at])
        assert (values == phantom.voxels()[at]).all()


@pytest.mark.parametrize("runs", ["downwards", "upwards"])
def test_a_real_series_of_either_direction(tmp_path: Path, runs: str) -> None:
    """The scanner numbered it downwards."""
    (tmp_path / "in").mkdir()
    originals: list[Any] = []
    for path in real_series("98892001/CT5N").iterdir():
        data = pydicom.dcmread(path)
        if runs == "upwards":
            data.InstanceNumber = 100 - data.InstanceNumber
        data.save_as(tmp_path / "in" / path.name)
        originals.append(data)
    originals.sort(key=lambda data: data.InstanceNumber)
    heights = [float(data.ImagePositionPatient[2]) for data in originals]
    assert heights == sorted(heights, reverse=runs == "downwards")
    made = derived(tmp_path / "in", tmp_path / "out")
    assert [data.SourceImageSequence[0].ReferencedSOPInstanceUID for data in made] == [
        data.SOPInstanceUID for data in originals
    ]
    for data, original in zip(made, originals, strict=True):
        assert data.ImagePositionPatient == original.ImagePositionPatient
