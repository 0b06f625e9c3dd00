"""Scans cropped to their foreground, resized to a fixed grid, or brought to nnU-Net's."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.numerics_models import OPTIONS, card, volume

from cuda_cyclegan.engine.model.intensity_maps import Identity, Steps, ZScore
from cuda_cyclegan.engine.model.model_card import ModelCard, ScanCrop
from cuda_cyclegan.engine.model.tiling import Tiling
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.study.finish import canvas, finish
from cuda_cyclegan.pipelines.study.inference import Cutter
from cuda_cyclegan.pipelines.study.intensities import crop_box
from cuda_cyclegan.pipelines.study.patches import cover, patch_weights
from cuda_cyclegan.pipelines.study.plan import plan_study
from cuda_cyclegan.pipelines.study.prepare import Prepared, on_grid, prepare
from cuda_cyclegan.pipelines.study.resampling import Resampling, resampling, resizing

JUDGES: dict[str, Any] = dict(
    np.load(Path(__file__).parents[2] / "fixtures/preprocessing/judges.npz")
)


def prepared(scan: Volume, model: ModelCard, patch: Any = (8, 8, 8)) -> Prepared:
    settings = replace(OPTIONS, patch=patch)
    crop = crop_box([scan], model)
    return prepare([scan], plan_study([scan], model, settings, (1, 1, 1), crop=crop), model)


def returned(study: Prepared, change: Any = lambda network: network) -> Volume:
    made = canvas(study)
    given: FloatArray = study.network_input.scaling.forward(study.network_input.values)
    made.target.scaling.store(change(given), made.target.values)
    return finish(study, made)[0]


def scan_of(name: str = "mr", dtype: Any = np.float32) -> Volume:
    return volume(np.asfortranarray(JUDGES[name].astype(dtype)))


@pytest.mark.parametrize("axes", ["RAS", "SPL"])
def test_the_box_is_nnunets_and_goes_back_to_its_place(axes: str) -> None:
    model = card(crop=ScanCrop("nonzero", 0, -7.0), axes=axes)
    scan = scan_of()
    assert crop_box([scan], model) == tuple(slice(*edges) for edges in JUDGES["nnunet_box"])
    result = returned(prepared(scan, model), lambda network: network + 1)
    expected = np.full(scan.shape, -7.0, np.float32)
    box = crop_box([scan], model) or ()
    expected[box] = scan.voxels[box] + 1
    np.testing.assert_array_equal(result.voxels, expected)
    assert result.affine is scan.affine


def test_a_margin_ends_with_the_scan_and_statistics_are_those_of_the_box() -> None:
    model = card(crop=ScanCrop("positive", 3, 0.0), intensity_in=ZScore(), intensity_out=ZScore())
    scan = scan_of()
    box = crop_box([scan], model) or ()
    positive = np.nonzero(scan.voxels > 0)
    for edge, places, extent in zip(box, positive, scan.shape, strict=True):
        assert edge == slice(max(places.min() - 3, 0), min(places.max() + 4, extent))
    [given] = prepared(scan, model).network_input.values
    part = scan.voxels[box].astype(np.float64)
    np.testing.assert_allclose(given, (part - part.mean()) / part.std(), atol=2e-6)


def test_fills_are_stored_as_the_scan_is() -> None:
    scan = volume(JUDGES["ct"], slope=2.0, intercept=-24.0)
    model = card(
        crop=ScanCrop("above_mean", 0, -1024.0), intensity_in=ZScore(), intensity_out=ZScore()
    )
    result = returned(prepared(scan, model))
    assert result.voxels.dtype == scan.voxels.dtype
    assert result.voxels[0, 0, 0] == -500


def test_a_scan_without_foreground_is_refused() -> None:
    model = card(crop=ScanCrop("positive", 0, 0.0))
    with pytest.raises(PreparationError, match="above 0, and the scan has none"):
        crop_box([volume(np.minimum(JUDGES["ct"], 0))], model)


def test_a_fixed_grid_is_pytorchs_interpolation() -> None:
    from torch import from_numpy
    from torch.nn.functional import interpolate

    scan = scan_of()
    [given] = prepared(scan, card(grid=(16, 24, 20))).network_input.values
    tensor = from_numpy(np.ascontiguousarray(scan.voxels))[None, None]
    [[expected]] = interpolate(tensor, (16, 24, 20), mode="trilinear").numpy()
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert resizing((4, 5, 6), (4, 5, 6)) is None


def test_a_fixed_grid_comes_back() -> None:
    scan = scan_of()
    smooth = scan.with_voxels(np.asfortranarray(np.indices(scan.shape).sum(0).astype(np.float32)))
    result = returned(prepared(smooth, card(grid=(40, 36, 32))))
    inner = (slice(1, -1),) * 3
    np.testing.assert_allclose(result.voxels[inner], smooth.voxels[inner], atol=1e-4)


NNUNET_TILING = Tiling("nnunet", (0.5, 0.5, 0.5))
NNUNET = {
    "cubic": ((1.0, 1.0, 1.0), (1.3, 0.8, 1.1)),
    "planes": ((5.0, 1.0, 1.0), (4.0, 1.2, 0.9)),
    "coarse target": ((1.0, 1.0, 2.0), (1.0, 1.0, 6.0)),
    "two coarse axes": ((4.0, 4.0, 1.0), (3.0, 3.0, 1.0)),
}


@pytest.mark.parametrize("case", NNUNET)
def test_grids_are_nnunets(case: str) -> None:
    """Both ways; the stored arrays are those of its resample_data_or_seg_to_shape."""
    here, there = NNUNET[case]
    values = JUDGES["mr"].astype(np.float32)
    found = resampling(values.shape, here, there, "nnunet")
    assert found is not None
    expected = JUDGES[f"nnunet resampled, {case}"]
    assert found.target == expected.shape
    most = np.abs(values).max()
    made = whole(found, values)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-6 * most)
    back = whole(found.inverse, expected)
    np.testing.assert_allclose(
        back, JUDGES[f"nnunet resampled back, {case}"], rtol=0, atol=1e-6 * most
    )


def whole(resampling: Resampling, values: FloatArray) -> FloatArray:
    return np.concatenate([rows for _, rows in resampling.parts(lambda a, b: values[a:b])])


def test_patches_are_nnunets() -> None:
    layout = cover((50, 33, 16), (16, 16, 16), 0.5, tiling=NNUNET_TILING)
    assert [list(row) for row in layout.origins] == [[0, 7, 14, 20, 27, 34], [0, 6, 11, 17], [0]]
    weights = patch_weights(cover((10, 12, 7), (10, 12, 7), 0.5, tiling=NNUNET_TILING), "gaussian")
    np.testing.assert_array_equal(weights, JUDGES["nnunet_gaussian"].astype(np.float32))


def test_zeros_surround_a_scan_smaller_than_nnunets_patch() -> None:
    scan = scan_of("ct")
    model = card(tiling=NNUNET_TILING, intensity_in=Steps((ZScore(),)), intensity_out=Identity())
    study = prepared(scan, model, (21, 18, 24))
    [origin] = study.plan.layout
    given = Cutter(study.network_input, study.plan.layout, model.padding).cut(origin)[0, 0]
    inside = given[0:20, :, 4:20]
    np.testing.assert_allclose(inside.mean(), 0, atol=1e-5)
    assert np.count_nonzero(given) == np.count_nonzero(inside)
    np.testing.assert_array_equal(returned(study).voxels, inside)


STEPS = (1.37, 0.713, 1.619)
"""Steps of the resampled grid along x, y and z, in voxels of the scan."""


def by_simpleitk(values: Any) -> Any:
    """Values [x, y, z] as `sitk.Resample` makes them onto a grid with the same origin."""
    sitk: Any = import_module("SimpleITK")
    image = sitk.GetImageFromArray(np.ascontiguousarray(values.transpose(2, 1, 0)))
    extents = [round(n / step) for n, step in zip(values.shape, STEPS, strict=True)]
    made = sitk.Resample(
        image, extents, sitk.Transform(), sitk.sitkLinear, image.GetOrigin(), STEPS
    )
    return sitk.GetArrayFromImage(made).transpose(2, 1, 0)


@pytest.mark.parametrize("stored", ["NIfTI", "NIfTI, scaled", "float", "DICOM, shifted", "cover"])
def test_integers_stay_integers_where_simpleitk_keeps_the_voxel_type(stored: str) -> None:
    values = np.random.default_rng(5).integers(-900, 1500, (14, 13, 15)).astype(np.int16)
    scan = volume(np.asfortranarray(values))
    if stored == "float":
        scan = scan.with_voxels(scan.voxels.astype(np.float32))
    elif stored == "NIfTI, scaled":
        scan = scan.with_voxels(scan.voxels, slope=0.5)
    elif stored == "DICOM, shifted":
        scan = replace(scan.with_voxels(scan.voxels, intercept=-1024.0), format="dicom")
    model = card(
        axes="RAS",
        spacing=(STEPS[0], STEPS[1], STEPS[2]),
        grid_rule="cover" if stored == "cover" else "simpleitk",
        maps_on="grid",
    )
    plan = plan_study([scan], model, OPTIONS, (1, 1, 1))
    assert plan.resampling is not None
    made = on_grid(scan, plan.orientation, plan.resampling).values()
    is_whole = stored in ("NIfTI", "DICOM, shifted")
    assert np.array_equal(made, np.trunc(made)) == is_whole
    if stored != "cover":
        given = scan.values() if not is_whole else scan.values().astype(np.int16)
        wanted = by_simpleitk(given)[tuple(map(slice, made.shape))]
        within = tuple(
            slice(0, int((n - 1) / s) + 1) for n, s in zip(values.shape, STEPS, strict=True)
        )
        differing = np.abs(made - wanted)[within]
        assert differing.max() <= (1.0 if is_whole else 2e-3)
        assert np.count_nonzero(differing > 2e-3) <= 3  # a whole number, but for its last bit
