"""How often a search of many scans opens each, and decodes what its header says."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.io_files import save_nifti

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.file_headers import read_study_header
from cuda_cyclegan.io.files import control_groups

SCANS = 20


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
