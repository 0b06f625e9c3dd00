"""Search of a folder of DICOM files: every series with its outcome and reason."""

import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.uid import RLELossless
from support.dicom_phantoms import PATIENT, Phantom, oblique, renamed, set_position

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.series import Series
from cuda_cyclegan.io.discovery import Discovery, discover

pydicom: Any = _pydicom
CT = Phantom()
MR = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0)


def found(folder: Path, choice: Choice = Choice()) -> Discovery:  # noqa: B008
    return discover([folder], folder.parent / "results", choice)


def only(folder: Path, choice: Choice = Choice()) -> Series:  # noqa: B008
    [series] = found(folder, choice).series
    return series


def test_series_are_told_apart_in_one_folder_of_files_without_suffix(tmp_path: Path) -> None:
    CT.write(tmp_path / "in", prefix="a")
    MR.write(tmp_path / "in", prefix="b")
    (tmp_path / "in" / "notes.txt").write_text("not DICOM")
    (tmp_path / "in" / "DICM").write_bytes(b"\0" * 200)
    found_here = found(tmp_path / "in")
    assert [(s.modality, s.images, s.verdict) for s in found_here.series] == [
        ("CT", 12, "taken"),
        ("MR", 12, "taken"),
    ]
    assert [study.format for study in found_here.studies] == ["dicom", "dicom"]
    assert found_here.ignored == 2


def test_a_result_is_a_folder_beside_its_sources_named_without_the_patient(tmp_path: Path) -> None:
    CT.write(tmp_path / "in" / "disc" / "st0" / "a")
    MR.write(tmp_path / "in" / "disc" / "st0" / "b")
    names = [study.name for study in found(tmp_path / "in").studies]
    assert [str(name.parent) for name in names] == ["disc/st0/a", "disc/st0/b"]
    assert all(re.fullmatch(r"series-000[34]-[0-9a-f]{8}", name.name) for name in names)


def test_a_series_over_several_folders_is_one(tmp_path: Path) -> None:
    for index, path in enumerate(CT.write(tmp_path / "in" / "x")):
        folder = tmp_path / "in" / "x" / f"part{index % 3}"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    [study] = found(tmp_path / "in").studies
    assert study.name.parent.as_posix() == "x"
    assert len(study.files) == 12


@pytest.mark.parametrize("uid", ["../../../etc/passwd", "/etc/passwd", "1.2\\..\\3", "a/b", ".."])
def test_no_uid_leads_out_of_the_output_folder(tmp_path: Path, uid: str) -> None:
    def edit(data: Any, _: int) -> None:
        data.add_new("SeriesInstanceUID", "LO", uid)

    CT.write(tmp_path / "in", edit)
    [study] = found(tmp_path / "in").studies
    assert re.fullmatch(r"series-0003-[0-9a-f]{8}", str(study.name))


def echoes(data: Any, _: int) -> None:
    renamed(data)
    data.EchoNumbers, data.EchoTime = 2, 90


def phase(data: Any, _: int) -> None:
    renamed(data)
    data.ImageType = ["ORIGINAL", "PRIMARY", "P"]


@pytest.mark.parametrize("edit", [echoes, phase])
def test_echoes_and_phase_images_of_one_series_are_apart(
    tmp_path: Path, edit: Callable[[Any, int], None]
) -> None:
    MR.write(tmp_path / "in", prefix="a")
    MR.write(tmp_path / "in", edit, prefix="b")
    first, second = found(tmp_path / "in").series
    assert (first.verdict, second.verdict) == ("taken", "taken")
    assert first.label.removesuffix("-1") == second.label.removesuffix("-2") != first.label


def test_orientations_of_one_series_are_apart_and_too_few_slices_are_left_out(
    tmp_path: Path,
) -> None:
    planes = [
        replace(MR, slices=3),
        replace(MR, slices=3, orientation=(1, 0, 0, 0, 0, -1), seed=1),
        replace(MR, slices=3, orientation=(0, 1, 0, 0, 0, -1), seed=2),
    ]
    for index, plane in enumerate(planes):
        plane.write(tmp_path / "in", lambda data, _: renamed(data), prefix=str(index))
    rows = found(tmp_path / "in").series
    assert [row.verdict for row in rows] == ["skipped"] * 3
    assert all(row.reason and "only 3 slices" in row.reason for row in rows)
    taken = found(tmp_path / "in", Choice(fewest_slices=3)).series
    assert [row.extents for row in taken] == [(24, 20, 3)] * 3


def test_time_points_are_volumes_of_one_series(tmp_path: Path) -> None:
    for time in range(3):

        def edit(data: Any, at: int, time: int = time) -> None:
            renamed(data)
            data.InstanceNumber = 12 * time + at + 1
            data.ContentTime = f"1010{time:02}"

        replace(MR, seed=time).write(tmp_path / "in", edit, prefix=f"t{time}")
    series = only(tmp_path / "in")
    assert series.verdict == "taken"
    assert len(series.volumes) == 3
    for time, volume in enumerate(series.volumes):
        assert {frame.file.name[:2] for frame in volume} == {f"t{time}"}


def write_volumes(folder: Path, edit: Callable[[Any, int, int], None]) -> None:
    """Three volumes of one series, with instance numbers at random."""
    numbers = np.random.default_rng(0).permutation(36)
    for volume in range(3):

        def each(data: Any, at: int, volume: int = volume) -> None:
            renamed(data)
            data.InstanceNumber = int(numbers[12 * volume + at])
            edit(data, at, volume)

        replace(MR, seed=volume).write(folder, each, prefix=f"v{volume}")


def gradient(data: Any, _: int, volume: int) -> None:
    data.DiffusionBValue = [0, 1000, 1000][volume]
    data.DiffusionGradientOrientation = [[0, 0, 0], [1, 0, 0], [0, 1, 0]][volume]


def time_point(data: Any, at: int, volume: int) -> None:
    data.TemporalPositionIdentifier = volume + 1
    data.TriggerTime = 40 * at  # which tells slices apart, not volumes


def heart_phase(data: Any, _: int, volume: int) -> None:
    data.TriggerTime = 250 * volume


@pytest.mark.parametrize("edit", [gradient, time_point, heart_phase])
def test_volumes_are_told_apart_by_what_their_headers_say(
    tmp_path: Path, edit: Callable[[Any, int, int], None]
) -> None:
    write_volumes(tmp_path / "in", edit)
    series = only(tmp_path / "in")
    assert series.verdict == "taken"
    found = [{frame.file.name[:2] for frame in volume} for volume in series.volumes]
    assert sorted(found, key=str) == [{"v0"}, {"v1"}, {"v2"}]


def test_volumes_that_no_header_shows_apart_are_refused(tmp_path: Path) -> None:
    write_volumes(tmp_path / "in", lambda *_: None)
    series = only(tmp_path / "in")
    assert series.verdict == "refused"
    assert series.reason is not None
    assert "each of its 12 positions has 3 images" in series.reason


def test_images_that_a_place_leaves_out_are_stated_in_the_result(tmp_path: Path) -> None:
    paths = CT.write(tmp_path / "in")
    other = pydicom.dcmread(paths[4])
    other.SOPInstanceUID = "1.2.3.4"
    other.save_as(tmp_path / "in" / "other")
    [series] = discover([tmp_path / "in"], None, Choice(allow_uneven=True)).series
    assert (series.verdict, series.incomplete) == (
        "taken",
        "the 13 images of the source had 12 positions, and the first of each was used",
    )


def test_copies_are_left_out_and_counted(tmp_path: Path) -> None:
    paths = CT.write(tmp_path / "in" / "a")
    (tmp_path / "in" / "b").mkdir()
    for path in paths[:5]:
        shutil.copy(path, tmp_path / "in" / "b" / path.name)
    series = only(tmp_path / "in")
    assert (series.verdict, series.images, series.duplicates) == ("taken", 12, 5)
    assert list(series.notes) == ["5 copies of images ignored"]


@pytest.mark.parametrize("what", ["header", "coding", "folder"])
def test_copies_with_other_content_are_reported(tmp_path: Path, what: str) -> None:
    """A whole series is right where it is; the pixels of the others are the same."""
    paths = CT.write(tmp_path / "in" / "a")
    other = pydicom.dcmread(paths[4])
    target = tmp_path / "in" / ("b" if what == "folder" else "a") / "other"
    target.parent.mkdir(exist_ok=True)
    shutil.copy(paths[3], target.with_name("same"))
    if what == "header":
        other.PatientComments = "another"
    elif what == "folder":
        other.PixelData = bytes(len(other.PixelData))
    else:
        other.compress(RLELossless, generate_instance_uid=False)
    other.save_as(target)
    assert only(tmp_path / "in").notes == (
        "2 copies of images ignored; 1 differ in content from the image that is used",
    )


def test_an_image_in_files_with_different_pixels_is_refused(tmp_path: Path) -> None:
    """The name of a file is no evidence: it would decide which one the result shows."""
    paths = CT.write(tmp_path / "in")
    other = pydicom.dcmread(paths[4])
    other.PixelData = bytes(len(other.PixelData))
    other.save_as(tmp_path / "in" / "0")
    series = only(tmp_path / "in")
    assert (series.verdict, series.is_incomplete) == ("refused", True)
    assert series.reason == (
        "files of one of its images have different pixels, and nothing shows which is right; "
        f"remove the wrong one of 0 or {paths[4].name}"
    )
    (tmp_path / "in" / "0").unlink()
    assert only(tmp_path / "in").verdict == "taken"


def test_slices_with_one_identifier_are_told_apart_by_their_places(tmp_path: Path) -> None:
    def anonymised(data: Any, _: int) -> None:
        data.SOPInstanceUID = "1.2.3.4"

    paths = CT.write(tmp_path / "in", anonymised)
    shutil.copy(paths[3], tmp_path / "in" / "copy")
    series = only(tmp_path / "in")
    assert (series.verdict, series.images) == ("taken", 12)
    assert series.notes == (
        "1 copy of images ignored",
        "its 12 images have 1 SOPInstanceUID between them; they are distinguished by their "
        "positions",
    )
    (tmp_path / "in" / "copy").unlink()
    paths[5].unlink()
    assert "1 of 12 slices are missing" in str(only(tmp_path / "in").reason)


@pytest.mark.parametrize("what", ["time", "echo", "number"])
def test_images_of_one_place_and_identifier_that_differ_are_no_copies(
    tmp_path: Path, what: str
) -> None:
    """Anonymised series over time have such images, which would be one volume of all moments."""
    for at in range(3):

        def edit(data: Any, slice_: int, at: int = at) -> None:
            data.SOPInstanceUID, data.InstanceNumber = "1.2.3.4", slice_ + 1
            if what == "time":
                data.TemporalPositionIdentifier = at + 1
            elif what == "echo":
                data.EchoTime, data.EchoNumbers = 10 * (at + 1), at + 1
            else:
                data.InstanceNumber = 12 * at + slice_ + 1

        replace(MR, seed=at).write(tmp_path / "in", edit, prefix="cab"[at])
    found = discover([tmp_path / "in"], None).series
    assert [each.verdict for each in found] == ["taken"] * len(found)
    volumes = [volume for each in found for volume in each.volumes]
    in_order = "abc" if what == "echo" else "cab"
    assert [{frame.file.name[0] for frame in each} for each in volumes] == list(map(set, in_order))


def test_images_that_nothing_but_their_pixels_shows_apart_are_refused(tmp_path: Path) -> None:
    def edit(data: Any, at: int) -> None:
        data.SOPInstanceUID, data.InstanceNumber = "1.2.3.4", at + 1

    for seed in range(2):
        replace(MR, seed=seed).write(tmp_path / "in", edit, prefix=f"{seed}-")
    series = only(tmp_path / "in")
    assert series.is_incomplete
    assert str(series.reason).startswith(
        "12 more images have the SOPInstanceUID and position of one of its 12 images but different"
    )


@pytest.mark.parametrize("beside", [0.0, 24.0])
def test_modalities_of_one_series_are_apart(tmp_path: Path, beside: float) -> None:
    """Some programs give all series of a PET/CT one identifier."""

    def edit(data: Any, _: int) -> None:
        data.SeriesInstanceUID, data.ImageType = CT.series, ["ORIGINAL", "PRIMARY", "AXIAL"]
        del data.EchoTime, data.EchoNumbers

    x, y, z = CT.origin
    CT.write(tmp_path / "in")
    other = replace(MR, origin=(x, y, z + beside), series="1.2.3.4.5.99")
    other.write(tmp_path / "in", edit, prefix="mr")
    found = discover([tmp_path / "in"], None).series
    assert [(each.modality, each.verdict, each.images) for each in found] == [
        ("CT", "taken", 12),
        ("MR", "taken", 12),
    ]
    assert [each.kind for each in found] == ["CT", "MR"]


def kind(modality: str = "CT", **values: Any) -> Callable[[Any, int], None]:
    def edit(data: Any, _: int) -> None:
        data.Modality = modality
        for name, value in values.items():
            setattr(data, name, value)

    return edit


def without(*names: str) -> Callable[[Any, int], None]:
    def edit(data: Any, _: int) -> None:
        for name in names:
            delattr(data, name)

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (kind(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), "it is a localizer"),
        (kind("MR", ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"]), "mosaic"),
        (kind("SR"), "it is a structured report"),
        (kind("PR"), "it is a presentation state"),
        (kind("SEG"), "it is a segmentation"),
        (kind("RTDOSE"), "it is a radiotherapy dose"),
        (kind("RTSTRUCT"), "it contains radiotherapy contours"),
        (kind("US"), "US images are not slices of a volume"),
        (kind(SamplesPerPixel=3, PhotometricInterpretation="RGB"), "it is a colour image"),
        (kind("MR", PhotometricInterpretation="PALETTE COLOR"), "it is a colour image"),
        (without("ImagePositionPatient"), "have no position in the patient"),
        (without("ImageOrientationPatient"), "have no position in the patient"),
        (without("PixelSpacing"), "have no position in the patient"),
        (without("Rows", "PixelData"), "it contains no image"),
    ],
)
def test_object_without_a_volume_is_skipped_with_the_reason(
    tmp_path: Path, edit: Callable[[Any, int], None], reason: str
) -> None:
    CT.write(tmp_path / "in", edit)
    found_here = found(tmp_path / "in")
    assert found_here.studies == ()
    [skip] = found_here.skipped
    assert reason in skip.reason


def test_a_dicomdir_stands_for_its_folder_and_is_no_scan(tmp_path: Path) -> None:
    directory = Path(str(get_testdata_file("DICOMDIR")))
    tree = tmp_path / "in"
    shutil.copytree(directory.parent, tree, ignore=shutil.ignore_patterns("*.dcm", "DICOMDIR-*"))
    by_file = discover([tree / "DICOMDIR"], None, Choice(fewest_slices=2))
    by_folder = discover([tree], None, Choice(fewest_slices=2))
    assert by_file == by_folder
    assert by_file.series
    assert not any(
        frame.file.name == "DICOMDIR" for s in by_file.series for v in s.volumes for frame in v
    )


def test_a_dicomdir_whose_records_run_in_a_circle_ends(tmp_path: Path) -> None:
    CT.write(tmp_path / "in")
    directory = pydicom.dcmread(get_testdata_file("DICOMDIR"))
    first = directory.OffsetOfTheFirstDirectoryRecordOfTheRootDirectoryEntity
    for record in directory.DirectoryRecordSequence:
        record.OffsetOfTheNextDirectoryRecord = first
        record.OffsetOfReferencedLowerLevelDirectoryEntity = first
    directory.save_as(tmp_path / "in" / "DICOMDIR")
    [study] = discover([tmp_path / "in" / "DICOMDIR"], None).studies
    assert len(study.files) == 12


def test_a_folder_that_contains_itself_ends(tmp_path: Path) -> None:
    CT.write(tmp_path / "in")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    assert only(tmp_path / "in").images == 12


@pytest.mark.parametrize(
    ("choice", "verdicts"),
    [
        (Choice(modalities=frozenset({"CT"})), ["taken", "skipped"]),
        (Choice(series=re.compile("PLAIN MR", re.IGNORECASE)), ["skipped", "taken"]),
        (Choice(series=re.compile("series-0003")), ["taken", "skipped"]),
        (Choice(fewest_slices=13), ["skipped", "skipped"]),
    ],
)
def test_filters_leave_series_out_and_report_it(
    tmp_path: Path, choice: Choice, verdicts: list[str]
) -> None:
    CT.write(tmp_path / "in", prefix="a")
    MR.write(tmp_path / "in", prefix="b")
    rows = found(tmp_path / "in", choice).series
    assert [row.verdict for row in rows] == verdicts
    assert all(row.reason and "setting " in row.reason for row in rows if row.verdict == "skipped")


def test_the_patient_is_named_only_where_that_is_asked_for(tmp_path: Path) -> None:
    CT.write(tmp_path / "in", lambda data, _: setattr(data, "SeriesDescription", PATIENT))
    paths = CT.write(
        tmp_path / "scout",
        kind(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"], SeriesDescription=PATIENT),
    )
    assert paths
    for folder in ("in", "scout"):
        quiet, loud = found(tmp_path / folder), found(tmp_path / folder, Choice(show_phi=True))
        assert PATIENT not in str([(s.name, s.files) for s in quiet.studies]) + str(quiet.skipped)
        assert all(PATIENT not in series.explanation for series in quiet.series)
        assert all(PATIENT in series.explanation for series in loud.series)


def test_a_file_that_cannot_be_opened_or_read_has_a_row(tmp_path: Path) -> None:
    paths = CT.write(tmp_path / "in")
    (tmp_path / "in" / "short").write_bytes(paths[0].read_bytes()[:200])
    reasons = {skip.path.name: skip.reason for skip in found(tmp_path / "in").skipped}
    assert "short" in reasons


def test_a_damaged_header_leaves_the_others_alone(tmp_path: Path) -> None:
    paths = CT.write(tmp_path / "in")
    content = bytearray(paths[3].read_bytes())
    content[200:400] = random.Random(1).randbytes(200)
    (tmp_path / "in" / "zz").write_bytes(content)
    found_here = found(tmp_path / "in")
    assert [series.images for series in found_here.series if series.verdict == "taken"][:1] == [12]


def test_oblique_series_are_taken(tmp_path: Path) -> None:
    oblique(CT).write(tmp_path / "in")
    assert only(tmp_path / "in").verdict == "taken"


def test_slices_that_may_be_left_out_evenly_have_a_note(tmp_path: Path) -> None:
    for at, path in enumerate(replace(CT, slices=24).write(tmp_path / "in")):
        if at % 2:
            path.unlink()
    series = only(tmp_path / "in")
    assert series.spacing[2] == 4.0
    assert series.notes == (
        "its images are numbered 1 to 23 in steps of 2; slices in between may be missing",
    )


def test_parts_that_number_their_images_in_turns_miss_none(tmp_path: Path) -> None:
    def echoes(data: Any, at: int) -> None:
        data.EchoTime, data.EchoNumbers = (10, 1) if at % 2 else (20, 2)
        set_position(data, (-30, -20, 2 * (at // 2)))

    replace(MR, slices=24).write(tmp_path / "in", echoes)
    assert [len(series.notes) for series in found(tmp_path / "in").series] == [1, 1]


def test_parts_that_only_their_rows_tell_apart_are_named_by_them(tmp_path: Path) -> None:
    def turned(data: Any, at: int) -> None:
        if at >= 12:
            data.ImageOrientationPatient = [-1, 0, 0, 0, 1, 0]

    replace(CT, slices=24).write(tmp_path / "in", turned)
    notes = [series.notes for series in found(tmp_path / "in").series]
    assert notes == [
        ("one of 2 parts of its series: orientation 1 0 0 0 1 0",),
        ("one of 2 parts of its series: orientation -1 0 0 0 1 0",),
    ]


def test_a_slice_of_another_size_refuses_the_series_with_the_figures(tmp_path: Path) -> None:
    CT.write(tmp_path / "in", prefix="a")

    def edit(data: Any, _: int) -> None:
        renamed(data)
        set_position(data, (-30, -20, 10 + 2 * 12))

    replace(CT, slices=1, rows=16, columns=16).write(tmp_path / "in", edit, prefix="b")
    series = only(tmp_path / "in")
    assert series.verdict == "refused"
    assert series.reason is not None
    assert "12 of 24 x 20 pixels" in series.reason
    assert "1 of 16 x 16 pixels" in series.reason


def test_parts_of_two_patients_series_in_one_folder_have_names_of_their_own(
    tmp_path: Path,
) -> None:
    """The two share a SeriesInstanceUID: a part of the first patient's is where the other's are."""
    for patient, echo, folder in (("1", 10, "a"), ("1", 90, "b"), ("2", 10, "a"), ("2", 90, "a")):

        def edit(data: Any, at: int, patient: str = patient, echo: int = echo) -> None:
            data.PatientID, data.EchoTime = patient, echo
            data.SOPInstanceUID = f"1.2.{patient}.{echo}.{at + 1}"

        MR.write(tmp_path / "in" / folder, edit, prefix=f"{patient}-{echo}-")
    studies = found(tmp_path / "in").studies
    assert [study.blocker for study in studies] == [None] * 4
    assert len({study.name for study in studies}) == 4
    plain = f"series-0004-{sha256(MR.series.encode()).hexdigest()[:8]}"
    assert [str(study.name) for study in studies][2:] == [f"a/{plain}-2", f"b/{plain}-2"]
