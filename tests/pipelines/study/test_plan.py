"""Planned memory of a study: what it requests."""

from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from support.counted_arrays import CountedArrays
from support.numerics_models import FunctionGenerator, card, prepared_scan, volume

from cuda_cyclegan.engine.model.intensity_maps import Identity, MinMax, NetworkRange, Window
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.finish import canvas, finish
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.plan import model_extents

PATCH = (8, 8, 8)
EXTENTS = (14, 12, 10)
CASES: list[Any] = [
    *product(
        ["uint8", "int16", "int32", "float32", "float64"],
        [Identity(), MinMax(), Window(-100, 900), Window(0, 0.1)],
        [None, (0.7, 1, 1)],
        [False, True],
    )
]


def test_a_study_without_voxels_is_refused() -> None:
    with pytest.raises(PreparationError, match="0x3x3 has no voxels"):
        prepared_scan(volume(np.zeros((0, 3, 3), np.int16)), card())


@pytest.mark.parametrize("takes", get_args(NetworkRange))
def test_a_scan_is_given_as_it_is_stored_whatever_the_networks_range(takes: NetworkRange) -> None:
    study = volume(np.arange(np.prod(EXTENTS)).reshape(EXTENTS).astype(np.int16))
    of = card(intensity_in=Window(100, 900), input_range=takes)
    prepared = prepared_scan(study, of)
    assert np.shares_memory(prepared.network_input.values, study.voxels)
    given = prepared.network_input.scaling.forward(study.voxels)
    ends = {"-1..1": (-1, 1), "0..1": (0, 1), "open": (-1.25, (EXTENTS[0] * 120 - 1 - 500) / 400)}
    assert (given.min(), given.max()) == pytest.approx(ends[takes])


@pytest.mark.parametrize(("dtype", "out", "spacing", "in_network"), CASES)
def test_large_arrays_are_counted_in_the_memory_estimate(
    dtype: str, out: Any, spacing: Any, in_network: bool
) -> None:
    study = volume(np.arange(np.prod(EXTENTS)).reshape(EXTENTS).astype(dtype))
    of = card(intensity_in=MinMax(), intensity_out=out, spacing=spacing)
    arrays = CountedArrays()

    prepared = prepared_scan(study, of, arrays.empty, in_network=in_network)
    foreseen, layout = prepared.plan.footprint, prepared.plan.layout
    assert foreseen.read == study.voxels.nbytes + sum(arrays.sizes)
    kept = (
        0 if np.shares_memory(prepared.network_input.values, study.voxels) else study.voxels.nbytes
    )
    made = canvas(prepared, arrays.empty)
    window, generator = SlidingWindow(layout, "gaussian", "edge"), FunctionGenerator()
    translate_array(
        prepared.network_input, made.target, generator, window, Stopwatch(), lambda _: None
    )
    blended = 2 * 8 * layout.extents[1] * layout.extents[2] * 4
    held = study.voxels.nbytes - kept + sum(arrays.sizes)
    unknown = 0 if prepared.plan.results[0].voxel_type else study.voxels.size
    assert held + blended <= foreseen.translated <= held + blended + 2 * unknown
    assert (made.volume is not None) == prepared.plan.is_output_as_stored
    finish(prepared, made, arrays.empty)
    held = study.voxels.nbytes - kept + sum(arrays.sizes)
    assert held <= foreseen.finished <= held + 4 * unknown


@pytest.mark.parametrize("spacing", [None, (0.7, 1.0, 2.0)])
def test_extents_on_the_models_grid_are_known_from_the_header(spacing: Any) -> None:
    affine = np.array([[0, 0, -2, 5], [1.5, 0, 0, 6], [0, 1, 0, 7], [0, 0, 0, 1.0]])
    study = volume(np.arange(6 * 9 * 13, dtype=np.int16).reshape(6, 9, 13), affine)
    of = card(spacing=spacing)
    extents = model_extents(study.shape, study.affine, of)
    assert extents == prepared_scan(study, of).plan.layout.extents
    assert spacing or extents == (13, 6, 9)
