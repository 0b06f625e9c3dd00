"""Missing files that a DICOMDIR lists, numbers in headers, and objects that are not slices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.fileset import FileSet
from support.dicom_phantoms import Phantom
from support.dicom_real import real_series
from support.dicom_traps import CT, MR, Trap, check, findings, named

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.header_scan import KnownHeaders
from cuda_cyclegan.io.discovery import discover

pydicom: Any = _pydicom
SR = "1.2.840.10008.5.1.4.1.1.88.11"


def export(folder: Path, *phantoms: Phantom) -> list[Path]:
    """Series with a DICOMDIR as on a disk, whose images are named by it."""
    files: Any = FileSet()
    for at, phantom in enumerate(phantoms):
        for path in phantom.write(folder.parent / f"source{at}"):
            files.add(path)
    files.write(folder)
    files._stage["t"].cleanup()  # which the garbage collector warns about otherwise
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "DICOMDIR")


def of_series(paths: list[Path], phantom: Phantom) -> list[Path]:
    """Return the paths of one series, by instance number."""
    headers = {path: pydicom.dcmread(path, stop_before_pixels=True) for path in paths}
    own = [path for path in paths if headers[path].SeriesInstanceUID == phantom.series]
    return sorted(own, key=lambda path: int(headers[path].InstanceNumber))


def test_a_whole_export_is_taken(tmp_path: Path) -> None:
    export(tmp_path / "in", CT, MR)
    found = discover([tmp_path / "in"], None)
    check(found, Trap(CT.write, "taken taken", words="^None"))
    assert found.ignored == 1


@pytest.mark.parametrize("name", ["DICOMDIR", "dicomdir", "INDEX", "im000"])
def test_ends_that_a_directory_lists_are_missed(tmp_path: Path, name: str) -> None:
    paths = of_series(export(tmp_path / "in", CT, MR), CT)
    for path in paths[-2:]:
        path.unlink()
    (tmp_path / "in" / "DICOMDIR").rename(tmp_path / "in" / name)
    found = discover([tmp_path / "in"], None)
    words = f"2 of its 12 images listed in the DICOMDIR .*{paths[-2].name}, {paths[-1].name}"
    check(found, Trap(CT.write, "failed taken", "", words))
    assert "is used" not in "".join(note for row in found.series for note in row.notes)
    taken = discover([tmp_path / "in"], None, Choice(allow_uneven=True))
    check(taken, Trap(CT.write, "taken taken", "", "2 of its 12 .* the images present are used"))
    assert sorted(row.extents[2] for row in taken.series) == [10, 12]
    whole, part = sorted(study.incomplete for study in taken.studies)
    assert whole == ""
    assert part.startswith("the source was incomplete: 2 of its 12 images listed in the DICOMDIR")


def test_a_series_that_was_not_copied_is_not_missed(tmp_path: Path) -> None:
    for path in of_series(export(tmp_path / "in", CT, MR), MR):
        path.unlink()
    check(discover([tmp_path / "in"], None), Trap(CT.write, words="^None"))


def test_images_elsewhere_in_the_search_are_there(tmp_path: Path) -> None:
    for path in of_series(export(tmp_path / "in", CT), CT)[-2:]:
        (tmp_path / "in" / "more").mkdir(exist_ok=True)
        path.rename(tmp_path / "in" / "more" / path.name)
    check(discover([tmp_path / "in"], None), Trap(CT.write))


def test_another_directory_lists_nothing_of_a_series(tmp_path: Path) -> None:
    """The directory is in no folder around the series."""
    for path in of_series(export(tmp_path / "in", CT), CT)[-2:]:
        path.unlink()
    (tmp_path / "in" / "other").mkdir()
    (tmp_path / "in" / "DICOMDIR").rename(tmp_path / "in" / "other" / "DICOMDIR")
    check(discover([tmp_path / "in"], None), Trap(CT.write))


def in_a_circle(directory: Any) -> None:
    first = directory.OffsetOfTheFirstDirectoryRecordOfTheRootDirectoryEntity
    for record in directory.DirectoryRecordSequence:
        record.OffsetOfTheNextDirectoryRecord = first


def out_of_the_folder(directory: Any) -> None:
    for record in directory.DirectoryRecordSequence:
        if "ReferencedFileID" in record:
            record.ReferencedFileID = ["..", "..", "secret\0"]


def no_offsets(directory: Any) -> None:
    del directory.OffsetOfTheFirstDirectoryRecordOfTheRootDirectoryEntity


@pytest.mark.parametrize("damage", [in_a_circle, out_of_the_folder, no_offsets])
def test_a_damaged_directory_harms_no_series(tmp_path: Path, damage: Callable[[Any], None]) -> None:
    export(tmp_path / "in", CT)
    directory = pydicom.dcmread(tmp_path / "in" / "DICOMDIR")
    damage(directory)
    pydicom.filewriter.dcmwrite(tmp_path / "in" / "DICOMDIR", directory)
    check(discover([tmp_path / "in"], None), Trap(CT.write))


@pytest.mark.parametrize("length", [0, 100, 400, 1000])
def test_a_cut_directory_harms_no_series(tmp_path: Path, length: int) -> None:
    export(tmp_path / "in", CT)
    directory = tmp_path / "in" / "DICOMDIR"
    directory.write_bytes(directory.read_bytes()[:length])
    found = discover([tmp_path / "in"], None)
    assert [row.verdict for row in found.series] == ["taken"], findings(found)


def test_later_file_is_there_in_the_next_search(tmp_path: Path) -> None:
    last = of_series(export(tmp_path / "in", CT), CT)[-1]
    last.rename(tmp_path / "kept")
    known = KnownHeaders()
    for _ in range(3):
        [row] = discover([tmp_path / "in"], None, known=known).series
        assert row.is_incomplete
    (tmp_path / "kept").rename(last)
    [row] = discover([tmp_path / "in"], None, known=known).series
    assert row.verdict == "taken"


def test_a_real_directory_misses_nothing() -> None:
    found = discover([real_series(".")], None, Choice(fewest_slices=2))
    assert not any("DICOMDIR" in (row.reason or "") for row in found.series)


@pytest.mark.parametrize("keyword", ["ImagesInAcquisition", "NumberOfSlices"])
def test_numbers_of_images_that_are_not_there_are_a_note(tmp_path: Path, keyword: str) -> None:
    def edit(data: Any, _: int) -> None:
        named(data, **{keyword: 20})
        if keyword == "NumberOfSlices":
            data.SOPClassUID = pydicom.uid.PositronEmissionTomographyImageStorage
            data.Modality = "PT"

    MR.write(tmp_path, edit)
    check(discover([tmp_path], None), Trap(MR.write, words="20 images but 12 are present"))


def document(modality: str, sop_class: str) -> Any:
    data = pydicom.Dataset()
    data.SOPClassUID, data.SOPInstanceUID = sop_class, "1.2.3.77"
    if modality:
        data.Modality = modality
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    return data


@pytest.mark.parametrize("name", ["report.dcm", "im012"])
@pytest.mark.parametrize(
    ("modality", "sop_class"),
    [("SR", SR), ("", SR), ("PR", "1.2.840.10008.5.1.4.1.1.11.1"), ("KO", f"{SR[:-2]}59")],
)
def test_a_document_without_a_study_fails_no_series(
    tmp_path: Path, modality: str, sop_class: str, name: str
) -> None:
    CT.write(tmp_path)
    for path in list(tmp_path.iterdir()) if name.endswith(".dcm") else ():
        path.rename(path.with_suffix(".dcm"))
    document(modality, sop_class).save_as(tmp_path / name, enforce_file_format=True)
    found = discover([tmp_path], None)
    check(found, Trap(CT.write))
    [skip] = found.skipped
    assert (skip.path.name, skip.missed) == (name, False)


def test_an_object_of_unknown_kind_without_a_study_may_be_a_slice(tmp_path: Path) -> None:
    CT.write(tmp_path)
    document("CT", CT_IMAGE).save_as(tmp_path / "im012", enforce_file_format=True)
    check(discover([tmp_path], None), Trap(CT.write, "failed", "im012"))


CT_IMAGE = str(pydicom.uid.CTImageStorage)
