"""Voxel type in which a result is stored."""

import numpy as np
import pytest

from cuda_cyclegan.engine.model.intensity_maps import (
    Identity,
    IntensityMap,
    MinMax,
    Percentiles,
    Window,
    ZScore,
)
from cuda_cyclegan.pipelines.study.statistics import Range
from cuda_cyclegan.pipelines.study.voxel_type import (
    Demand,
    VoxelType,
    choose_voxel_type,
    foreseen_voxel_type,
)

CT = VoxelType(np.dtype(np.int16))
UINT8 = VoxelType(np.dtype(np.uint8))
FLOAT = VoxelType(np.dtype(np.float32))


def chosen(
    source: VoxelType, out: IntensityMap, low: float, high: float, steps: float = 255
) -> VoxelType:
    return foreseen_voxel_type(source, out) or choose_voxel_type(
        source, Demand(Range(low, high), steps)
    )


@pytest.mark.parametrize(
    ("source", "low", "high", "expected"),
    [
        pytest.param(CT, -1024, 3071, CT, id="fits"),
        pytest.param(CT, 0, 255, CT, id="in just 255 steps"),
        pytest.param(CT, 0, 254, FLOAT, id="too coarse"),
        pytest.param(CT, 0, 32768, FLOAT, id="too wide"),
        pytest.param(UINT8, 0, 255, UINT8, id="the whole type"),
        pytest.param(UINT8, -1024, 3071, CT, id="int16 instead"),
        pytest.param(UINT8, 0, 1, FLOAT, id="fractions"),
        pytest.param(
            VoxelType(np.dtype(np.int16), 0.001), 0, 1, VoxelType(np.dtype(np.int16), 0.001)
        ),
        pytest.param(
            VoxelType(np.dtype(np.uint8), 2.0, -100),
            -100,
            410,
            VoxelType(np.dtype(np.uint8), 2.0, -100),
        ),
        pytest.param(VoxelType(np.dtype(np.uint8), 2.0, -100), -101.1, 410, CT),
        pytest.param(
            VoxelType(np.dtype(np.uint8), -2.0, 100),
            -410,
            100,
            VoxelType(np.dtype(np.uint8), -2.0, 100),
        ),
        pytest.param(FLOAT, -1024, 3071, FLOAT, id="float stays"),
        pytest.param(VoxelType(np.dtype(np.float64)), -1024, 3071, VoxelType(np.dtype(np.float64))),
    ],
)
def test_a_result_in_a_foreign_unit(
    source: VoxelType, low: float, high: float, expected: VoxelType
) -> None:
    assert chosen(source, Window(low, high), low, high) == expected


@pytest.mark.parametrize("out", [MinMax(), Percentiles(1, 99), ZScore()])
def test_a_result_in_the_scans_own_unit_is_stored_as_the_scan(out: IntensityMap) -> None:
    assert chosen(UINT8, out, -10, 90) == UINT8


def test_a_range_may_leave_the_type_by_what_rounding_takes_back() -> None:
    assert chosen(UINT8, Window(-0.4, 255.4), -0.4, 255.4) == UINT8
    assert chosen(UINT8, Window(-0.6, 255), -0.6, 255) == CT


def test_identity_asks_for_no_more_steps_than_the_scan_has() -> None:
    assert chosen(UINT8, Identity(), 10, 90, steps=80) == UINT8
    assert chosen(UINT8, Identity(), -1, 1, steps=80) == FLOAT
