"""Rules for every registered format: reading, headers, search, damaged files and results."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.dicom_phantoms import STORED
from support.format_samples import SAMPLES, Sample
from support.mutations import mutated, within_seconds

from cuda_cyclegan.io.choice import Choice, OutputFormat
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import ScanError, UnreadableScanError, WriteError
from cuda_cyclegan.io.formats.registry import FORMATS, format_named
from cuda_cyclegan.io.reading import read, read_each, read_grid, read_study_header
from cuda_cyclegan.io.volume import Derivation, Study, Volume
from cuda_cyclegan.io.writing import write

NAMES = [each.name for each in FORMATS]
SERIES = [name for name in NAMES if name not in ("dicom", "metaimage")]
"""Formats whose sample has several volumes."""
READ_ONLY = [each.name for each in FORMATS if each.writes is None]
DERIVATION = Derivation("model", "CT", "CT", "0", "0" * 64, STORED)
pytestmark = pytest.mark.filterwarnings("ignore:::nibabel")  # as the program does


@pytest.fixture
def sample(tmp_path: Path) -> Callable[[str], Sample]:
    def made(name: str) -> Sample:
        (tmp_path / "scans").mkdir()
        return SAMPLES[name](tmp_path / "scans")

    return made


def only(folder: Path, output: Path | None = None, wanted: OutputFormat = "same") -> Study:
    found = discover([folder], output, Choice(format=wanted))
    assert not found.skipped
    assert not found.ignored
    [study] = found.studies
    return study


def agree(volume: Volume, sample: Sample, index: int) -> None:
    expected = sample.values[index]
    np.testing.assert_allclose(volume.values(), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(volume.affine, sample.affine, atol=1e-4)


def test_every_format_has_a_sample() -> None:
    assert {*SAMPLES} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_search_finds_one_scan_with_all_of_its_files(
    name: str, sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    files = sample(name).files
    study = only(tmp_path / "scans")
    assert (study.format, set(study.files)) == (name, set(files))
    if name != "dicom":
        assert [only(file).files for file in files] == [files] * len(files)


@pytest.mark.parametrize("name", NAMES)
def test_each_volume_has_its_own_values(
    name: str, sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    """Volumes are read by number and in order: a scale of the first is not that of the second."""
    made = sample(name)
    study, count = only(tmp_path / "scans"), len(made.values)
    for index in range(count):
        agree(read(study, index), made, index)
    for index, volume in enumerate(read_each(study)):
        agree(volume, made, index)
        assert volume.further == ((count,) if count > 1 else ())
    assert index == count - 1


@pytest.mark.parametrize("name", NAMES)
def test_the_header_alone_states_what_is_read(
    name: str, sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    made = sample(name)
    study = only(tmp_path / "scans")
    for index in range(len(made.values)):
        grid, volume = read_grid(study, index), read(study, index)
        assert grid.extents[:3] == volume.shape
        assert (grid.voxel_type, grid.notes) == (volume.voxels.dtype, volume.notes)
        assert (grid.slope, grid.intercept) == (volume.slope, volume.intercept)
        assert grid.reading_bytes >= volume.voxels.nbytes
        np.testing.assert_array_equal(grid.affine, volume.affine)
    assert grid.volumes == len(made.values)
    if name != "dicom":
        assert read_study_header(study, every_volume=True).refusal is None


@pytest.mark.parametrize("name", SERIES)
def test_one_of_several_volumes_must_be_chosen(
    name: str, sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    sample(name)
    study = only(tmp_path / "scans")
    with pytest.raises(ScanError, match="contains 2 volumes"):
        read(study)
    with pytest.raises(ScanError, match="has no volume 2"):
        read(study, 2)
    assert "contains 2 volumes" in str(read_study_header(study).refusal)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_cut_short_or_empty_is_named(
    name: str, sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    file = sample(name).files[-1]
    content, study = file.read_bytes(), only(tmp_path / "scans")
    for kept in (0, len(content) // 2, len(content) - 100):
        file.write_bytes(content[:kept])
        with pytest.raises(UnreadableScanError) as caught:
            read(study, 0)
        assert str(file.name) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_header_is_read_or_refused(
    name: str, sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    file = sample(name).files[0]
    content, study = file.read_bytes(), only(tmp_path / "scans")
    for seed in range(25):
        file.write_bytes(mutated(content, seed, end=min(len(content), 1500)))
        with within_seconds(seed):
            for attempt in (read_grid, read):
                with suppress(ScanError):
                    attempt(study, 0)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in READ_ONLY])
def test_a_result_is_read_again(name: str, sample: Callable[[str], Sample], tmp_path: Path) -> None:
    made = sample(name)
    study = only(tmp_path / "scans", tmp_path / "results")
    assert study.blocker is None
    target = tmp_path / "results" / study.name
    target.parent.mkdir(parents=True)
    write(read(study, 0), target, DERIVATION)
    found = only(target)
    assert found.format == name
    agree(read(found), made, 0)


@pytest.mark.parametrize("name", READ_ONLY)
def test_a_result_of_what_is_only_read_has_a_format_that_is_chosen(
    name: str, sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    made, output = sample(name), tmp_path / "results"
    refused = only(tmp_path / "scans", output)
    with pytest.raises(WriteError, match="are only read; choose a name that ends"):
        write(read(refused, 0), tmp_path / refused.name)
    output.mkdir()
    for wanted in (each.writes for each in FORMATS if each.writes and not each.is_series):
        study = only(tmp_path / "scans", output, wanted)
        assert study.blocker is None
        target = output / study.name
        volume = read(study, 1)
        stored = volume.values().astype(np.float32)
        write(replace(volume, voxels=stored, slope=1.0, intercept=0.0), target)
        agree(read(only(target)), made, 1)
    assert only(tmp_path / "scans", output, "dicom").blocker is not None
    assert format_named(name).result_suffixes == ()


def test_a_series_of_afni_keeps_its_step_in_time(
    sample: Callable[[str], Sample], tmp_path: Path
) -> None:
    sample("afni")
    volume = read(only(tmp_path / "scans"), 0)
    assert format_named("afni").step_of(volume) == (2.5, "s")
