"""The registry of formats: every suffix and every choice of output has one format."""

from pathlib import Path
from typing import get_args

import pytest

from cuda_cyclegan.io.choice import OutputFormat
from cuda_cyclegan.io.formats.registry import (
    FORMATS,
    SUFFIXES,
    format_at,
    format_named,
    header_of,
    result_format,
)
from cuda_cyclegan.io.search import OTHER_SCANS, PACKED


def test_a_suffix_and_a_name_belong_to_one_format() -> None:
    suffixes = [end for each in FORMATS for end in (*each.suffixes, *each.voxel_suffixes)]
    assert len(set(suffixes)) == len(suffixes)
    assert not set(suffixes) & {*OTHER_SCANS, *PACKED}
    assert [format_named(each.name) for each in FORMATS] == list(FORMATS)
    for each in FORMATS:
        assert bool(each.result_suffixes) == (each.writes not in (None, "dicom"))
        assert set(each.result_suffixes) <= set(each.suffixes)


def test_each_format_of_results_has_a_format() -> None:
    asked = {each.writes for each in FORMATS if each.writes}
    assert asked == {*get_args(OutputFormat)} - {"same"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_name_has_the_format_of_its_suffix(suffix: str) -> None:
    found = format_at(Path(f"a.b{suffix.upper()}"))
    assert found is not None
    assert suffix in found.suffixes
    assert result_format("dicom", Path(f"a{suffix}")) is found
    assert header_of(Path(f"a{suffix}")) == Path(f"a{suffix}")


def test_a_folder_keeps_the_format_of_its_scan() -> None:
    assert format_at(Path("series-0004")) is None
    assert result_format("dicom", Path("series-0004")).is_series
    assert header_of(Path("A.IMG.gz")) == Path("A.HDR.gz")
