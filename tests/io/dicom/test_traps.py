"""Table of traps: what cannot be read in or next to a series, and the required outcome."""

import gzip
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom, set_position
from support.dicom_traps import CT, MR, Build, Trap, both, check, edited
from support.io_users import open_folder, ordinary_user

from cuda_cyclegan.io.discovery import discover

pydicom: Any = _pydicom
PIXELS = b"\xe0\x7f\x10\x00"


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


def cut_at(size: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:size]


def no_place(*slices: int, **others: int) -> Callable[[Any, int], None]:
    """Some slices have no position. others: elements that all have."""

    def edit(data: Any, at: int) -> None:
        if at in slices:
            del data.ImagePositionPatient
        for name, value in others.items():
            setattr(data, name, value)

    return edit


def place_and_gap(data: Any, at: int) -> None:
    no_place(0)(data, at)
    if at >= 7:
        x, y, z = map(float, data.ImagePositionPatient)
        set_position(data, (x, y, z + 2.0))


def a_table(data: Any, at: int) -> None:
    if at == 11:
        data.ModalityLUTSequence = [pydicom.Dataset()]


def no_rows(data: Any, at: int) -> None:
    if at == 11:
        del data.Rows
        del data.PixelData


LITTER = (
    *(".DS_Store", "Thumbs.db", "desktop.ini", "DICOMDIR", "._im012", "README", "report.html"),
    *("im000.json", "im012.txt", "md5sums", "SHA256SUMS", "im.bval", "im.bvec", "notes.pdf"),
    *("VERSION", "im000.bak.txt", ".cuda-cyclegan/manifest.jsonl", ".AppleDouble/im000"),
    *("@eaDir/im000", ".git/objects/im000", "im012.part", "LOCKFILE", "index.htm"),
)


HTML = b"<!DOCTYPE html><html>404</html>"
UNREADABLE: dict[str, Trap] = {
    "whole": Trap(CT.write, words="^None"),
    # slices that cannot be read
    "empty": Trap(damaged(lambda _: b""), "failed", "im011", "im011 .it is empty"),
    "first empty": Trap(damaged(lambda _: b"", "im000"), "failed", "im000"),
    "middle empty": Trap(damaged(lambda _: b"", "im005"), "failed", "im005"),
    "web page": Trap(damaged(lambda _: HTML), "failed", "im011", "web page"),
    "zeros": Trap(damaged(lambda old: bytes(len(old))), "failed", "im011", "only zeros"),
    "text": Trap(damaged(lambda _: b"not found"), "failed", "im011", "not DICOM"),
    "noise": Trap(damaged(lambda _: random.Random(1).randbytes(2000)), "failed", "im011"),
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
    "packed": Trap(damaged(gzip.compress), "failed", "im011", "gzip-compressed"),
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
    "one slice without place": Trap(
        edited(no_place(5)), "failed skipped", "", "1 of its 12 images"
    ),
    "every other slice without place": Trap(
        edited(no_place(1, 3, 5, 7, 9)), "failed skipped", "", "5 of its 12 images"
    ),
    "one image without place beside a stack": Trap(
        edited(no_place(11)), "skipped taken", "", "1 of the 12 images .* omitted: im011"
    ),
    "one without place of a number that the header declares": Trap(
        edited(no_place(11, ImagesInAcquisition=12)), "failed skipped", "", "1 of its 12 images"
    ),
    "one without place beside a gap": Trap(
        edited(place_and_gap), "failed skipped", "", "1 of its 12 images"
    ),
    "one slice through a table": Trap(edited(a_table), "failed skipped", "", "lookup table"),
    "one slice without image": Trap(edited(no_rows), "failed skipped", "", "have no pixels"),
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
    "enhanced, a frame not described": Trap(
        fewer_frames_described, "", "one", "declares 12 frames and describes 11"
    ),
    "enhanced, label and control": Trap(labelled, words="label in 0; control in 1"),
    "enhanced, field map": Trap(field_map, "taken taken", "", "None field map"),
    **{f"litter: {name}": Trap(beside(name)) for name in LITTER},
    **{f"litter of no bytes: {name}": Trap(beside(name, b"")) for name in LITTER},
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_outcome_of_a_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    UNREADABLE[name].build(folder)
    check(discover([folder], tmp_path / "results"), UNREADABLE[name])


def test_the_table_is_long_enough() -> None:
    assert len([name for name in UNREADABLE if not name.startswith("litter")]) >= 45


@pytest.mark.parametrize("what", ["file", "folder", "litter"])
def test_unopenable_file_fails_the_series_beside_it(what: str) -> None:
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
