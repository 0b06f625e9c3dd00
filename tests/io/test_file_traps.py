"""Names and files that may lie in a folder of scans, and what must come of each: a table."""

import gzip
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import SimpleITK
from support.batch_world import scan
from support.io_users import open_folder, ordinary_user

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.io.reading import read, read_file_header

Build = Callable[[Path], object]
SHAPE = (6, 5, 4)
HTML = b"<!DOCTYPE html><html>404</html>" * 20


@dataclass(frozen=True)
class Trap:
    """read: names of studies that can be read, besides `sound.nii`, which always lies there. fails:
    those that cannot. missed: what may be a scan and cannot be opened. skipped: what is reported
    besides. header: whether what fails shows in its header already; None for either.
    """

    build: Build
    read: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    header: bool | None = True


@cache
def content(suffix: str) -> bytes:
    """Return the content of a sound scan."""
    folder = Path(os.environ["PYTEST_SCANS"])
    path = folder / f"made{suffix}"
    if suffix.startswith(".nii"):
        return scan(path, shape=SHAPE).read_bytes()
    SimpleITK.WriteImage(
        SimpleITK.ReadImage(str(scan(folder / "made.nii", shape=SHAPE))), str(path)
    )
    return path.read_bytes()


@pytest.fixture(autouse=True)
def scans(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_SCANS", str(tmp_path_factory.mktemp("made")))


def put(name: str, change: Callable[[bytes], bytes] = lambda old: old, suffix: str = "") -> Build:
    """A scan under this name, after a change."""

    def build(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        endings = (".nii.gz", ".nii", ".nrrd", ".mha")
        kind = suffix or next((end for end in endings if name.lower().endswith(end)), ".nii")
        path.write_bytes(change(content(kind)))

    return build


def file(name: str, data: bytes = b"text") -> Build:
    def build(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return build


def link(name: str, target: str) -> Build:
    return lambda folder: (folder / name).symlink_to(target)


def hard(name: str, target: str = "sound.nii") -> Build:
    def build(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / target, folder / name)

    return build


def all_of(*builds: Build) -> Build:
    def build(folder: Path) -> None:
        for each in builds:
            each(folder)

    return build


def pair(image: Callable[[bytes], bytes] | None) -> Build:
    """A NIfTI pair with what becomes of its voxels, or without them."""

    def build(folder: Path) -> None:
        header = bytearray(content(".nii")[:348])
        header[344:348] = b"ni1\0"
        header[108:112] = bytes(4)
        (folder / "a.hdr").write_bytes(header)
        if image:
            (folder / "a.img").write_bytes(image(content(".nii")[352:]))

    return build


def detached(suffix: str, voxels: Callable[[bytes], bytes] | None) -> Build:
    """A header with its voxels in another file, or in none."""

    def build(folder: Path) -> None:
        SimpleITK.WriteImage(
            SimpleITK.ReadImage(str(folder / "sound.nii")), str(folder / f"a{suffix}")
        )
        raw = folder / "a.raw"
        if voxels:
            raw.write_bytes(voxels(raw.read_bytes()))
        else:
            raw.unlink()

    return build


def a_socket(folder: Path) -> None:
    here = Path.cwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("a.nii")
    finally:
        os.chdir(here)


def crossed(count: int) -> Build:
    """Folders that each hold links to all others."""

    def build(folder: Path) -> None:
        for one in range(count):
            put(f"f{one}/a.nii")(folder)
            for other in set(range(count)) - {one}:
                (folder / f"f{one}" / f"l{other}").symlink_to(f"../f{other}")

    return build


def half(old: bytes) -> bytes:
    return old[: len(old) // 2]


def four_d(folder: Path) -> None:
    scan(folder / "a.nii", shape=(*SHAPE, 3))


NAMES = (
    *("a b.nii", " a.nii", "a .nii", "new\nline.nii", "tab\t.nii", "-x.nii", "--help.nii"),
    *(".hidden.nii", "a\udce9\udcff.nii", "名前.nii.gz", "e\N{COMBINING ACUTE ACCENT}.nii"),
    *("\N{BRAIN}.nii", "a.b.c.nii", "a.nii.nii", "A.NII.GZ", "%s%n.nii", "$(id).nii", "a;b.nii"),
    *("'a\"b.nii", "back\\slash.nii", "[bold]a.nii", "\x1b[31m.nii", "con.nii", "n" * 240 + ".nii"),
    *("folder.nii/a.nii", "deep/" * 40 + "a.nii", "*.nii", "~.nii", "a.nrrd", "a.mha"),
)

TRAPS: dict[str, Trap] = {
    **{f"name {name!r}": Trap(put(name), read=(name,)) for name in NAMES},
    # what a name promises and the file does not hold
    "empty": Trap(file("a.nii", b""), fails=("a.nii",)),
    "empty gzip": Trap(file("a.nii.gz", b""), fails=("a.nii.gz",)),
    "empty nrrd": Trap(file("a.nrrd", b""), fails=("a.nrrd",)),
    "web page": Trap(file("a.nii", HTML), fails=("a.nii",)),
    "web page, gzip": Trap(file("a.nii.gz", HTML), fails=("a.nii.gz",)),
    "packed web page": Trap(file("a.nii.gz", gzip.compress(HTML)), fails=("a.nii.gz",)),
    "web page, nrrd": Trap(file("a.nrrd", HTML), fails=("a.nrrd",)),
    "web page, metaimage": Trap(file("a.mha", HTML), fails=("a.mha",)),
    "pointer to a large file": Trap(
        file("a.nii.gz", b"version https://git-lfs.github.com/spec/v1\n"), fails=("a.nii.gz",)
    ),
    "header only": Trap(put("a.nii", lambda old: old[:352]), fails=("a.nii",)),
    "cut header": Trap(put("a.nii", lambda old: old[:100]), fails=("a.nii",)),
    "cut": Trap(put("a.nii", half), fails=("a.nii",)),
    "cut by a byte": Trap(put("a.nii", lambda old: old[:-1]), fails=("a.nii",)),
    "gzip, cut": Trap(put("a.nii.gz", half), fails=("a.nii.gz",), header=None),
    "gzip, cut by a byte": Trap(
        put("a.nii.gz", lambda old: old[:-1]), fails=("a.nii.gz",), header=None
    ),
    "gzip, a bit turned": Trap(
        put("a.nii.gz", lambda old: old[:-9] + bytes([old[-9] ^ 1]) + old[-8:]),
        fails=("a.nii.gz",),
        header=None,
    ),
    "gzip without its suffix": Trap(put("a.nii", suffix=".nii.gz"), fails=("a.nii",)),
    "no gzip with its suffix": Trap(put("a.nii.gz", suffix=".nii"), fails=("a.nii.gz",)),
    "nrrd, cut": Trap(put("a.nrrd", half), fails=("a.nrrd",)),
    "metaimage, cut": Trap(put("a.mha", half), fails=("a.mha",)),
    "zeros": Trap(put("a.nii", lambda old: bytes(len(old))), fails=("a.nii",)),
    "four axes": Trap(four_d, fails=("a.nii",)),
    # headers with their voxels elsewhere
    "pair": Trap(pair(lambda old: old), read=("a.hdr",)),
    "pair, cut": Trap(pair(half), fails=("a.hdr",)),
    "pair, empty": Trap(pair(lambda _: b""), fails=("a.hdr",)),
    "pair without voxels": Trap(pair(None), missed=("a.hdr",)),
    "voxels without header": Trap(file("a.img"), missed=("a.img",)),
    "mhd": Trap(detached(".mhd", lambda old: old), read=("a.mhd",)),
    "mhd, cut": Trap(detached(".mhd", half), fails=("a.mhd",)),
    "mhd without voxels": Trap(detached(".mhd", None), fails=("a.mhd",)),
    "nhdr": Trap(detached(".nhdr", lambda old: old), read=("a.nhdr",)),
    "nhdr, cut": Trap(detached(".nhdr", half), fails=("a.nhdr",)),
    "nhdr without voxels": Trap(detached(".nhdr", None), fails=("a.nhdr",)),
    # no files
    "folder": Trap(lambda folder: (folder / "a.nii").mkdir()),
    "pipe": Trap(lambda folder: os.mkfifo(folder / "a.nii"), skipped=("a.nii",)),
    "pipe, no scan": Trap(lambda folder: os.mkfifo(folder / "control"), skipped=("control",)),
    "socket": Trap(a_socket, skipped=("a.nii",)),
    "link to nothing": Trap(link("a.nii.gz", "annex/a.nii.gz"), missed=("a.nii.gz",)),
    "link to nothing, no scan": Trap(link(".#a.txt", "user@host"), skipped=(".#a.txt",)),
    "link in a circle": Trap(link("a.nii", "a.nii"), missed=("a.nii",)),
    "link out": Trap(link("a.nii", "../far/a.nii"), missed=("a.nii",)),
    # names of one file
    "hard link": Trap(hard("b.nii"), read=("b.nii",)),
    "hard links in folders": Trap(
        all_of(hard("d0/a.nii"), hard("d1/a.nii")), read=("d0/a.nii", "d1/a.nii")
    ),
    "link": Trap(link("b.nii", "sound.nii"), read=("b.nii",)),
    "link to a link": Trap(
        all_of(link("b.nii", "c.nii"), link("c.nii", "sound.nii")), read=("b.nii", "c.nii")
    ),
    "link to a folder": Trap(
        all_of(put("d/a.nii"), link("latest", "d")), read=("d/a.nii", "latest/a.nii")
    ),
    "two links to a folder": Trap(
        all_of(put("d/a.nii"), link("l", "d"), link("m", "l")),
        read=("d/a.nii", "l/a.nii", "m/a.nii"),
    ),
    "link to the folder around": Trap(link("around", ".")),
    "links up": Trap(all_of(put("d/e/a.nii"), link("d/e/up", "../..")), read=("d/e/a.nii",)),
    "folders linked across": Trap(
        crossed(2), read=("f0/a.nii", "f0/l1/a.nii", "f1/a.nii", "f1/l0/a.nii")
    ),
    "link to voxels of a header": Trap(
        all_of(detached(".mhd", lambda old: old), link("b.raw", "a.raw")), read=("a.mhd",)
    ),
    # what is no scan
    **{
        f"litter {name}": Trap(file(name))
        for name in (
            *(".DS_Store", "Thumbs.db", "._sound.nii", "README", "sound.json", "sound.bval"),
            *("sound.bvec", "report.html", "a.pdf", "a.txt", "a.nii.part", "SHA256SUMS"),
            *("sound.nii.preview.png", ".cuda-cyclegan/manifest.jsonl", "a.nii~", "a.nii.bak"),
            *(".nii", "nii", "a.nii ", "run.sh", "DICOMDIR"),
        )
    },
    **{
        f"scan in {folder}": Trap(put(f"{folder}/a.nii"))
        for folder in (".git", "@eaDir", ".AppleDouble", "lost+found", "a.part", "$RECYCLE.BIN")
    },
    "other formats": Trap(file("a.mgz"), skipped=("a.mgz",)),
    "packed DICOM": Trap(file("a.dcm.gz"), missed=("a.dcm.gz",)),
    "no DICOM": Trap(file("a.dcm", HTML), missed=("a.dcm",)),
    "empty DICOM": Trap(file("A.IMA", b""), missed=("A.IMA",)),
}


def check(folder: Path, trap: Trap) -> None:
    found = discover([folder], folder.parent / "results")
    outcomes: dict[str, set[str]] = {"read": set(), "fails": set()}
    for study in found.studies:
        try:
            read(study)
        except ScanError:
            outcomes["fails"].add(str(study.name))
            assert trap.header in (None, bool(read_file_header(study).refusal))
        else:
            outcomes["read"].add(str(study.name))
            header = read_file_header(study)
            assert (header.refusal, header.extents, header.volumes) == (None, SHAPE, 1)
    assert outcomes == {"read": {"sound.nii", *trap.read}, "fails": set(trap.fails)}
    assert {row.path.name for row in found.skipped if row.missed} == set(trap.missed)
    assert {row.path.name for row in found.skipped if not row.missed} == set(trap.skipped)


@pytest.mark.parametrize("name", TRAPS)
def test_outcome_of_a_file(tmp_path: Path, name: str) -> None:
    scan(tmp_path / "far" / "a.nii", shape=SHAPE)
    scan(tmp_path / "in" / "sound.nii", shape=SHAPE)
    TRAPS[name].build(tmp_path / "in")
    check(tmp_path / "in", TRAPS[name])


def test_the_table_is_long_enough() -> None:
    assert len(TRAPS) >= 60


@pytest.mark.parametrize("closed", ["a.nii", "unnamed", "folder", ".DS_Store", "lost+found"])
def test_files_that_may_not_be_opened(closed: str) -> None:
    with open_folder() as folder:
        scan(folder / "sound.nii", shape=SHAPE)
        if closed in ("folder", "lost+found"):
            (folder / closed).mkdir()
        else:
            (folder / closed).write_bytes(b"x")
        (folder / closed).chmod(0)
        with ordinary_user():
            missed = () if closed in ("a.nii", ".DS_Store", "lost+found") else (closed,)
            check(folder, Trap(link, fails=("a.nii",) if closed == "a.nii" else (), missed=missed))
        (folder / closed).chmod(0o755)


def test_many_folders_linked_across_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders' names are without number; omitted ones are reported."""
    monkeypatch.setattr("cuda_cyclegan.io.search.MOST_REPEATED", 1000)
    crossed(9)(tmp_path / "in")
    found = discover([tmp_path / "in"], None)
    assert {f"f{one}/a.nii" for one in range(9)} <= {str(study.name) for study in found.studies}
    [row] = found.skipped
    assert row.missed
    assert "links repeat more than" in row.reason


def test_a_file_that_vanishes_or_grows_after_the_search_fails(tmp_path: Path) -> None:
    for name in ("a.nii", "b.nii"):
        scan(tmp_path / "in" / name, shape=SHAPE)
    vanished, grown = discover([tmp_path / "in"], None).studies
    vanished.files[0].unlink()
    with grown.files[0].open("ab") as stream:
        stream.write(b"x" * 9000)
    for study, reason in ((vanished, "is missing"), (grown, "longer than its header states")):
        with pytest.raises(ScanError, match=reason):
            read(study)
