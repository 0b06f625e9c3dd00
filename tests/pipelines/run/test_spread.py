"""The spread of studies in a batch: what it may not change, and what it leaves."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.numerics_models import FunctionGenerator
from support.pipeline_world import PipelineWorld

from cuda_cyclegan.engine.errors import PrecisionOverflowError
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.pipelines.events import TilesDone

nibabel: Any = _nibabel
Function = Callable[[FloatArray], FloatArray]


def first_half(patches: FloatArray) -> FloatArray:
    """Return values that differ for a patch and its mirror image."""
    return patches + np.roll(patches, 1, axis=2)


def opened_in(functions: dict[str, Function]) -> Callable[..., Any]:
    return lambda precision, _: nullcontext(FunctionGenerator(functions[precision]))


def results(world: PipelineWorld) -> dict[str, bytes]:
    return {name: (world.root / "results" / name).read_bytes() for name in world.made()}


def test_the_precision_that_a_mirrored_patch_needs_is_not_that_of_the_result(
    tmp_path: Path,
) -> None:
    alone, beside = PipelineWorld(tmp_path / "a"), PipelineWorld(tmp_path / "b")
    scans = [nibabel.load(path) for path in sorted((tmp_path / "a" / "scans").iterdir())]

    def in_fp16(patches: FloatArray) -> FloatArray:
        if not any(np.array_equal(patches[0, 0], scan.get_fdata()) for scan in scans):
            raise PrecisionOverflowError("a value left the range")
        return first_half(patches) / 2

    functions: dict[str, Function] = {"fp16": in_fp16, "bf16": first_half}
    alone.run_opened(opened_in(functions), precision="fp16")
    rows = beside.run_opened(opened_in(functions), precision="fp16", spread=3)
    assert [row.status for row in rows] == ["translated"] * 5
    assert {row.notes for row in rows} == {
        (
            "of its spread: A value exceeded the range of fp16; the computation was repeated in "
            "bf16.",
        )
    }
    before, after = results(alone), results(beside)
    assert {name: after[name] for name in before} == before
    assert len(after) == 3 * len(before)


def test_patches_are_counted_over_all_flips(tmp_path: Path) -> None:
    world = PipelineWorld(tmp_path)
    row, *_ = world.run_opened(opened_in({"fp32": first_half}), spread=4)
    reported = [event for event in world.events if isinstance(event, TilesDone)]
    assert [(event.done, event.total) for event in reported if event.study == row.name] == [
        (0, 4), (1, 4), (1, 4), (2, 4), (2, 4), (3, 4), (3, 4), (4, 4),
    ]  # fmt: skip
    assert row.tiles == 4
    assert row.maps == (
        tmp_path / "results" / "a.map-spread-mean.nii",
        tmp_path / "results" / "a.map-spread-sd.nii",
    )
    assert row.spread
    assert row.spread.deviation > 0


@pytest.mark.parametrize("call", [2, 3])
def test_a_flip_that_fails_leaves_nothing(tmp_path: Path, call: int) -> None:
    calls: list[int] = []

    def failing(patches: FloatArray) -> FloatArray:
        calls.append(len(patches))
        if len(calls) == call:
            raise RuntimeError("broken")
        return patches

    world = PipelineWorld(tmp_path)
    rows = world.run_opened(opened_in({"fp32": failing}), spread=3)
    assert [row.status for row in rows] == ["failed"] + ["translated"] * 4
    assert not any(name.startswith("a.") for name in world.made())
