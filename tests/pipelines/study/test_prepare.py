"""Way from a scan to the network's array and back onto the scan's own grid."""

from itertools import permutations, product
from typing import Any

import nibabel.orientations as nibabel_orientations
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.numerics_models import FunctionGenerator, card, prepared_scan, small_resnet, volume
from support.tiers import examples

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.generator import PatchGenerator
from cuda_cyclegan.engine.model.intensity_maps import (
    Identity,
    IntensityMap,
    MinMax,
    Percentiles,
    Window,
    ZScore,
)
from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.finish import Canvas, canvas, finish
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.prepare import Prepared
from cuda_cyclegan.pipelines.study.resampling import SAME_SPACING
from cuda_cyclegan.pipelines.study.voxel_type import voxel_type_of

INTEGERS = ["uint8", "int8", "uint16", "int16", ">i2", "uint32", "int32", "uint64", "int64"]
AXES = ["".join(c) for p in permutations(("LR", "AP", "IS")) for c in product(*p)]


def identity_run(study: Volume, of: ModelCard) -> Volume:
    """A whole chain with a generator that changes nothing."""
    return run(study, of, FunctionGenerator(), (8, 8, 8), 0.5)


def run(
    study: Volume, of: ModelCard, generator: PatchGenerator, patch: Triple, overlap: float
) -> Volume:
    asked = TranslateOptions(patch, overlap, precision="fp32").resolved()
    prepared = prepared_scan(study, of, options=asked, stride=generator.graph.stride)
    made = canvas(prepared)
    window = SlidingWindow(prepared.plan.layout, "gaussian", "edge")
    translate_array(
        prepared.network_input, made.target, generator, window, Stopwatch(), lambda _: None
    )
    [result] = finish(prepared, made)
    return result


def intensities(prepared: Prepared) -> FloatArray:
    return prepared.network_input.scaling.forward(prepared.network_input.values)


def finished(prepared: Prepared, network: FloatArray) -> Volume:
    [result] = finish(prepared, Canvas(Stored(network)))
    return result


def signed_permutation(order: tuple[int, ...], signs: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.eye(3)[:, list(order)] * signs


def rotation(angles: tuple[float, float, float]) -> np.ndarray[Any, Any]:
    """Rotation about x, y and z in turn, in radians."""
    turned = np.eye(3)
    for axis, angle in enumerate(angles):
        one = np.eye(3)
        a, b = [i for i in range(3) if i != axis]
        one[[a, b], [a, b]] = np.cos(angle)
        one[a, b], one[b, a] = -np.sin(angle), np.sin(angle)
        turned = turned @ one
    return turned


def affine_of(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    affine = np.eye(4)
    affine[:3, :3] = matrix
    affine[:3, 3] = [-30, 12, 7]
    return affine


affines = st.builds(
    lambda order, signs, angles, spacing, shear: affine_of(
        (rotation(angles) @ signed_permutation(tuple(order), signs) + shear) * spacing
    ),
    st.permutations(range(3)),
    st.tuples(*[st.sampled_from([-1, 1])] * 3),
    st.tuples(*[st.floats(-0.6, 0.6)] * 3),
    st.tuples(*[st.floats(0.5, 3)] * 3),
    st.floats(-0.05, 0.05),
)


@settings(deadline=None)
@given(affines, st.sampled_from(AXES))
def test_orientation_is_nibabels_and_comes_back(affine: np.ndarray[Any, Any], axes: str) -> None:
    voxels = np.random.default_rng(2).integers(-500, 500, (5, 6, 7)).astype(np.int16)
    study = volume(voxels, affine)
    of = card(axes=axes)
    prepared = prepared_scan(study, of)
    turn = nibabel_orientations.ornt_transform(
        nibabel_orientations.io_orientation(affine), nibabel_orientations.axcodes2ornt(axes)
    )
    np.testing.assert_array_equal(
        intensities(prepared)[0], nibabel_orientations.apply_orientation(voxels, turn)
    )
    result = finished(prepared, intensities(prepared))
    np.testing.assert_array_equal(result.voxels, voxels)
    np.testing.assert_array_equal(result.affine, affine)


def test_axes_point_where_their_letters_say() -> None:
    """A scan stored left to right, front to back, top to bottom, and a model of S, P, L."""
    affine = affine_of(np.diag([1.0, -2.0, -3.0]))
    i, j, k = np.meshgrid(np.arange(4), np.arange(5), np.arange(6), indexing="ij")
    study = volume((i + 10 * j + 100 * k).astype(np.int16), affine)
    prepared = prepared_scan(study, card(axes="SPL"))
    assert prepared.plan.layout.extents == (6, 5, 4)
    assert intensities(prepared)[0, 0, 0, 0] == 503  # D begins at the bottom, W at the right
    assert intensities(prepared)[0, 1, 0, 0] == 403
    assert intensities(prepared)[0, 0, 1, 0] == 513
    assert intensities(prepared)[0, 0, 0, 1] == 502


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "intensity",
    [Identity(), MinMax(), Percentiles(0, 100), ZScore(2), Window(-5000, 25000)],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_an_identity_model_gives_the_same_voxels(
    dtype: str, intensity: IntensityMap, narrow: bool
) -> None:
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -5000), min(limits.max, 25000)
    if narrow:
        low, high = 3, 90
    voxels = np.random.default_rng(3).integers(low, high, (11, 12, 9), endpoint=True).astype(dtype)
    of = card(intensity_in=intensity, intensity_out=intensity, axes="SPL", spacing=(1, 1, 1))
    result = identity_run(volume(voxels), of)
    np.testing.assert_array_equal(result.voxels, voxels)
    if not isinstance(intensity, Window):
        assert result.voxels.dtype == voxels.dtype.newbyteorder("=")


@settings(deadline=None)
@given(
    affines,
    st.sampled_from(AXES),
    st.sampled_from(["uint8", "int16", "float32"]),
    st.sampled_from([(1.0, 0.0), (0.1, -7.0), (1 / 3, 1000.0), (-2.0, 5.0)]),
    st.sampled_from([Identity(), MinMax(), Percentiles(0, 100), ZScore(2), Window(-9e3, 9e3)]),
    st.integers(0, 2**32 - 1),
)
def test_an_identity_model_changes_nothing_however_the_scan_lies(
    affine: np.ndarray[Any, Any],
    axes: str,
    dtype: str,
    scaling: tuple[float, float],
    intensity: IntensityMap,
    seed: int,
) -> None:
    low, high = {"uint8": (0, 255), "int16": (-2000, 3000), "float32": (-1, 1)}[dtype]
    voxels = np.random.default_rng(seed).uniform(low, high, (6, 9, 11)).astype(dtype)
    study = volume(voxels, affine, *scaling)
    of = card(intensity_in=intensity, intensity_out=intensity, axes=axes, spacing=None)
    result = identity_run(study, of)
    np.testing.assert_array_equal(result.affine, affine)
    if dtype != "float32" and voxel_type_of(result) == voxel_type_of(study):
        np.testing.assert_array_equal(result.voxels, voxels)
        return
    reach = 9e3 if isinstance(intensity, Window) else np.abs(study.values()).max()
    rounding = 0.5 * abs(result.slope) if result.voxels.dtype == np.int16 else 0
    np.testing.assert_allclose(
        result.values(), study.values(), rtol=0, atol=reach * 2**-23 + rounding
    )
    assert dtype == "float32" or isinstance(intensity, Window)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16"])
def test_every_value_of_a_type_comes_back(dtype: str) -> None:
    limits = np.iinfo(dtype)
    voxels = np.linspace(limits.min, limits.max, 16 * 64 * 64).astype(dtype).reshape(16, 64, 64)
    of = card(intensity_in=MinMax(), intensity_out=MinMax())
    np.testing.assert_array_equal(identity_run(volume(voxels), of).voxels, voxels)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floating_point_stays(dtype: str) -> None:
    voxels = np.random.default_rng(4).uniform(0, 3, (9, 9, 9)).astype(dtype)
    of = card(intensity_in=MinMax(), intensity_out=MinMax())
    result = identity_run(volume(voxels, slope=2.0, intercept=-1.0), of)
    assert result.voxels.dtype == voxels.dtype
    assert (result.slope, result.intercept) == (2.0, -1.0)
    np.testing.assert_allclose(result.voxels, voxels, rtol=0, atol=1e-6)


def test_slope_and_intercept_are_kept_and_used() -> None:
    voxels = np.random.default_rng(5).integers(0, 4096, (9, 9, 9)).astype(np.uint16)
    of = card(intensity_in=Window(-1000, 2000), intensity_out=Window(-1000, 2000))
    study = volume(voxels, slope=0.5, intercept=-1000)
    prepared = prepared_scan(study, of)
    np.testing.assert_allclose(
        intensities(prepared)[0], (study.values() + 1000) / 1500 - 1, rtol=0, atol=1e-6
    )
    result = finished(prepared, intensities(prepared))
    assert (result.slope, result.intercept, result.voxels.dtype) == (0.5, -1000, np.uint16)
    np.testing.assert_array_equal(result.voxels, voxels)


def test_a_foreign_unit_is_stored_in_a_type_that_holds_it() -> None:
    voxels = np.random.default_rng(6).integers(0, 200, (8, 8, 8)).astype(np.uint8)
    of = card(intensity_in=MinMax(), intensity_out=Window(-1024, 3071))
    prepared = prepared_scan(volume(voxels, slope=3.0), of)
    result = finished(prepared, np.full_like(intensities(prepared), -1))
    assert (result.slope, result.intercept, result.voxels.dtype) == (1, 0, np.int16)
    np.testing.assert_array_equal(result.voxels, -1024)


def test_source_voxels_are_not_held() -> None:
    study = volume(np.arange(8**3, dtype=np.int16).reshape(8, 8, 8))
    assert prepared_scan(study, card()).source.voxels.base is not study.voxels
    assert prepared_scan(study, card()).source.voxels.strides == (0, 0, 0)


@settings(deadline=None, max_examples=examples(30))
@given(
    affines,
    st.sampled_from(AXES),
    st.one_of(st.none(), st.tuples(*[st.floats(0.8, 3)] * 3)),
    st.tuples(*[st.sampled_from([-1, 0, 1])] * 3),
)
@example(affine_of(np.diag([-1.0, -1.0, 2.556])), "LAI", (1.0, 1.0, 2.554), (0, 0, -1))
def test_a_network_that_moves_voxels_moves_the_patient_by_the_models_millimetres(
    affine: np.ndarray[Any, Any],
    axes: str,
    spacing: tuple[float, float, float] | None,
    moved: Triple,
) -> None:
    """Linear interpolation keeps what is linear in the patient's space, which needs no oracle."""
    shape, gradient = (26, 24, 28), (7.0, -3.0, 11.0)
    ras = np.moveaxis(np.indices(shape), 0, -1) @ affine[:3, :3].T + affine[:3, 3]
    study = volume((ras @ gradient + 500).astype(np.float32), affine)

    def rolled(patches: FloatArray) -> FloatArray:
        return np.roll(patches, [-step for step in moved], (2, 3, 4))

    of = card(axes=axes, spacing=spacing, intensity_in=Identity(), intensity_out=Identity())
    result = run(study, of, FunctionGenerator(rolled), (96, 96, 96), 0)
    turn = nibabel_orientations.ornt_transform(
        nibabel_orientations.io_orientation(affine), nibabel_orientations.axcodes2ornt(axes)
    )
    turned = (affine @ nibabel_orientations.inv_ornt_aff(turn, shape))[:3, :3]
    voxel = np.linalg.norm(turned, axis=0)
    wanted = np.array(voxel if spacing is None else spacing)
    is_kept = abs(wanted / voxel - 1) <= SAME_SPACING
    way = turned / voxel @ (np.where(is_kept, voxel, wanted) * moved)
    margin = [int(np.ceil(2.2 * max(spacing or voxel) / have)) + 2 for have in study.spacing]
    inside = tuple(slice(edge, -edge) for edge in margin)
    expected = (ras + way) @ gradient + 500
    np.testing.assert_allclose(result.values()[inside], expected[inside], rtol=0, atol=0.02)


def test_equal_spacing_means_no_resampling() -> None:
    study = volume(np.arange(8**3, dtype=np.int16).reshape(8, 8, 8), np.diag([0.8, 1, 2, 1]))
    assert prepared_scan(study, card(spacing=(0.8, 1.0004, 2.0))).plan.resampling is None
    assert prepared_scan(study, card(spacing=(0.8, 1.002, 2.0))).plan.resampling is not None
    assert prepared_scan(study, card(spacing=None)).plan.resampling is None


@settings(deadline=None, max_examples=examples(40))
@given(affines, st.sampled_from(AXES), st.tuples(*[st.floats(0.5, 3)] * 3))
def test_resampling_moves_nothing(
    affine: np.ndarray[Any, Any], axes: str, spacing: tuple[float, float, float]
) -> None:
    """A linear ramp survives linear interpolation there and back, wherever no edge is near."""
    shape = (22, 24, 26)
    ramp = sum(
        weight * axis.astype(np.float64)
        for weight, axis in zip((1, -2, 0.5), np.indices(shape), strict=True)
    )
    study = volume(ramp.astype(np.float32), affine)
    of = card(axes=axes, spacing=spacing)
    result = finished(prepared := prepared_scan(study, of), intensities(prepared))
    margin = [int(np.ceil(3.1 / have)) + 1 for have in study.spacing]
    inner = tuple(slice(m, -m) for m in margin)
    np.testing.assert_allclose(result.voxels[inner], ramp[inner], rtol=0, atol=1e-3)
    np.testing.assert_array_equal(result.affine, affine)
    assert result.shape == shape


def test_the_field_of_view_is_kept() -> None:
    """10 voxels of 0.8 mm are 8 mm; at 1 mm that is 8 voxels, centred alike."""
    voxels = np.broadcast_to(np.arange(10.0)[:, None, None], (10, 4, 4)).astype(np.float32)
    study = volume(voxels, np.diag([0.8, 1, 1, 1]))
    prepared = prepared_scan(study, card(spacing=(1, 1, 1)))
    assert prepared.plan.layout.extents == (8, 4, 4)
    expected = (np.arange(8) + 0.5) / 0.8 - 0.5
    np.testing.assert_allclose(intensities(prepared)[0, :, 0, 0], expected, atol=1e-5)
    # 9 voxels of 0.8 mm are 7.2 mm: 8 voxels reach 0.4 mm beyond them at either end.
    shorter = prepared_scan(volume(voxels[:9], study.affine), card(spacing=(1, 1, 1)))
    assert shorter.plan.layout.extents[0] == 8


def test_resampling_does_not_depend_on_the_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_cyclegan.pipelines.study import geometry as slabs

    voxels = np.random.default_rng(7).normal(0, 1, (30, 12, 10)).astype(np.float32)
    study = volume(voxels, np.diag([0.8, 1.3, 1, 1]))
    of = card(spacing=(1, 1, 1))
    whole = prepared_scan(study, of)
    back = finished(whole, intensities(whole))
    monkeypatch.setattr(slabs, "_VOXELS", 1)
    rows = prepared_scan(study, of)
    np.testing.assert_allclose(intensities(rows), intensities(whole), rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        finished(rows, intensities(rows)).voxels, back.voxels, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("extents", [(1, 7, 9), (2, 2, 2), (40, 2, 3)])
def test_thin_volumes_are_resampled(extents: tuple[int, int, int]) -> None:
    voxels = np.arange(np.prod(extents), dtype=np.float32).reshape(extents)
    study = volume(voxels, np.diag([5.0, 1, 1, 1]))
    of = card(spacing=(1, 1, 1))
    prepared = prepared_scan(study, of)
    assert prepared.plan.layout.extents[0] == extents[0] * 5
    np.testing.assert_allclose(finished(prepared, intensities(prepared)).voxels, voxels, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "spacing", "reason"),
    [
        ((9, 9, 1), 1.0, "has 9x9x1 voxels, and a 3D model needs at least 2"),
        ((9, 8, 7), 0.001, "has 1x1x1 voxels, and a 3D model needs at least 2"),
        ((9, 8, 7), 1000.0, "9000x8000x7000 voxels; its header states 1000 x 1000 x 1000 mm"),
    ],
    ids=["one slice", "metres taken for millimetres", "micrometres taken for millimetres"],
)
def test_a_grid_no_model_can_take_is_refused(
    shape: tuple[int, int, int], spacing: float, reason: str
) -> None:
    study = volume(
        np.arange(np.prod(shape), dtype=np.int16).reshape(shape), np.diag([spacing] * 3 + [1])
    )
    with pytest.raises(PreparationError, match=reason):
        prepared_scan(study, card(spacing=(1, 1, 1)))


@pytest.mark.parametrize(("scans", "reported"), [(1, "1 scan was"), (3, "3 scans were")])
def test_as_many_scans_as_the_model_has_channels_or_none(scans: int, reported: str) -> None:
    study = volume(np.arange(8, dtype=np.int16).reshape(2, 2, 2))
    with pytest.raises(
        PreparationError, match=rf"takes 2 scans of a study \(T1, T2\), and {reported}"
    ):
        prepared_scan([study] * scans, card(input_channels=("T1", "T2")))


PLANE = np.array([[1.0, 0, 1], [0, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    "matrix", [np.diag([1.0, 0, 1]), np.full((3, 3), np.nan), np.ones((3, 3)), PLANE]
)
def test_a_flat_affine_is_refused(matrix: np.ndarray[Any, Any]) -> None:
    study = volume(np.arange(8, dtype=np.int16).reshape(2, 2, 2), affine_of(matrix))
    with pytest.raises(PreparationError, match="three directions"):
        prepared_scan(study, card())


def test_the_same_scan_gives_the_same_bits() -> None:
    """Resampling, percentiles, a network and blending are run, each time from new memory."""
    voxels = np.random.default_rng(8).integers(0, 900, (40, 36, 30)).astype(np.int16)
    of = card(
        intensity_in=Percentiles(1, 99),
        intensity_out=Percentiles(1, 99),
        axes="SPL",
        spacing=(1.0, 1.1, 0.9),
    )
    network = small_resnet()
    results: list[bytes] = []
    for _ in range(2):
        study = volume(voxels.copy(), np.diag([0.8, 0.8, 1.3, 1]))
        with open_cpu_generator(network, threads=1) as generator:
            results.append(run(study, of, generator, (32, 32, 32), 0.25).voxels.tobytes())
    assert results[0] == results[1]
    assert len(set(results[0])) > 100


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_voxels_go_in_and_come_out_as_they_are_stored(dtype: str) -> None:
    study = volume(np.arange(9**3).reshape(9, 9, 9).astype(dtype), np.diag([-1.0, 1, 1, 1]))
    of = card(intensity_in=Percentiles(1, 99), intensity_out=MinMax())
    prepared = prepared_scan(study, of)
    assert np.shares_memory(prepared.network_input.values, study.voxels)
    made = canvas(prepared)
    [result] = finish(prepared, made)
    assert np.shares_memory(made.target.values, result.voxels)
    assert result.voxels.dtype == study.voxels.dtype


def test_network_intensities_lie_in_memory_as_the_scan_does() -> None:
    voxels = np.arange(4 * 5 * 6).reshape(4, 5, 6).astype(np.int16, order="F")
    prepared = prepared_scan(volume(voxels), card(axes="SPL"), in_network=True)
    made = canvas(prepared).target.values
    assert prepared.network_input.values.strides[1:] == made.strides[1:] == (80, 16, 4)


@pytest.mark.parametrize(
    "why", [{"dtype": "int32"}, {"dtype": ">i2"}, {"spacing": (2, 2, 2)}, {"in_network": True}]
)
def test_voxels_that_cannot_stay_as_they_are_become_network_intensities(
    why: dict[str, Any],
) -> None:
    voxels = np.arange(9**3).reshape(9, 9, 9).astype(why.get("dtype", "int16"))
    of = card(intensity_in=MinMax(), intensity_out=MinMax(), spacing=why.get("spacing"))
    prepared = prepared_scan(volume(voxels), of, in_network=why.get("in_network", False))
    assert prepared.network_input.values.dtype == np.float32
    assert (prepared.network_input.values.min(), prepared.network_input.values.max()) == (-1, 1)
    if "dtype" not in why:
        assert canvas(prepared).volume is None
