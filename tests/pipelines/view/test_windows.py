"""Windows by name: of CT in HU by level and width, of all else by percentiles."""

from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.dicom_phantoms import Phantom

from cuda_cyclegan.io.discovery import find_scan
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.pipelines.view.windows import Windows, modality_of, windows_of

nibabel: Any = _nibabel


def windows(path: Path, voxels: Any) -> Windows:
    nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(path)
    study = find_scan(path)
    return windows_of(read(study, 0), modality_of(study))


HEAD = np.linspace(-1000, 1500, 8000).reshape(20, 20, 20).astype(np.int16)


def test_a_ct_has_its_windows_in_hu(tmp_path: Path) -> None:
    found = windows(tmp_path / "sub-01_ct.nii", HEAD)
    assert found.unit == "HU"
    ends = {one.name: (one.low, one.high) for one in found.presets}
    assert ends["Brain"] == (0, 80)
    assert ends["Lung"] == (-1350, 150)
    assert ends.keys() == {"Brain", "Bone", "Lung", "Soft tissue", "Liver"}


@pytest.mark.parametrize(
    ("name", "voxels"),
    [("sub-01_T1w.nii", HEAD), ("a.nii", HEAD), ("sub-01_ct.nii", HEAD - HEAD.min())],
    ids=["MR", "unknown", "CT without air"],
)
def test_without_evidence_of_hu_there_is_no_unit(tmp_path: Path, name: str, voxels: Any) -> None:
    found = windows(tmp_path / name, voxels)
    assert found.unit == ""
    assert found.presets[0].name == "0.5 to 99.5 %"
    middle = next(one for one in found.presets if one.name == "5 to 95 %")
    assert (middle.low, middle.high) == pytest.approx(np.percentile(voxels, [5, 95]), abs=20)


def test_an_image_of_one_value_or_none_has_no_presets(tmp_path: Path) -> None:
    assert windows(tmp_path / "a.nii", np.full((4, 4, 4), 7, np.int16)).presets == ()
    assert windows(tmp_path / "b.nii", np.full((4, 4, 4), np.nan, np.float32)).presets == ()


def test_dicom_says_its_modality(tmp_path: Path) -> None:
    Phantom(modality="CT").write(tmp_path / "ct")
    assert modality_of(find_scan(tmp_path / "ct")) == "CT"
