"""Series that change between the search for them and their reading."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import UnreadableScanError
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Study

CT = Phantom()
OTHER = replace(CT, series="1.2.3.4.5.7", number=4)


def only_study(folder: Path) -> Study:
    [study] = discover([folder], None).studies
    return study


def upside_down(phantom: Phantom) -> Phantom:
    """The same identifiers and pixels, stored from the other end."""
    x, y, z = phantom.origin
    return replace(phantom, origin=(x, y, z + 22.0), step=(0.0, 0.0, -2.0))


@pytest.mark.parametrize("other", [upside_down(CT), OTHER])
def test_files_that_hold_other_images_by_the_time_they_are_read(
    tmp_path: Path, other: Phantom
) -> None:
    """The images would be placed where those found under their names were."""
    CT.write(tmp_path)
    study = only_study(tmp_path)
    other.write(tmp_path)
    with pytest.raises(UnreadableScanError, match="im000 has changed since it was found"):
        read(study)
    assert read(only_study(tmp_path)).shape[2] == 12


def test_an_enhanced_file_that_holds_another_object(tmp_path: Path) -> None:
    write_enhanced(CT, tmp_path / "one")
    study = only_study(tmp_path)
    read(study)
    write_enhanced(upside_down(CT), tmp_path / "one")
    with pytest.raises(UnreadableScanError, match="has changed since it was found"):
        read(study)


@pytest.mark.parametrize("more", [1, 3])
def test_a_series_that_grows_is_read_when_it_is_complete(tmp_path: Path, more: int) -> None:
    replace(CT, slices=12 - more).write(tmp_path)
    os.utime(tmp_path, (1, 1))  # kernels keep time in steps, and this test is fast
    study = only_study(tmp_path)
    CT.write(tmp_path)
    with pytest.raises(UnreadableScanError, match=f"{more} more of its images arrived after"):
        read(study)
    assert read(only_study(tmp_path)).shape[2] == 12


def arrives(folder: Path) -> None:
    OTHER.write(folder, prefix="other")


def is_described(folder: Path) -> None:
    (folder / "README.TXT").write_text("Viewer for Windows")


def gets_a_folder(folder: Path) -> None:
    CT.write(folder / "copy")


@pytest.mark.parametrize("change", [arrives, is_described, gets_a_folder])
def test_other_files_in_its_folder_leave_a_series_as_it_was(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    CT.write(tmp_path)
    os.utime(tmp_path, (1, 1))
    study = only_study(tmp_path)
    change(tmp_path)
    assert read(study).shape[2] == 12
