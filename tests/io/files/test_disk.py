"""Capacity of a disk, checked before anything is written there."""

from pathlib import Path

import pytest

from cuda_cyclegan.io.files.disk import takes_name

LONGEST = 255
"""Bytes of a name on every file system that tests run on."""


@pytest.mark.parametrize("folder", [".", "not/there/yet"])
@pytest.mark.parametrize(("letter", "most"), [("a", LONGEST), ("ü", LONGEST // 2)])
def test_a_name_that_is_too_long_is_reported_before_its_folder_is_there(
    tmp_path: Path, folder: str, letter: str, most: int
) -> None:
    assert takes_name(tmp_path / folder / (letter * most))
    assert not takes_name(tmp_path / folder / (letter * (most + 1)))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_on_the_way_may_have_the_name_that_is_too_long(tmp_path: Path) -> None:
    assert not takes_name(tmp_path / ("a" * (LONGEST + 1)) / "b.nii")
    assert not takes_name(tmp_path.joinpath(*["a" * LONGEST] * 20))


def test_names_of_folders_and_of_paths_below_a_file_are_taken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert takes_name(tmp_path)
    assert takes_name(tmp_path / "file")
    assert takes_name(tmp_path / "file" / "below")
