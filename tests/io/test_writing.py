"""Results appear whole or not at all, whatever the disk says."""

import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import nibabel
import numpy as np
import pytest
import SimpleITK
from support.io_files import OBLIQUE, ramp, read_file, save_nifti
from support.io_users import open_folder, ordinary_user

from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.io.files.atomic import whole_file, whole_files, whole_folder
from cuda_cyclegan.io.files.parts import Gate, is_part, remove_leftovers
from cuda_cyclegan.io.files.parts import remove_parts_of_this_process as remove_own_parts
from cuda_cyclegan.io.files.streams import open_reader
from cuda_cyclegan.io.formats import nifti_writing
from cuda_cyclegan.io.formats.registry import FORMATS
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.io.writing import write

WRITTEN = [suffix for each in FORMATS if each.writes for suffix in each.suffixes]
SMALL_DISK = """
mount -t tmpfs -o size={size} none {folder} && exec {python} -c '
import sys
from pathlib import Path
from support.io_files import read_file
from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.io.writing import write
folder, *sources = map(Path, sys.argv[1:])
for source in sources:
    try:
        write(read_file(source), folder / source.name)
    except WriteError as error:
        print(error)
    print(sorted(path.name for path in folder.rglob("*")))
' {folder} {sources}
"""


def volume_in(folder: Path, suffix: str, extent: int = 40) -> Volume:
    """A volume of noise, read from a file of this suffix, too large for a small disk."""
    path = folder / f"source{suffix}"
    noise = np.random.default_rng(0).integers(0, 4000, (extent,) * 3).astype(np.int16)
    if suffix.startswith(".nii"):
        save_nifti(path, noise)
    elif suffix.startswith(".hdr"):
        nibabel.Nifti1Pair(noise, OBLIQUE).to_filename(path)
    else:
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(noise), str(path))
    return read_file(path)


@contextmanager
def largest_file(size: int) -> Generator[None]:
    """Let the system refuse all bytes of a file beyond `size`, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refusal(volume: Volume, target: Path) -> str:
    with pytest.raises(WriteError) as caught:
        write(volume, target)
    message = str(caught.value)
    assert message.startswith(f"{target} was not written")
    assert message.endswith(".")
    return message


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".hdr"])
def test_written_bytes_were_hashed_on_the_way(tmp_path: Path, suffix: str) -> None:
    hashes = write(volume_in(tmp_path, suffix, 160), tmp_path / "out" / f"a{suffix}")
    assert hashes == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (tmp_path / "out").iterdir()
    }


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_full_disk_leaves_nothing_and_keeps_what_was_there(tmp_path: Path, suffix: str) -> None:
    volume = volume_in(tmp_path, suffix)
    folder = tmp_path / "out"
    with largest_file(20_000):
        refusal(volume, folder / f"a{suffix}")
    assert list(folder.iterdir()) == []
    write(volume, folder / f"a{suffix}")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with largest_file(20_000):
        refusal(volume.with_voxels(volume.voxels + 1), folder / f"a{suffix}")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kept", [0, 100, 200])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".hdr"])
def test_a_disk_that_loses_bytes_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, kept: int
) -> None:
    def from_a_bad_disk(path: Path, *rest: Any) -> AbstractContextManager[BinaryIO]:
        os.truncate(path, kept)
        return open_reader(path, *rest)

    volume = volume_in(tmp_path, suffix)
    monkeypatch.setattr(nifti_writing, "open_reader", from_a_bad_disk)
    assert "written completely" in refusal(volume, tmp_path / "out" / f"a{suffix}")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.process
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    suffixes = (".nii.gz", ".hdr", ".nrrd", ".mha")
    for suffix in suffixes:
        volume_in(tmp_path, suffix)
    folder = tmp_path / "small disk"
    folder.mkdir()
    script = SMALL_DISK.format(
        size="64k",
        folder=f"'{folder}'",
        python=sys.executable,
        sources=" ".join(f"'{tmp_path}/source{suffix}'" for suffix in suffixes),
    )
    tests = Path(__file__).parents[1]
    mount = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    if "mount:" in mount.stderr or "unshare:" in mount.stderr:
        pytest.skip("this user may not mount a disk")
    lines = iter(mount.stdout.splitlines())
    for suffix, said, left in zip(suffixes, lines, lines, strict=True):
        assert f"source{suffix}" in said
        assert "was not written" in said
        assert "disk is full" in said or "disk has room" in said
        assert left == "[]"


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_folder_in_the_place_of_the_result(tmp_path: Path, suffix: str) -> None:
    volume = volume_in(tmp_path, suffix, extent=3)
    target = tmp_path / "out" / f"a{suffix}"
    target.mkdir(parents=True)
    assert "a folder and a file would have the same name" in refusal(volume, target)
    assert list((tmp_path / "out").rglob("*")) == [target]


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    volume = volume_in(tmp_path, ".nii", extent=3)
    (tmp_path / "out").touch()
    assert "a folder and a file would have the same name" in refusal(volume, tmp_path / "out/a.nii")


def test_a_folder_that_may_not_be_written() -> None:
    with open_folder() as folder:
        volume = volume_in(folder, ".nii.gz", extent=3)
        closed = folder / "closed"
        closed.mkdir(mode=0o555)
        with ordinary_user():
            assert "this user may not write there" in refusal(volume, closed / "a.nii.gz")
            assert "this user may not write there" in refusal(volume, closed / "b" / "a.nii.gz")
        assert list(closed.iterdir()) == []


def test_long_names(tmp_path: Path) -> None:
    volume = volume_in(tmp_path, ".nii", extent=3)
    longest = tmp_path / ("x" * 251 + ".nii")
    write(volume, longest)
    assert longest.is_file()
    assert "choose a shorter one" in refusal(volume, tmp_path / ("x" * 252 + ".nii"))


@pytest.mark.parametrize("suffix", [".nii.gz", ".hdr", ".nrrd", ".mhd"])
def test_a_header_that_would_move_the_voxels_is_not_written(tmp_path: Path, suffix: str) -> None:
    volume = volume_in(tmp_path, suffix, extent=3)
    moved = volume.affine.copy()
    moved[0, 3] += 0.5
    target = tmp_path / "out" / f"a{suffix}"
    refusal(replace(volume, affine=moved), target)
    assert list(target.parent.iterdir()) == []


def test_another_format_is_not_written(tmp_path: Path) -> None:
    nifti, nrrd = volume_in(tmp_path, ".nii", 3), volume_in(tmp_path, ".nrrd", 3)
    assert "must have the same suffix as its source" in refusal(nifti, tmp_path / "a.hdr")
    assert "is not NIfTI" in refusal(replace(nrrd, format="nifti"), tmp_path / "a.nii")
    assert "is not NRRD" in refusal(replace(nifti, format="nrrd"), tmp_path / "a.nrrd")


def test_analyze_refuses_what_it_cannot_store(tmp_path: Path) -> None:
    nibabel.Spm2AnalyzeImage(ramp(), np.diag([-2.0, 2, 3, 1])).to_filename(tmp_path / "a.hdr")
    volume = read_file(tmp_path / "a.hdr").with_voxels(ramp(dtype=np.uint64))
    assert "cannot store uint64" in refusal(volume, tmp_path / "b.hdr")


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Record the flushes of files and folders, and moves to a path, in their order."""
    found: list[tuple[str, Path]] = []
    fsync, rename = os.fsync, Path.replace

    def flush(descriptor: int) -> None:
        found.append(("flush", Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def move(part: Path, target: Path) -> Path:
        found.append(("move", target))
        return rename(part, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "replace", move)
    return found


def test_a_whole_file_is_flushed_and_then_named(
    tmp_path: Path, happened: list[tuple[str, Path]]
) -> None:
    target = tmp_path / "deep" / "a.json"
    with whole_file(target) as part:
        assert part.parent.parent == tmp_path / "deep"
        assert is_part(part.parent.name)
        part.write_text("whole")
        assert not target.exists()
    assert happened == [("flush", part), ("move", target), ("flush", target.parent)]
    assert target.read_text() == "whole"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_all_slices_of_a_series_are_on_disk_before_their_folder_has_its_name(
    tmp_path: Path, happened: list[tuple[str, Path]], is_replaced: bool
) -> None:
    target = tmp_path / "series"
    names = [f"{number}.dcm" for number in range(40)]  # more than threads that flush
    if is_replaced:
        target.mkdir()
    with whole_folder(target) as new:
        for name in names:
            (new / name).write_bytes(b"slice")
    slices, (folder, *moves) = sorted(happened[: len(names)]), happened[len(names) :]
    assert slices == sorted(("flush", new / name) for name in names)
    assert folder == ("flush", new)
    aside = [("move", new.parent / "old")] if is_replaced else []
    assert moves == [*aside, ("move", target), ("flush", tmp_path)]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_each_step_of_a_pair_is_on_disk_before_the_next(
    tmp_path: Path, happened: list[tuple[str, Path]], is_replaced: bool
) -> None:
    header, voxels = tmp_path / "a.mhd", tmp_path / "a.raw"
    if is_replaced:
        header.touch()
        voxels.touch()
    with whole_files(header, replaced=(voxels,)) as part:
        for path in (part, part.with_suffix(".raw")):
            path.write_text("new")
    new, old = part.parent, part.parent.parent / "old"
    asides = [old / "a.mhd", old / "a.raw"] if is_replaced else []
    moves = [[("move", place), ("flush", tmp_path)] for place in (*asides, voxels, header)]
    flushes = [("flush", new / "a.raw"), ("flush", new / "a.mhd")]
    assert happened == [*flushes, *(step for move in moves for step in move)]


@pytest.mark.parametrize("whole", [whole_file, whole_files])
@pytest.mark.parametrize("cause", [ZeroDivisionError, KeyboardInterrupt])
def test_a_body_that_stops_leaves_what_was_there(
    tmp_path: Path, whole: type[object], cause: type[BaseException]
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with suppress(cause), whole(target) as part:
        part.write_text("half")
        raise cause
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert target.read_text() == "old"


def test_files_of_one_result_move_together_and_the_first_last(tmp_path: Path) -> None:
    target = tmp_path / "a.mhd"
    with whole_files(target) as part:
        part.write_text("header")
        part.with_suffix(".raw").write_text("voxels")
        assert [path.is_dir() for path in tmp_path.iterdir()] == [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mhd", "a.raw"]
    target.unlink()
    target.mkdir()
    with suppress(WriteError), whole_files(target) as part:
        part.write_text("header")
        part.with_suffix(".raw").write_text("other voxels")
    assert (tmp_path / "a.raw").read_text() == "voxels"


class Refused(BaseException):
    pass


def gate_for(steps: int, after: Callable[[], object] = lambda: None) -> Gate:
    """A gate that refuses all steps but the first ones, and does something after each of those."""
    left = iter(range(steps))

    @contextmanager
    def passed(_: object) -> Generator[None]:
        if next(left, None) is None:
            raise Refused
        yield
        after()

    return Gate(passed)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("suffix", [".nii.gz", ".hdr", ".mhd"])
def test_a_shut_gate_lets_nothing_appear(tmp_path: Path, suffix: str, steps: int) -> None:
    volume = volume_in(tmp_path, suffix, extent=3)
    target = tmp_path / "out" / f"a{suffix}"
    write(volume, target)
    before = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    with pytest.raises(Refused):
        write(volume.with_voxels(volume.voxels + np.int16(1)), target, gate=gate_for(steps))
    assert {path.name: path.read_bytes() for path in target.parent.iterdir()} == before
    write(volume, target, gate=gate_for(2))


@pytest.mark.parametrize("steps", [0, 1])
def test_a_shut_gate_leaves_the_old_folder_in_place(tmp_path: Path, steps: int) -> None:
    target = tmp_path / "series"
    target.mkdir()
    (target / "1.dcm").write_text("old")
    with pytest.raises(Refused), whole_folder(target, gate_for(steps)) as part:
        (part / "1.dcm").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["series"]
    assert (target / "1.dcm").read_text() == "old"


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".hdr", ".nrrd", ".mhd"])
def test_a_part_that_was_removed_is_not_made_again(tmp_path: Path, suffix: str) -> None:
    volume = volume_in(tmp_path, suffix, extent=3)
    out = tmp_path / "out"
    with pytest.raises(WriteError, match="its folder was moved or removed"):
        write(volume, out / f"a{suffix}", gate=gate_for(2, lambda: remove_own_parts(out)))
    assert list(out.iterdir()) == []


def test_a_folder_is_removed_although_a_thread_goes_on_putting_files_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_folder, late = os.rmdir, iter(("1.dcm", "2.dcm"))

    def just_too_late(path: Path, **named: Any) -> None:
        if name := next(late, None):
            (Path(path) / name).touch()
        remove_folder(path, **named)

    with suppress(WriteError), whole_folder(tmp_path / "series"):
        monkeypatch.setattr(os, "rmdir", just_too_late)
        assert remove_own_parts(tmp_path) == 1
        assert list(tmp_path.iterdir()) == []


def test_folders_that_vanish_during_a_search_for_parts_do_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vanishes").mkdir()
    scan = os.scandir

    def too_late(folder: Any) -> Any:
        if Path(folder).name == "vanishes":
            Path(folder).rmdir()
        return scan(folder)

    monkeypatch.setattr(os, "scandir", too_late)
    assert remove_leftovers(tmp_path) == 0
