"""Tilings and grids of other codes: the same volume as MONAI's, TorchIO's and SimpleITK's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lazy_modules import inferers, torch
from support.numerics_models import FunctionGenerator, translated
from support.tiling_cases import SPACINGS, TORCHIO, array_of, placed

from cuda_cyclegan.engine.model.tiling import OWN, Tiling
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.engine.patch_grid import PatchPadding
from cuda_cyclegan.pipelines.study.patches import cover
from cuda_cyclegan.pipelines.study.resampling import resampling

JUDGES: dict[str, Any] = dict(np.load(Path(__file__).parents[2] / "fixtures/torchio/judges.npz"))
NEAR = 2e-6
BLENDS: dict[str, Blend] = {"crop": "crop", "average": "constant", "hann": "hann"}

edges = st.integers(1, 9)
shares = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.625, 0.8])


@pytest.mark.parametrize("name", TORCHIO)
def test_patches_are_torchios(name: str) -> None:
    case = TORCHIO[name]
    overlap = tuple(o / p for o, p in zip(case.overlap, case.patch, strict=True))
    assert len(overlap) == 3
    tiling = Tiling("torchio", overlap, BLENDS[case.mode], border=case.padding is not None)
    layout = cover(case.extents, case.patch, overlap, (4, 4, 4), tiling)
    padding: PatchPadding = "edge" if case.padding is None else case.padding
    made = translated(
        array_of(case.extents), FunctionGenerator(placed), layout, tiling.blend, padding
    )
    np.testing.assert_allclose(made, JUDGES[name], rtol=0, atol=NEAR)


@settings(deadline=None, max_examples=30)
@given(
    st.tuples(*[st.integers(1, 16)] * 3),
    st.tuples(edges, edges, edges),
    st.tuples(shares, shares, shares),
    st.sampled_from(["constant", "gaussian"]),
    st.sampled_from([0.0, -1.0, 0.37]),
)
def test_patches_are_monais(
    extents: Triple,
    patch: Triple,
    overlap: tuple[float, float, float],
    blend: Blend,
    value: float,
) -> None:
    def predict(patches: Any) -> Any:
        return torch.from_numpy(placed(patches.contiguous().numpy()))

    array = array_of(extents)
    layout = cover(extents, patch, overlap, (4, 4, 4), OWN["monai"])
    made = translated(array, FunctionGenerator(placed), layout, blend, value)
    wanted = inferers.sliding_window_inference(
        torch.from_numpy(array[None]),
        patch,
        1,
        predict,
        overlap=overlap,
        mode=blend,
        padding_mode="constant",
        cval=value,
    )
    np.testing.assert_allclose(made, wanted.numpy()[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SPACINGS)
def test_grids_are_torchios(name: str) -> None:
    extents, here, there = SPACINGS[name]
    found = resampling(extents, here, there, "torchio")
    values = array_of(extents)[0]
    assert found is not None
    made = np.concatenate([rows for _, rows in found.parts(lambda a, b: values[a:b])])
    np.testing.assert_allclose(made, JUDGES[f"resampled, {name}"], rtol=0, atol=NEAR)


@pytest.mark.parametrize("flips", [(False, False, False), (True, False, True)])
@pytest.mark.parametrize("name", SPACINGS)
def test_grids_keep_the_origin_as_with_simpleitk(name: str, flips: Any) -> None:
    """The usual lines: rounded extents, the origin of the scan as it lies in its file."""
    extents, here, there = SPACINGS[name]
    import SimpleITK as sitk  # noqa: N813

    steps = tuple(slice(None, None, -1 if flip else None) for flip in flips)
    values = array_of(extents)[0]
    image = sitk.GetImageFromArray(np.ascontiguousarray(values[steps]))
    image.SetSpacing(here[::-1])
    sizes = [
        max(round(n * have / want), 1) for n, have, want in zip(extents, here, there, strict=True)
    ]
    resampled = sitk.Resample(
        image,
        sizes[::-1],
        sitk.Transform(),
        sitk.sitkLinear,
        image.GetOrigin(),
        there[::-1],
        image.GetDirection(),
        np.nan,
    )
    wanted = sitk.GetArrayFromImage(resampled)[steps]
    found = resampling(extents, here, there, "simpleitk", flips)
    assert found is not None
    made = np.concatenate([rows for _, rows in found.parts(lambda a, b: values[a:b])])
    assert made.shape == wanted.shape
    known = np.isfinite(wanted)
    assert known.mean() > 0.5
    np.testing.assert_allclose(made[known], wanted[known], rtol=0, atol=NEAR)


@settings(deadline=None, max_examples=30)
@given(
    st.tuples(*[st.integers(2, 12)] * 3),
    st.tuples(*[st.sampled_from([0.7, 1.0, 1.5, 3.0])] * 3),
    st.sampled_from(["cover", "monai", "monai-scan", "torchio", "simpleitk"]),
    st.tuples(*[st.booleans()] * 3),
)
def test_a_grid_and_its_inverse_are_the_same_places(
    extents: Triple, here: Any, rule: Any, flips: Any
) -> None:
    found = resampling(extents, here, (1.1, 1.1, 1.1), rule, flips)
    if found is None:
        return
    place = np.indices(extents).astype(np.float32)
    for axis, values in enumerate(place):
        there = np.concatenate([rows for _, rows in found.parts(lambda a, b, v=values: v[a:b])])
        back = np.concatenate(
            [rows for _, rows in found.inverse.parts(lambda a, b, v=there: v[a:b])]
        )
        kept = (there > 0) & (there < extents[axis] - 1)
        inner = (back > there[kept].min()) & (back < there[kept].max()) if kept.any() else kept[:0]
        if kept.any():
            np.testing.assert_allclose(back[inner], values[inner], rtol=0, atol=1e-3)
