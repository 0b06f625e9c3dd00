"""Number of times that a search of many scans opens each and decodes its header."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.dicom_phantoms import Phantom
from support.io_files import save_nifti
from support.waiting import eventually

from cuda_cyclegan.io.choice import EVERYTHING
from cuda_cyclegan.io.dicom.header_scan import KnownHeaders
from cuda_cyclegan.io.discovery import Discovery, discover
from cuda_cyclegan.io.files import machine_limits
from cuda_cyclegan.io.reading import read_study_header

pydicom: Any = _pydicom
SCANS = 20
SLICES = 12


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each file was opened, by its name."""
    counts: Counter[str] = Counter()

    def count(place: Any) -> None:
        real = place.open

        def counted(path: Path | str, *arguments: Any, **named: Any) -> Any:
            counts[Path(path).name] += 1
            return real(path, *arguments, **named)

        monkeypatch.setattr(place, "open", counted)

    count(Path)
    count(os)  # as the opener of strangers' files does
    return counts


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often elements of DICOM were decoded, by their keyword."""
    counts: Counter[str] = Counter()
    real = pydicom.values.convert_value

    def counted(kind: str, raw: Any, *arguments: Any) -> Any:
        counts[pydicom.datadict.keyword_for_tag(raw.tag)] += 1
        return real(kind, raw, *arguments)

    monkeypatch.setattr(pydicom.values, "convert_value", counted)
    return counts


def test_files_are_opened_once_and_limits_of_memory_read_once_a_second(
    tmp_path: Path, opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: -1.0)  # a second that no machine is in
    names = [save_nifti(tmp_path / f"{number}.nii.gz").name for number in range(SCANS)]
    for study in discover([tmp_path], None).studies:
        assert read_study_header(study).refusal is None
    assert {name: opened[name] for name in names} == dict.fromkeys(names, 1)
    assert opened[machine_limits.MEMBERSHIP.name] == 2


def search(folder: Path, known: KnownHeaders | None = None) -> Discovery:
    return discover([folder], None, EVERYTHING, known)


def test_an_image_is_opened_once_and_what_its_series_shares_is_decoded_once(
    tmp_path: Path, opened: Counter[str], decoded: Counter[str]
) -> None:
    files = Phantom(series="1.2.3.4.5.20261123", slices=SLICES).write(tmp_path)
    opened.clear()
    [series] = search(tmp_path).series
    assert series.verdict == "taken"
    assert {file.name: opened[file.name] for file in files} == dict.fromkeys(opened, 1)
    shared = ("SeriesInstanceUID", "ImageOrientationPatient", "Rows", "PixelSpacing", "Modality")
    assert all(decoded[keyword] <= 1 for keyword in shared)
    assert decoded["SOPInstanceUID"] == len(files)


def wait_for_the_disks_clock(file: Path, beside: Path) -> None:
    """Wait until a change of the file would have another time than its last one."""

    def time_now() -> int:
        beside.write_bytes(b"")
        return beside.stat().st_ctime_ns

    eventually(lambda: time_now() > file.stat().st_ctime_ns)


def test_a_search_made_again_and_again_reads_what_changed(
    tmp_path: Path, opened: Counter[str]
) -> None:
    """The second time all is read again, as a file may change within a tick of its disk's clock."""
    files = Phantom().write(tmp_path / "in")
    known = KnownHeaders()
    first = search(tmp_path / "in", known)
    assert search(tmp_path / "in", known) == first
    opened.clear()
    assert search(tmp_path / "in", known) == first
    assert not opened

    wait_for_the_disks_clock(files[3], tmp_path / "clock")
    dataset = pydicom.dcmread(files[3])
    dataset.SeriesInstanceUID = "1.2.3.4.9"
    dataset.save_as(files[3])
    opened.clear()
    series = search(tmp_path / "in", known).series
    assert len(series) == 2
    assert set(opened) == {files[3].name}


def test_a_file_that_was_replaced_with_its_dates_is_read_again(tmp_path: Path) -> None:
    files = Phantom().write(tmp_path / "in")
    known = KnownHeaders()
    for _ in range(3):
        search(tmp_path / "in", known)
    state = files[3].stat()
    content = files[3].read_bytes()
    wait_for_the_disks_clock(files[3], tmp_path / "clock")
    files[3].write_bytes(content.replace(b"1.2.3.4.5", b"1.2.3.4.6"))
    os.utime(files[3], ns=(state.st_atime_ns, state.st_mtime_ns))
    assert search(tmp_path / "in", known) == search(tmp_path / "in")


def test_unreadable_scan_is_read_again_each_time(tmp_path: Path, opened: Counter[str]) -> None:
    files = Phantom().write(tmp_path)
    files[3].write_bytes(files[3].read_bytes()[:400])
    known = KnownHeaders()
    for _ in range(3):
        opened.clear()
        search(tmp_path, known)
    assert set(opened) == {files[3].name}
