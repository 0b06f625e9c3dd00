"""How often a search of many scans opens each, and decodes what its header says."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.dicom_phantoms import Phantom
from support.io_files import save_nifti

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.file_headers import read_study_header
from cuda_cyclegan.io.files import control_groups

pydicom: Any = _pydicom
SCANS = 20
SLICES = 12


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was opened, by its name."""
    counts: Counter[str] = Counter()
    real = Path.open

    def counted(path: Path, *arguments: Any, **named: Any) -> Any:
        counts[path.name] += 1
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", counted)
    return counts


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often elements of DICOM were decoded, by their keyword."""
    counts: Counter[str] = Counter()
    real = pydicom.values.convert_value

    def counted(kind: str, raw: Any, *arguments: Any) -> Any:
        counts[pydicom.datadict.keyword_for_tag(raw.tag)] += 1
        return real(kind, raw, *arguments)

    monkeypatch.setattr(pydicom.values, "convert_value", counted)
    return counts


def test_files_are_opened_twice_and_limits_of_memory_read_once_a_second(
    tmp_path: Path, opened: Counter[str]
) -> None:
    names = [save_nifti(tmp_path / f"{number}.nii.gz").name for number in range(SCANS)]
    begun = time.monotonic()
    for study in discover([tmp_path], None).studies:
        assert read_study_header(study).refusal is None
    seconds = int(time.monotonic() - begun) + 2
    assert {name: opened[name] for name in names} == dict.fromkeys(names, 2)
    assert opened[control_groups.MEMBERSHIP.name] <= 2 * seconds < 2 * SCANS


def test_an_image_is_opened_once_and_what_its_series_shares_is_decoded_once(
    tmp_path: Path, opened: Counter[str], decoded: Counter[str]
) -> None:
    files = Phantom(series="1.2.3.4.5.20261123", slices=SLICES).write(tmp_path)
    [series] = discover([tmp_path], None).series
    assert series.verdict == "taken"
    assert {file.name: opened[file.name] for file in files} == dict.fromkeys(opened, 1)
    shared = ("SeriesInstanceUID", "ImageOrientationPatient", "Rows", "PixelSpacing", "Modality")
    assert all(decoded[keyword] <= 1 for keyword in shared)
    assert decoded["SOPInstanceUID"] == len(files)
