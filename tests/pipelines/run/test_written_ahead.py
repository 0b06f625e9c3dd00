"""Results that are written while a generator of volumes still makes them."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.numerics_models import FunctionGenerator, card
from support.pipeline_world import PipelineWorld
from support.result_marks import read_mark
from support.waiting import ENOUGH
from support.watched_calls import watch_calls

from cuda_cyclegan.engine.errors import PrecisionOverflowError
from cuda_cyclegan.engine.model.intensity_maps import Window
from cuda_cyclegan.engine.patch_grid import Timing
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.events import Event, TilesDone
from cuda_cyclegan.pipelines.results import storing, written_ahead
from cuda_cyclegan.pipelines.results.written_ahead import WrittenAhead
from cuda_cyclegan.pipelines.run import batch

nibabel: Any = _nibabel
WINDOW = Window(-1000, 1000)
"""A map by which the result's voxel type is known before there is one."""


class RowsGenerator:
    """Generator that returns volumes unchanged, some of their slices at a time."""

    device = "numpy"

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        self.graph = FunctionGenerator().graph
        self._between = between

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        target.values[:, ..., :5] = source.values[:, ..., :5]
        target.on_rows(5)
        on_share(0.3)
        self._between()
        target.values[...] = source.values
        target.on_rows(source.values.shape[-1])
        on_share(1.0)
        return []


@pytest.fixture
def world(tmp_path: Path) -> PipelineWorld:
    return PipelineWorld(tmp_path, card=card(intensity_in=WINDOW, intensity_out=WINDOW))


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "LEAST_BYTES", 0)


@pytest.fixture(autouse=True)
def all_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits a second for threads that a busy machine may not even have run by then."""
    monkeypatch.setattr(batch, "LAST_MOMENT", ENOUGH)
    monkeypatch.setattr(written_ahead, "_PATIENCE", ENOUGH)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[WrittenAhead]:
    """Record those that were begun."""
    found: list[WrittenAhead] = []

    class Watched(WrittenAhead):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr(storing, "WrittenAhead", Watched)
    return found


def results(world: PipelineWorld) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (world.root / "results").glob("*.nii")}


def parts(world: PipelineWorld) -> list[str]:
    return [path.name for path in (world.root / "results").rglob("*.part")]


def test_results_are_those_that_are_written_at_the_end(
    world: PipelineWorld, begun: list[WrittenAhead]
) -> None:
    rows = world.run_opened(lambda *_: nullcontext(RowsGenerator()), inference="volume")
    assert [row.status for row in rows] == ["translated"] * 5
    assert len(begun) == 5
    for path in (world.root / "scans").iterdir():
        made = results(world)[path.name]
        assert np.array_equal(voxels(made), voxels(path.read_bytes()))
        assert read_mark(world.root / "results" / path.name) is not None
    assert not parts(world)


def voxels(file: bytes) -> "np.ndarray[Any, np.dtype[np.int16]]":
    image: Any = nibabel.Nifti1Image.from_bytes(file)
    return np.asarray(image.dataobj.get_unscaled())


def test_a_study_that_fails_leaves_nothing_of_its_result(
    world: PipelineWorld, begun: list[WrittenAhead]
) -> None:
    def fail_once() -> None:
        if len(begun) == 2:
            raise ValueError("planted")

    generator = RowsGenerator(fail_once)
    rows = world.run_opened(lambda *_: nullcontext(generator), inference="volume")
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    assert sorted(results(world)) == ["a.nii", "c.nii", "d.nii", "e.nii"]
    assert not parts(world)


def test_a_try_in_another_precision_is_written_anew(
    world: PipelineWorld, begun: list[WrittenAhead]
) -> None:
    def overflow_once() -> None:
        if len(begun) == 1:
            raise PrecisionOverflowError.of("fp16")

    generator = RowsGenerator(overflow_once)
    rows = world.run_opened(lambda *_: nullcontext(generator), precision="fp16", inference="volume")
    assert [row.status for row in rows] == ["translated"] * 5
    assert len(begun) == 6
    assert len(results(world)) == 5
    assert not parts(world)


def test_a_stop_in_the_middle_leaves_nothing_of_a_result(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, TilesDone) and event.done:
            raise KeyboardInterrupt

    monkeypatch.setattr(world, "handle", stop)
    world.run_opened(lambda *_: nullcontext(RowsGenerator()), inference="volume")
    assert not parts(world)


def test_result_refused_by_the_verification_is_not_named(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, begun: list[WrittenAhead]
) -> None:
    def refuse(number: int) -> None:
        if number == 0:
            raise ValueError("planted")

    watch_calls(monkeypatch, "finish", refuse)
    rows = world.run_opened(lambda *_: nullcontext(RowsGenerator()), inference="volume")
    assert [row.status for row in rows] == ["failed", *["translated"] * 4]
    assert begun[0].volume.shape == (16, 16, 16)
    assert "a.nii" not in results(world)
    assert not parts(world)


def test_small_results_are_written_at_the_end(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, begun: list[Volume]
) -> None:
    monkeypatch.setattr(storing, "LEAST_BYTES", 2 * 16**3 + 1)
    rows = world.run_opened(lambda *_: nullcontext(RowsGenerator()), inference="volume")
    assert [row.status for row in rows] == ["translated"] * 5
    assert not begun
