"""A disk that fails, or a folder that goes away, at each call of the system while storing."""

import builtins
import errno
import fcntl
import io
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import nibabel
import numpy as np
import pytest
from support.batch_world import scan
from support.dicom_phantoms import Phantom
from support.numerics_models import CARD

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.io.maps import MapMark
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Study, Volume
from cuda_cyclegan.pipelines.results.file_states import FileState
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe, load
from cuda_cyclegan.pipelines.results.resume import PlannedStudy, Planner
from cuda_cyclegan.pipelines.results.storing import Store
from cuda_cyclegan.pipelines.study.maps import StudyMap
from cuda_cyclegan.pipelines.study.translator import Translated

RECIPE = Recipe("model", "settings")
MEAN = MapMark("spread-mean", "mean of 4 flips", "4")
CALLS: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("mkdir", "open", "stat", "lstat", "fstat", "listdir", "scandir", "write", "utime"),
        *("fsync", "rename", "replace", "unlink", "remove", "rmdir"),
    ),
    fcntl: ("flock",),
    io: ("open",),
    builtins: ("open",),
}
"""Calls of the system, by their names in the modules of Python through which all use them."""


class AtCall:
    """Action before the nth call of the system that this thread makes inside the block."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.left, self._act = number, act
        self._thread = threading.get_ident()
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "AtCall":
        for module, names in CALLS.items():
            for name in names:
                self._patch.setattr(module, name, self._heard(getattr(module, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _heard(self, called: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(called)
        def counted(*given: Any, **named: Any) -> Any:
            if threading.get_ident() == self._thread:
                self.left -= 1
                if self.left == 0:
                    self._patch.undo()
                    self._act()
            return called(*given, **named)

        return counted


@dataclass(frozen=True)
class World:
    """A scan below a folder, and an output folder in which its result is the scan itself."""

    study: Study
    volume: Volume
    root: Path

    def output(self) -> Path:
        shutil.rmtree(self.root, ignore_errors=True)
        return self.root / "results"

    def planned(self, output: Path) -> PlannedStudy:
        planner = Planner(output, load(output), RECIPE, overwrite=False, preview=True)
        [planned] = planner.plan([self.study])
        return planned

    def put(self, output: Path, fault: AtCall) -> None:
        spread = self.volume.with_voxels(np.ones(self.volume.shape, np.float32))
        maps = (StudyMap(MEAN, spread),)
        made = Translated((self.volume,), 1, b"a picture", None, maps)
        inputs = tuple(map(FileState.of, self.study.files))
        with Manifest(output) as manifest:
            store, planned = Store(manifest, RECIPE, CARD), self.planned(output)
            with fault:
                store.put(planned, made, inputs)


def nifti(folder: Path) -> None:
    scan(folder / "below" / "a.nii.gz", shape=(3, 4, 5))


def pair(folder: Path) -> None:
    (folder / "below").mkdir(parents=True)
    image = nibabel.Nifti1Pair(np.ones((3, 4, 5), np.int16), np.eye(4))
    image.to_filename(folder / "below" / "a.hdr")


def metaimage(folder: Path) -> None:
    import SimpleITK

    (folder / "below").mkdir(parents=True)
    image = SimpleITK.GetImageFromArray(np.ones((3, 4, 5), np.int16))
    SimpleITK.WriteImage(image, str(folder / "below" / "a.mhd"))


def series(folder: Path) -> None:
    Phantom(slices=2, rows=4, columns=4).write(folder / "below")


@pytest.fixture(params=[nifti, pair, metaimage, series], ids=lambda make: make.__name__)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    request.param(tmp_path / "scans")
    choice = Choice(fewest_slices=2)
    [study] = discover([tmp_path / "scans"], tmp_path / "results", choice).studies
    return World(study, read(study), tmp_path / "out")


def each_call(
    world: World, step: int, act: Callable[[Path], None], judge: Callable[[Path], None]
) -> int:
    """Store once for every `step`-th call of the system, with an act before it; return the number
    of refusals.
    """
    refusals, number = 0, 1
    while True:
        output = world.output()
        fault = AtCall(number, partial(act, output))
        try:
            world.put(output, fault)
        except WriteError:
            refusals += 1
            judge(output)
        if fault.left > 0:
            return refusals
        number += step


def fail(_: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def nothing(_: Path) -> None:
    pass


def move(output: Path) -> None:
    output.rename(output.with_name("moved"))


def replace(output: Path) -> None:
    move(output)
    output.mkdir()


steps = pytest.mark.parametrize(
    "step", [7, pytest.param(1, marks=pytest.mark.slow, id="each call")]
)


@steps
def test_a_call_that_fails(world: World, step: int) -> None:
    assert each_call(world, step, fail, nothing) > 30 // step


@steps
@pytest.mark.parametrize("lose", [move, replace])
def test_a_folder_that_goes_away_before_a_call(
    world: World, lose: Callable[[Path], None], step: int
) -> None:
    def not_made_again(output: Path) -> None:
        assert output.exists() == (lose is replace), "a folder that is gone was made again"

    assert each_call(world, step, lose, not_made_again) > 30 // step
