"""A result of several files that replaces another one, stopped or failing at each step."""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.io_files import read_file

from cuda_cyclegan.io.errors import ScanError, WriteError
from cuda_cyclegan.io.files.parts import remove_leftovers
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.io.writing import files_at, write

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
SHAPE = (5, 6, 7)
KINDS = (
    "a.nhdr",
    "packed/a.nhdr",
    "a.mhd",
    "packed/a.mhd",
    "a.hdr",
    "spm/a.hdr",
    "a.nrrd",
    "a.nii",
)
STEPS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
"""Audited calls that change a folder."""

_stop: list[Callable[[str], None]] = []
_hooked: list[bool] = []


def _audit(event: str, _: object) -> None:
    if _stop and event in STEPS:
        _stop[0](event)


@pytest.fixture
def on_step() -> Iterator[Callable[[Callable[[str], None]], None]]:
    """Have a function called before each step; it may end the process or raise."""
    if not _hooked:
        sys.addaudithook(_audit)  # which cannot be removed
        _hooked.append(True)
    yield lambda stop: _stop.append(stop)
    _stop.clear()


def source(folder: Path, name: str) -> Path:
    """A scan whose result is of a kind of several files."""
    path = folder / name
    path.parent.mkdir(parents=True)
    voxels = np.arange(int(np.prod(SHAPE)), dtype=np.int16).reshape(SHAPE)
    if path.suffix in (".hdr", ".nii"):
        kind = nibabel.Nifti1Pair if path.suffix == ".hdr" else nibabel.Nifti1Image
        if name.startswith("spm"):
            kind = nibabel.Spm99AnalyzeImage
        kind(voxels, np.diag([2.0, 3, 4, 1])).to_filename(path)
    else:
        image = sitk.GetImageFromArray(voxels.T)
        image.SetSpacing((2, 3, 4))
        sitk.WriteImage(image, str(path), name.startswith("packed"))
    return path


def as_type(scan: Volume, dtype: str, factor: int) -> Volume:
    return scan.with_voxels((scan.voxels * factor).astype(dtype))


def found(target: Path) -> tuple[Any, ...] | None:
    """Return what is read at a place: values and place of the voxels; None if nothing can be."""
    try:
        volume = read_file(target)
    except (ScanError, OSError):
        return None
    return (volume.voxels.dtype.str, volume.values().tobytes(), volume.affine.tobytes())


def replaced_until(
    target: Path, new: Volume, stop: Callable[[int, str], None], on_step: Any
) -> tuple[int, BaseException | None]:
    """Replace a result; stop: called before each step with its number. Return their count."""
    steps = 0

    def counted(event: str) -> None:
        nonlocal steps
        steps += 1
        stop(steps, event)

    on_step(counted)
    try:
        write(new, target)
    except WriteError as error:
        return steps, error
    finally:
        _stop.clear()
    return steps, None


@pytest.fixture(params=KINDS)
def results(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A place, the scan that a result there is made of, an older result and a new one."""
    scan = read_file(source(tmp_path / "scans", request.param))
    old, new = as_type(scan, "float32", 3), as_type(scan, "int32", 5)  # of the same size
    (tmp_path / "out").mkdir()
    place = tmp_path / "out" / Path(request.param).name
    write(new, place)
    wanted = found(place)
    for file in files_at(place):
        file.unlink()
    write(old, place)
    before = found(place)
    assert None not in (before, wanted)
    assert before != wanted
    return place, new, before, wanted


class Killed(BaseException):
    """Raised instead of a step and of all after it, so that nothing changes any more."""


def test_a_kill_at_any_step_leaves_one_result_or_none(results: Any, on_step: Any) -> None:
    place, new, before, wanted = results
    kept = {file: file.read_bytes() for file in files_at(place)}
    seen = list[object]()
    for number in count(1):
        restore(kept)

        def kill(at: int, _: str, number: int = number) -> None:
            if at >= number:
                raise Killed

        with suppress(Killed):
            steps, _ = replaced_until(place, new, kill, on_step)
            assert number > steps
            break
        seen.append(found(place))
        assert seen[-1] in (before, None, wanted), f"step {number}"
        remove_leftovers(place.parent)
    assert seen[0] == before
    assert found(place) == wanted
    assert len(seen) > 3
    is_pair = len(kept) > 1
    assert (None in seen) == is_pair, "there is no moment without a result that is one file"


def restore(kept: Mapping[Path, bytes]) -> None:
    """Have these files in their folder, and no others."""
    for file in next(iter(kept)).parent.iterdir():
        if file.is_file():
            file.unlink()
    for file, content in kept.items():
        file.write_bytes(content)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_failure_at_any_step_keeps_the_older_result(
    results: Any, on_step: Any, lasting: bool
) -> None:
    """lasting: all later moves fail, too. Then there may be no result, and never a wrong one."""
    place, new, before, wanted = results
    kept = {file: file.read_bytes() for file in files_at(place)}
    failures = 0
    for number in count(1):
        restore(kept)

        def fail(at: int, event: str, number: int = number) -> None:
            if event == "os.rename" and (at == number or (lasting and at >= number)):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        steps, error = replaced_until(place, new, fail, on_step)
        failures += error is not None
        now = found(place)
        if error:
            assert now in ((before, None) if lasting else (before,)), f"step {number}"
        else:
            assert now == wanted
        aside = [path for path in place.parent.iterdir() if path.is_dir()]
        if now is None:
            there = [path for path in place.parent.rglob("*") if path.is_file()]
            assert {*kept.values()} <= {path.read_bytes() for path in there}, "it is not lost"
            assert str(aside[0]) in str(error)
        else:
            assert not aside
        for folder in aside:
            shutil.rmtree(folder)
        if number > steps:
            break
    assert failures >= len(kept)


def test_the_file_of_another_place_goes_with_its_result(tmp_path: Path) -> None:
    """The .mat of an older result would move the voxels of the new one."""
    scans = [source(tmp_path / kind, f"{kind}/a.hdr") for kind in ("spm", "usual")]
    moved, straight = map(read_file, scans)
    place = tmp_path / "out" / "a.hdr"
    write(moved, place)
    assert place.with_suffix(".mat").exists()
    write(straight, place)
    assert not place.with_suffix(".mat").exists()
    np.testing.assert_allclose(read_file(place).affine, straight.affine)
