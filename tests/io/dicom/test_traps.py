"""What may lie in a folder with a series, and what must come of it: a table of traps."""

import gzip
import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.uid import generate_uid
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom, renamed, set_position
from support.io_users import open_folder, ordinary_user

from cuda_cyclegan.io.discovery import Discovery, discover

pydicom: Any = _pydicom
Build = Callable[[Path], None]
CT = Phantom()
MR = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0)
PIXELS = b"\xe0\x7f\x10\x00"


@dataclass(frozen=True)
class Trap:
    """verdicts: of all rows, with "failed" for series of which something cannot be read.

    missed: names of files and folders that are failures of their own. words: in some reason or
    note, as a pattern.
    """

    build: Build
    verdicts: str = "taken"
    missed: str = ""
    words: str = ""


def verdicts(found: Discovery) -> str:
    rows = ["failed" if row.is_incomplete else row.verdict for row in found.series]
    obstacles = [study.obstacle for study in found.studies if study.obstacle]
    assert len(obstacles) == rows.count("failed")
    assert all(obstacle.kind == "unreadable" for obstacle in obstacles)
    return " ".join(sorted(rows))


def missed(found: Discovery) -> str:
    return " ".join(sorted(row.path.name for row in found.skipped if row.missed))


def told(found: Discovery) -> str:
    rows = [*(f"{row.reason} {row.kind} {' '.join(row.notes)}" for row in found.series)]
    return "\n".join([*rows, *(row.reason for row in found.skipped)])


def check(found: Discovery, trap: Trap) -> None:
    assert (verdicts(found), missed(found)) == (trap.verdicts, trap.missed), told(found)
    assert re.search(trap.words, told(found)), told(found)


def damaged(change: Callable[[bytes], bytes], name: str = "im011", phantom: Phantom = CT) -> Build:
    """A series of which one slice holds what `change` makes of it."""

    def build(folder: Path) -> None:
        phantom.write(folder)
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return build


def beside(name: str, content: bytes = b"some text", phantom: Phantom = CT) -> Build:
    def build(folder: Path) -> None:
        phantom.write(folder)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return build


def edited(edit: Callable[[Any, int], object], phantom: Phantom = MR) -> Build:
    def build(folder: Path) -> None:
        phantom.write(folder, lambda data, at: edit(data, at) and None)

    return build


def named(data: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(data, name, value)


def both(*builds: Build) -> Build:
    def build(folder: Path) -> None:
        for each in builds:
            each(folder)

    return build


def again(phantom: Phantom = MR, prefix: str = "b", **values: Any) -> Build:
    """The same slices once more, as other images."""

    def edit(data: Any, _: int) -> None:
        renamed(data)
        named(data, **values)

    def build(folder: Path) -> None:
        phantom.write(folder, edit, prefix=prefix)

    return build


def files_named(name: Callable[[int], str], change: Callable[[bytes], bytes]) -> Build:
    """A series with such names, whose last slice is damaged."""

    def build(folder: Path) -> None:
        for at, path in enumerate(CT.write(folder)):
            made = folder / name(at)
            made.parent.mkdir(parents=True, exist_ok=True)
            path.rename(made)
            if at == 11:
                made.write_bytes(change(made.read_bytes()))

    return build


def a_pipe(folder: Path) -> None:
    CT.write(folder)
    os.mkfifo(folder / "im012")


def a_socket(folder: Path) -> None:
    CT.write(folder)
    here = Path.cwd()
    os.chdir(folder)  # as the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("im012")
    finally:
        os.chdir(here)


def a_link(target: str, name: str = "im012") -> Build:
    def build(folder: Path) -> None:
        CT.write(folder)
        (folder / name).symlink_to(target)

    return build


def two_series(damaged_name: str, prefixes: tuple[str, str] = ("ct", "mr")) -> Build:
    def build(folder: Path) -> None:
        CT.write(folder, prefix=prefixes[0])
        MR.write(folder, prefix=prefixes[1])
        (folder / damaged_name).write_bytes(b"")

    return build


def elsewhere(folder: Path) -> None:
    """Twelve empty files named as the slices in another folder."""
    for path in CT.write(folder / "a"):
        (folder / "b").mkdir(exist_ok=True)
        (folder / "b" / path.name).touch()


def in_two_folders(change: Callable[[Path], object]) -> Build:
    def build(folder: Path) -> None:
        CT.write(folder / "ct")
        MR.write(folder / "mr")
        change(folder / "mr" / "im012")

    return build


def copied(count: int, to: str = "again") -> Build:
    def build(folder: Path) -> None:
        for path in CT.write(folder / "ct")[:count]:
            made = folder / to / f"{path.name}{'' if to == 'again' else ' 2'}"
            made.parent.mkdir(exist_ok=True)
            shutil.copy(path, made)

    return build


def enhanced(change: Callable[[bytes], bytes]) -> Build:
    def build(folder: Path) -> None:
        write_enhanced(MR, folder / "one")
        (folder / "one").write_bytes(change((folder / "one").read_bytes()))

    return build


def fewer_frames_described(folder: Path) -> None:
    write_enhanced(MR, folder / "one")
    data = pydicom.dcmread(folder / "one")
    del data.PerFrameFunctionalGroupsSequence[-1]
    data.save_as(folder / "one")


def labelled(folder: Path) -> None:
    """Label and control that differ in their dimension index alone."""
    write_enhanced(MR, folder / "one", times=2)
    data = pydicom.dcmread(folder / "one")
    data.DimensionIndexSequence = [pydicom.Dataset() for _ in range(3)]
    pointers = ("StackID", "InStackPositionNumber", "ASLContext")
    for item, name in zip(data.DimensionIndexSequence, pointers, strict=True):
        item.DimensionIndexPointer = pydicom.tag.Tag(name)
    frames = list(data.PerFrameFunctionalGroupsSequence)
    for at, groups in enumerate(frames):
        content = groups.FrameContentSequence[0]
        del content.TemporalPositionIndex
        content.DimensionIndexValues = [1, at % 12 + 1, at // 12 + 1]
        labelling = pydicom.Dataset()
        labelling.ASLContext = ("LABEL", "CONTROL")[at // 12]
        groups.MRArterialSpinLabelingSequence = [labelling]
    # one place after another, so that numbers do not tell
    order = [0, 13, 2, 15, 4, 17, 6, 19, 8, 21, 10, 23, 12, 1, 14, 3, 16, 5, 18, 7, 20, 9, 22, 11]
    data.PerFrameFunctionalGroupsSequence = [frames[at] for at in order]
    data.save_as(folder / "one")


def field_map(folder: Path) -> None:
    write_enhanced(MR, folder / "one", echoes=(1.5, 0.0))
    data = pydicom.dcmread(folder / "one")
    for at, groups in enumerate(data.PerFrameFunctionalGroupsSequence):
        item = pydicom.Dataset()
        item.FrameType = ["ORIGINAL", "PRIMARY", "T1", "M" if at < 12 else "FIELD_MAP"]
        groups.MRImageFrameTypeSequence = [item]
    data.save_as(folder / "one")


def flags(*add_ons: str) -> list[str]:
    return ["ORIGINAL", "PRIMARY", "M", *add_ons]


def other_owner(**values: str) -> Build:
    return both(MR.write, again(**values))


def cut_at(size: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:size]


def no_place(data: Any, at: int) -> None:
    if at == 11:
        del data.ImagePositionPatient


def no_rows(data: Any, at: int) -> None:
    if at == 11:
        del data.Rows
        del data.PixelData


def on_one_place(data: Any, _: int) -> None:
    set_position(data, (-30, -20, 10))


def turned(data: Any, at: int) -> None:
    if at == 11:
        data.ImageOrientationPatient = [1, 0, 0, 0, 0.99998, 0.006]


LITTER = (
    *(".DS_Store", "Thumbs.db", "desktop.ini", "DICOMDIR", "._im012", "README", "report.html"),
    *("im000.json", "im012.txt", "md5sums", "SHA256SUMS", "im.bval", "im.bvec", "notes.pdf"),
    *("VERSION", "im000.bak.txt", ".cuda-cyclegan/manifest.jsonl", ".AppleDouble/im000"),
    *("@eaDir/im000", ".git/objects/im000", "im012.part", "LOCKFILE", "index.htm"),
)
HTML = b"<!DOCTYPE html><html>404</html>"

TRAPS: dict[str, Trap] = {
    "whole": Trap(CT.write, words="^None"),
    # slices that cannot be read
    "empty": Trap(damaged(lambda _: b""), "failed", "im011", "im011 .it is empty"),
    "first empty": Trap(damaged(lambda _: b"", "im000"), "failed", "im000"),
    "middle empty": Trap(damaged(lambda _: b"", "im005"), "failed", "im005"),
    "web page": Trap(damaged(lambda _: HTML), "failed", "im011", "page of the web"),
    "zeros": Trap(damaged(lambda old: bytes(len(old))), "failed", "im011", "only zeros"),
    "text": Trap(damaged(lambda _: b"not found"), "failed", "im011", "not DICOM"),
    "noise": Trap(damaged(lambda _: os.urandom(2000)), "failed", "im011"),
    "cut in the preamble": Trap(damaged(cut_at(100)), "failed", "im011"),
    "cut behind the preamble": Trap(damaged(cut_at(132)), "failed", "im011"),
    "cut at 200": Trap(damaged(cut_at(200)), "failed", "im011"),
    "cut at 400": Trap(damaged(cut_at(400)), "failed", "im011"),
    "cut at 700": Trap(damaged(cut_at(700)), "failed", "im011"),
    "cut before the pixels": Trap(
        damaged(lambda old: old[: old.index(PIXELS)]), "failed", "im011", "ends before its pixels"
    ),
    "cut in the pixels": Trap(damaged(lambda old: old[:-300]), "failed", "", "im011 is truncated"),
    "cut by a byte": Trap(damaged(lambda old: old[:-1]), "failed", "", "959 follow"),
    "cut in the middle": Trap(damaged(lambda old: old[:-300], "im005"), "failed"),
    "without preamble": Trap(damaged(lambda old: old[132:])),
    "with half a preamble": Trap(
        damaged(lambda old: old[64:]), "failed", "im011", "first bytes are missing"
    ),
    "packed": Trap(damaged(gzip.compress), "failed", "im011", "packed with gzip"),
    "packed beside": Trap(
        both(CT.write, lambda folder: (folder / "im011.dcm.gz").write_bytes(b"\x1f\x8b") and None),
        "taken",
        "im011.dcm.gz",
    ),
    "all but one empty": Trap(
        both(CT.write, lambda f: [p.write_bytes(b"") for p in sorted(f.iterdir())[1:]] and None),
        "failed",
        " ".join(f"im{at:03}" for at in range(1, 12)),
        "and 8 more",
    ),
    "a pipe": Trap(a_pipe, "failed", "im012", "pipe"),
    "a socket": Trap(a_socket, "failed", "im012", "socket"),
    "a link to nothing": Trap(a_link("nowhere"), "failed", "im012", "leads nowhere"),
    "a link in a circle": Trap(a_link("im012"), "failed", "im012", "symbolic links"),
    "an editor's lock": Trap(a_link("user@host.12", ".#im012")),
    "one slice without place": Trap(edited(no_place), "failed skipped", "", "1 of its 12 images"),
    "one slice without image": Trap(edited(no_rows), "failed skipped", "", "hold no pixels"),
    # whose slices they may be
    "of one series by its name": Trap(two_series("ct012"), "failed taken", "ct012"),
    "of either series": Trap(two_series("im030", ("im", "im1")), "failed failed", "im030"),
    "of none by its name": Trap(beside("broken.dcm", b""), "taken", "broken.dcm"),
    "of the series by its suffix": Trap(
        files_named(lambda at: f"{'last' if at == 11 else 'im'}{at}.dcm", lambda _: b""),
        "failed",
        "last11.dcm",
    ),
    "of another folder": Trap(in_two_folders(lambda path: path.touch()), "failed taken", "im012"),
    "all empty elsewhere": Trap(elsewhere, "taken", " ".join(f"im{at:03}" for at in range(12))),
    "alone": Trap(both(CT.write, beside("b/x.dcm", b"")), "taken", "x.dcm"),
    "named by identifiers": Trap(
        files_named(lambda at: f"1.2.840.113.{at}.77{at}", lambda _: b""),
        "failed",
        "1.2.840.113.11.7711",
    ),
    "named at random": Trap(
        files_named(lambda at: f"{0xA1B2C3D4E5 * (at + 3):012x}f0a", lambda _: b""),
        "failed",
        f"{0xA1B2C3D4E5 * 14:012x}f0a",
    ),
    "spread over folders": Trap(
        files_named(lambda at: f"p{at % 3}/im{at}", lambda _: b""), "failed", "im11"
    ),
    "a folder a slice": Trap(
        files_named(lambda at: f"p{at}/im{at}", lambda _: b""), "failed", "im11"
    ),
    # enhanced objects
    "enhanced, whole": Trap(enhanced(lambda old: old)),
    "enhanced, cut in the pixels": Trap(enhanced(lambda old: old[:-1]), "failed"),
    "enhanced, cut before them": Trap(
        enhanced(lambda old: old[: old.index(PIXELS)]), "", "one", "before its pixels"
    ),
    "enhanced, cut among its frames": Trap(
        enhanced(lambda old: old[: old.index(PIXELS) - 700]), "", "one"
    ),
    "enhanced, a frame not described": Trap(fewer_frames_described, "", "one", "11 of its 12"),
    "enhanced, label and control": Trap(labelled, words="label in 0; control in 1"),
    "enhanced, field map": Trap(field_map, "taken taken", "", "None field map"),
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
        edited(lambda data, at: named(data, EchoTime=10 + at)), "refused", "", "12 slices lie on"
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
        words="taken as one volume",
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
    "another patient": Trap(other_owner(PatientID="other"), "taken taken", "", "kept apart"),
    "another study": Trap(other_owner(StudyInstanceUID="1.9"), "taken taken", "", "kept apart"),
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
    "all at one place": Trap(edited(on_one_place), "skipped", "", "12 images all lie at the same"),
    "no directions": Trap(
        edited(lambda data, _: named(data, ImageOrientationPatient=[0] * 6)),
        "refused",
        "",
        r"no pair of perpendicular directions \(0, 0",
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
    "copies in the folder": Trap(copied(5, "ct"), words="5 copies of images left out"),
    "some copies elsewhere": Trap(copied(5), words="5 copies of images left out"),
    "all of it elsewhere": Trap(copied(12), "taken taken"),
    **{f"litter: {name}": Trap(beside(name)) for name in LITTER},
    **{f"litter of no bytes: {name}": Trap(beside(name, b"")) for name in LITTER},
}


@pytest.mark.parametrize("name", TRAPS)
def test_what_comes_of_a_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    TRAPS[name].build(folder)
    check(discover([folder], tmp_path / "results"), TRAPS[name])


def test_the_table_is_long_enough() -> None:
    assert len([name for name in TRAPS if not name.startswith("litter")]) >= 60


@pytest.mark.parametrize("what", ["file", "folder", "litter"])
def test_what_may_not_be_opened_fails_the_series_beside_it(what: str) -> None:
    with open_folder() as folder:
        CT.write(folder)
        closed = {"file": "im011", "folder": "more", "litter": ".DS_Store"}[what]
        if what == "folder":
            (folder / "more").mkdir()
            (folder / "im011").rename(folder / "more" / "im011")
        (folder / closed).touch()
        (folder / closed).chmod(0)
        with ordinary_user():
            found = discover([folder], None)
        (folder / closed).chmod(0o755)
    if what == "litter":
        check(found, Trap(CT.write))
    else:
        check(found, Trap(CT.write, "failed", closed, "Permission denied"))


def test_equal_identifiers_of_two_patients_in_one_folder_have_two_results(tmp_path: Path) -> None:
    other_owner(PatientID="HOSP-0815")(tmp_path / "in")
    names = [str(study.name) for study in discover([tmp_path / "in"], None).studies]
    assert len(set(names)) == 2
    assert all("0815" not in name for name in names)


def test_joined_slices_are_one_volume_in_order(tmp_path: Path) -> None:
    TRAPS["add-ons in turn"].build(tmp_path / "in")
    [series] = discover([tmp_path / "in"], None).series
    assert series.extents == (24, 20, 12)
    assert series.spacing[2] == pytest.approx(2.0)
    [volume] = series.volumes
    assert [frame.file.name for frame in volume] == [f"im{at:03}" for at in range(12)]
