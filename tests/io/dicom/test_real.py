"""Every series below the folder in CUDA_CYCLEGAN_DICOM through reading, writing and the judges."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dicom_judges import canonical, conformance_errors, converted, is_part_10

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.pixels.reading import DicomHeader
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation, Study, Volume
from cuda_cyclegan.io.writing import write

FOLDER = os.environ.get("CUDA_CYCLEGAN_DICOM")
CHOICE = Choice(fewest_slices=2)


def studies() -> list[Any]:
    if FOLDER is None:
        return [pytest.param(None, marks=pytest.mark.skip("CUDA_CYCLEGAN_DICOM names no folder"))]
    found = discover([Path(FOLDER)], None, CHOICE)
    taken = {series.label for series in found.series if series.verdict == "taken"}
    return [
        pytest.param(study, id=str(study.name))
        for study in found.studies
        if study.format == "dicom" and study.name.name in taken
    ]


def rounding(volume: Volume, header: DicomHeader) -> float:
    """Return the largest distance of positions in the headers from the grid."""
    at = np.arange(len(header.frames))[:, None]
    grid = volume.affine[:3, 3] + at * volume.affine[:3, 2]
    positions = np.array([frame.position for frame in header.frames]) * [-1, -1, 1]
    return float(np.abs(grid - positions).max())


@pytest.mark.parametrize("study", studies())
def test_a_series_keeps_geometry_and_voxels_and_gains_no_fault(
    study: Study, tmp_path: Path
) -> None:
    volume = read(study, 0)
    header = volume.header
    assert isinstance(header, DicomHeader)
    modality = header.series.modality
    write(
        volume,
        tmp_path / "out",
        Derivation("identity", modality, modality, "0", "0" * 64, newest_source=0),
    )
    results = sorted((tmp_path / "out").iterdir())
    old_faults = conformance_errors(header.frames[0].file)
    for path in (results[0], results[-1]):
        assert conformance_errors(path) <= old_faults
        assert is_part_10(path)
    (tmp_path / "in").mkdir()
    for index, path in enumerate(dict.fromkeys(frame.file for frame in header.frames)):
        shutil.copy(path, tmp_path / "in" / f"{index:04}.dcm")
    [derived] = converted(tmp_path / "out", tmp_path / "after")
    # dcm2niix extrapolates from two slices, and so their rounding with them.
    tolerance = 1e-4 + 2 * rounding(volume, header) * len(header.frames)
    expected = canonical(volume.values(), volume.affine)
    spread = np.ptp(expected.get_fdata()) / 65535
    np.testing.assert_allclose(derived.affine, expected.affine, atol=tolerance)
    np.testing.assert_allclose(derived.get_fdata(), expected.get_fdata(), atol=spread)
    sources = converted(tmp_path / "in", tmp_path / "before")
    same = [
        image
        for image in (each if each.ndim == 3 else each.slicer[..., 0] for each in sources)
        if image.shape == derived.shape
        and np.allclose(image.affine, derived.affine, atol=tolerance)
        and np.allclose(image.get_fdata(), derived.get_fdata(), atol=spread)
    ]
    assert same, "dcm2niix makes nothing of the source that equals the result"
