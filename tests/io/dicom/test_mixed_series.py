"""One scan that seems to be several, and several that seem to be one: a table of traps."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydicom.uid import generate_uid
from support.dicom_phantoms import Phantom, renamed, set_position
from support.dicom_traps import CT, MR, Build, Trap, both, check, edited, named

from cuda_cyclegan.io.discovery import discover


def again(phantom: Phantom = MR, prefix: str = "b", **values: Any) -> Build:
    """The same slices once more, as other images."""

    def edit(data: Any, _: int) -> None:
        renamed(data)
        named(data, **values)

    def build(folder: Path) -> None:
        phantom.write(folder, edit, prefix=prefix)

    return build


def copied(count: int, to: str = "again") -> Build:
    def build(folder: Path) -> None:
        for path in CT.write(folder / "ct")[:count]:
            made = folder / to / f"{path.name}{'' if to == 'again' else ' 2'}"
            made.parent.mkdir(exist_ok=True)
            shutil.copy(path, made)

    return build


def flags(*add_ons: str) -> list[str]:
    return ["ORIGINAL", "PRIMARY", "M", *add_ons]


def other_owner(**values: str) -> Build:
    return both(MR.write, again(**values))


def on_one_place(data: Any, _: int) -> None:
    set_position(data, (-30, -20, 10))


def turned(data: Any, at: int) -> None:
    if at == 11:
        data.ImageOrientationPatient = [1, 0, 0, 0, 0.99998, 0.006]


MIXED: dict[str, Trap] = {
    # one scan that seems to be several
    "echo times with an error": Trap(
        edited(lambda data, at: named(data, EchoTime=f"{30 + 0.0014 * (at % 2):.4f}"))
    ),
    "echo times that drift": Trap(
        edited(lambda data, at: named(data, EchoTime=f"{30 + 0.005 * at:.3f}"))
    ),
    "two echoes 0.1 ms apart": Trap(
        both(MR.write, again(EchoTime=10.1)), "taken taken", "", "echo time 10.1 ms"
    ),
    "echoes in turn": Trap(
        edited(lambda data, at: named(data, EchoTime=10 + at % 2)), "refused", "", "10 to 11 ms"
    ),
    "an echo a slice": Trap(
        edited(lambda data, at: named(data, EchoTime=10 + at)), "refused", "", "12 slices share"
    ),
    "the last echo differs": Trap(
        edited(lambda data, at: named(data, EchoTime=10 + at // 11)), "refused", "", "echo time"
    ),
    "two slabs of other echoes": Trap(
        edited(lambda data, at: named(data, EchoTime=10 + at // 12), replace(MR, slices=24)),
        "taken taken",
        "",
        "one of 2 parts of its series: echo time 11 ms",
    ),
    "add-ons in turn": Trap(
        edited(lambda data, at: named(data, ImageType=flags(*["NORM"] * (at % 2)))),
        words="differ in their image type .NORM on some",
    ),
    "add-ons on one half": Trap(
        edited(lambda data, at: named(data, ImageType=flags(*["NORM"] * (at // 6)))),
        words="treated as one volume",
    ),
    "add-ons on one slice": Trap(
        edited(lambda data, at: named(data, ImageType=flags(*["DIS2D"] * (at == 3))))
    ),
    "an add-on a slice": Trap(edited(lambda data, at: named(data, ImageType=flags(f"CHUNK{at}")))),
    "add-ons on a second scan": Trap(
        both(MR.write, again(ImageType=flags("NORM"))), "taken taken", "", "2 parts"
    ),
    "magnitude and phase": Trap(
        both(MR.write, again(ImageType=["ORIGINAL", "PRIMARY", "P"])),
        "taken taken",
        "",
        "None phase",
    ),
    "magnitude and phase in turn": Trap(
        edited(lambda data, at: named(data, ImageType=["ORIGINAL", "PRIMARY", "MP"[at % 2]])),
        "refused",
        "",
        "what they show .magnitude, phase",
    ),
    "the last slice turned": Trap(edited(turned), "refused", "", "orientation .by 0.34 degrees"),
    # whose it is
    "another patient": Trap(
        other_owner(PatientID="other"), "taken taken", "", "handled separately"
    ),
    "another study": Trap(
        other_owner(StudyInstanceUID="1.9"), "taken taken", "", "handled separately"
    ),
    "another frame of reference": Trap(
        other_owner(FrameOfReferenceUID="1.9"), "taken taken", "", "frame of reference 2"
    ),
    "a frame of reference a file": Trap(
        edited(lambda data, _: named(data, FrameOfReferenceUID=generate_uid())),
        "refused",
        "",
        "frame of reference .12 of them",
    ),
    # geometry
    "all at one place": Trap(edited(on_one_place), "skipped", "", "12 images all have the same"),
    "no directions": Trap(
        edited(lambda data, _: named(data, ImageOrientationPatient=[0] * 6)),
        "refused",
        "",
        r"its orientation vectors are not perpendicular \(0, 0",
    ),
    "equal directions": Trap(
        edited(lambda data, _: named(data, ImageOrientationPatient=[1, 0, 0, 1, 0, 0])), "refused"
    ),
    "pixels of no size": Trap(
        edited(lambda data, _: named(data, PixelSpacing=[0, 0])), "refused", "", "pixels are 0 x 0"
    ),
    "pixels of negative size": Trap(
        edited(lambda data, _: named(data, PixelSpacing=[-1, 1])), "refused"
    ),
    "one slice's pixels of no size": Trap(
        edited(lambda data, at: named(data, PixelSpacing=[at and 1, 1])), "refused"
    ),
    "a slice gone": Trap(
        both(CT.write, lambda folder: (folder / "im005").unlink()), "refused", "", "1 of 12 slices"
    ),
    # copies
    "copies in the folder": Trap(copied(5, "ct"), words="5 copies of images ignored"),
    "some copies elsewhere": Trap(copied(5), words="5 copies of images ignored"),
    "all of it elsewhere": Trap(copied(12), "taken taken"),
}


@pytest.mark.parametrize("name", MIXED)
def test_outcome_of_a_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    MIXED[name].build(folder)
    check(discover([folder], tmp_path / "results"), MIXED[name])


def test_the_table_is_long_enough() -> None:
    assert len(MIXED) >= 28


def test_equal_identifiers_of_two_patients_in_one_folder_have_two_results(tmp_path: Path) -> None:
    other_owner(PatientID="HOSP-0815")(tmp_path / "in")
    names = [str(study.name) for study in discover([tmp_path / "in"], None).studies]
    assert len(set(names)) == 2
    assert all("0815" not in name for name in names)


def test_joined_slices_are_one_volume_in_order(tmp_path: Path) -> None:
    MIXED["add-ons in turn"].build(tmp_path / "in")
    [series] = discover([tmp_path / "in"], None).series
    assert series.extents == (24, 20, 12)
    assert series.spacing[2] == pytest.approx(2.0)
    [volume] = series.volumes
    assert [frame.file.name for frame in volume] == [f"im{at:03}" for at in range(12)]
