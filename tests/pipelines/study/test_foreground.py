"""The level between background and foreground, as SimpleITK finds it, and how far that reaches."""

from typing import Any

import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.calibration_scans import head, inverted

from cuda_cyclegan.pipelines.study.statistics import extents_of, foreground_level

sitk: Any = _SimpleITK


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_inverted", [False, True])
def test_the_level_parts_voxels_as_simpleitk_does(seed: int, *, is_inverted: bool) -> None:
    voxels = inverted(head(seed)) if is_inverted else head(seed)
    values = voxels.astype(np.float32)
    threshold = sitk.OtsuThresholdImageFilter()
    threshold.SetNumberOfHistogramBins(256)
    background = sitk.GetArrayFromImage(threshold.Execute(sitk.GetImageFromArray(values)))
    ours = values > foreground_level(values)
    assert np.mean(ours == (background == 0)) > 0.999


def test_between_two_values_the_level_lies_in_the_middle() -> None:
    values = np.repeat(np.float32([-1, 1]), [70, 30])
    assert foreground_level(values) == pytest.approx(0, abs=0.01)


def test_extents_leave_single_voxels_out() -> None:
    inside = np.zeros((40, 30, 20), np.bool_)
    inside[5:25, 10:20, 3:9] = True
    assert extents_of(inside) == (20, 10, 6)
    inside[39, 29, 19] = True
    assert extents_of(inside) == (20, 10, 6)
