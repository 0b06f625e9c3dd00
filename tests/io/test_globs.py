"""Patterns of paths: what each fits, by itself and by a folder around it."""

from pathlib import PurePath

import pytest

from cuda_cyclegan.io.choice import EXCLUDED, NOT_INCLUDED, PathGlobs


@pytest.mark.parametrize(
    ("pattern", "place", "fits"),
    [
        ("*_T1w.nii.gz", "sub-01/anat/sub-01_T1w.nii.gz", True),
        ("*_T1w.nii.gz", "sub-01_T1w.nii.gz", True),
        ("*_T1w", "sub-01_T1w.nii.gz", False),
        ("derivatives", "derivatives/a/b.nii", True),
        ("derivatives/", "x/derivatives/b.nii", True),
        ("derivatives", "derivatives2/b.nii", False),
        ("sub-0[12]/*", "sub-02/anat/a.nii", True),
        ("sub-0[12]/*", "x/sub-02/a.nii", False),
        ("sub-??/anat", "sub-01/anat/a.nii", True),
        ("*/a.nii", "x/y/a.nii", False),
        ("**/a.nii", "x/y/a.nii", True),
        ("**/a.nii", "a.nii", True),
        ("x/**/a.nii", "x/a.nii", True),
        ("x/**", "x/y/a.nii", True),
        ("x/**", "y/a.nii", False),
        ("./x/a.nii", "x/a.nii", True),
        ("A.nii", "a.nii", False),
        ("[", "[", True),
        ("**/**/**/**/**/z", "/".join("a" * 60), False),
    ],
)
def test_a_pattern_fits_a_path_or_a_folder_around_it(pattern: str, place: str, fits: bool) -> None:
    assert PathGlobs(exclude=(pattern,)).excludes(PurePath(place)) is fits
    assert PathGlobs((pattern,)).refusal(PurePath(place)) == (None if fits else NOT_INCLUDED)


def test_excluded_path_is_omitted_from_included_ones() -> None:
    globs = PathGlobs(("*.nii", "*.mha"), ("b*",))
    places = {name: globs.refusal(PurePath(name)) for name in ("a.nii", "b.nii", "a.mha", "a.nrrd")}
    assert places == {"a.nii": None, "b.nii": EXCLUDED, "a.mha": None, "a.nrrd": NOT_INCLUDED}


def test_a_series_fits_by_its_label_or_by_all_of_its_files() -> None:
    label, files = PurePath("ct/series-0003-ab"), [PurePath("ct/1.dcm"), PurePath("ct/2.dcm")]
    assert PathGlobs(("*.dcm",)).refusal(label, files) is None
    assert PathGlobs(("1.dcm",)).refusal(label, files) == NOT_INCLUDED
    assert PathGlobs(exclude=("1.dcm",)).refusal(label, files) is None
    assert PathGlobs(exclude=("series-0003-*",)).refusal(label, files) == EXCLUDED


@pytest.mark.parametrize(
    ("pattern", "note"),
    [
        ("*_T1w.nii", ""),
        ("sub-0[12]", ""),
        ("sub-0[!1]", 'pattern "sub-0[!1]" of setting include matches no scan'),
        (
            "/data/sub-01",
            'pattern "/data/sub-01" of setting include matches no scan; patterns are relative to '
            "the input folder, with / between folders",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_is_noted(pattern: str, note: str) -> None:
    found = PathGlobs(include=(pattern,)).unmatched([PurePath("sub-01/sub-01_T1w.nii")])
    assert "".join(found) == note
