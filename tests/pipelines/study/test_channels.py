"""Studies of several channels: as PyTorch and MONAI translate them, on the CPU and as on a card."""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.counted_arrays import CountedArrays
from support.described_gpus import H200
from support.numerics_models import card, prepared_scan, small_network, volume
from support.step_interpreter import interpret
from support.streamed_window import replace_buffers, run_window_into

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.model.intensity_maps import (
    Identity,
    IntensityMap,
    MinMax,
    Percentiles,
    Window,
    ZScore,
)
from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.finish import Canvas, canvas, finish
from cuda_cyclegan.pipelines.study.grids import on_one_grid
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.prepare import Prepared

PATCH, EXTENTS, OVERLAP = (16, 16, 16), (28, 16, 22), 0.25
OPTIONS = TranslateOptions(PATCH, OVERLAP, precision="fp32").resolved()
"""The origins of both layouts are the same where the patch less its overlap divides the rest."""

MAPS_IN: tuple[IntensityMap, ...] = (Percentiles(1, 99), Window(0, 300))
MAPS_OUT: tuple[IntensityMap, ...] = (Window(-1000, 2000), Percentiles(1, 99))
NETWORKS = {
    "2 to 1": ResNetSpec(2, 1, 4, 1),
    "1 to 2": ResNetSpec(1, 2, 4, 1),
    "2 to 2": ResNetSpec(2, 2, 4, 1, padding="replicate"),
    "U-Net, 2 to 1": UNetSpec(2, 1, 4, 3),
}


def maps(every: tuple[IntensityMap, ...], count: int) -> Any:
    return every[:count] if count > 1 else every[0]


def card_of(spec: Any, **changes: Any) -> ModelCard:
    into, out = spec.in_channels, spec.out_channels
    return card(
        **{
            "architecture": spec,
            "input_channels": ("T1", "T2")[:into],
            "output_channels": ("CT", "PET")[:out],
            "intensity_in": maps(MAPS_IN, into),
            "intensity_out": maps(MAPS_OUT, out),
            "patch": PATCH,
            **changes,
        }
    )


def scans(count: int, kind: str = "int16") -> list[Volume]:
    """The first with a slope, lying as NIfTI does, the other as float32 in C order."""
    random = np.random.default_rng(4)
    first = random.integers(0, 4000, EXTENTS).astype(kind, order="F")
    second = random.uniform(-20, 400, EXTENTS).astype(np.float32)
    return [volume(first, slope=0.5, intercept=-100), volume(second)][:count]


def mapped(scan: Volume, intensity: IntensityMap) -> Any:
    """Map into the network and, as (middle, half of the width), out of it, by the model card's
    definition.
    """
    values = scan.voxels * np.float64(scan.slope) + scan.intercept
    match intensity:
        case Window(low, high):
            ends = low, high
        case Percentiles(low, high):
            ends = tuple(np.percentile(values, [low, high]))
        case _:
            raise AssertionError(intensity)
    middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    return np.clip((values - middle) / half, -1, 1).astype(np.float32), (middle, half)


def by_torch_and_monai(volumes: list[Volume], of: ModelCard, network: Network) -> list[FloatArray]:
    """Values of each result, of which nothing goes through this program but the weights."""
    torch = pytest.importorskip("torch")
    inferers = pytest.importorskip("monai.inferers.utils")
    from cuda_cyclegan.engine.benchmark.pytorch import as_module

    given = np.stack([mapped(v, m)[0] for v, m in zip(volumes, of.maps_in, strict=True)])
    with torch.inference_mode():
        made = inferers.sliding_window_inference(
            torch.from_numpy(given[None]),
            PATCH,
            1,
            as_module(network),
            overlap=OVERLAP,
            mode="gaussian",
            sigma_scale=0.125,
            padding_mode="replicate",
        )[0].numpy()
    lines = [mapped(volumes[0], intensity)[1] for intensity in of.maps_out]
    return [each * half + middle for each, (middle, half) in zip(made, lines, strict=True)]


def steps_of(network: Network) -> Any:
    """The compiled steps of a network, carried out in numpy."""
    lowered = lower(network, Layout(PATCH, 1, "fp16"), H200)
    return lambda patches: interpret(lowered, patches, network.graph.out_channels)


def results(prepared: Prepared, made: Canvas) -> list[FloatArray]:
    return [each.values() for each in finish(prepared, made)]


def assert_same(ours: list[FloatArray], theirs: list[FloatArray], prepared: Prepared) -> None:
    """Assert equality to 1e-5 of the range of each result, and what its voxel type rounds away."""
    for mine, other, plan, outward in zip(
        ours, theirs, prepared.plan.results, prepared.fit.outward, strict=True
    ):
        voxel_type = plan.voxel_type
        is_whole = voxel_type and voxel_type.dtype.kind == "i"
        rounded = abs(voxel_type.slope) / 2 if voxel_type and is_whole else 0
        allowed = 1e-5 * outward.scaling.radius + 1.001 * rounded
        np.testing.assert_allclose(mine, other, rtol=0, atol=allowed)
        assert mine.std() > 0.01 * outward.scaling.radius


CASES = [*((name, "float32") for name in NETWORKS), ("2 to 1", "int16"), ("1 to 2", "int16")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_on_the_cpu_it_is_what_pytorch_and_monai_make(name: str, kind: str) -> None:
    spec = NETWORKS[name]
    network, of = small_network(build(spec)), card_of(spec)
    volumes = scans(spec.in_channels, kind)
    prepared = prepared_scan(volumes, of, options=OPTIONS)
    made, window = canvas(prepared), SlidingWindow(prepared.plan.layout, "gaussian", "edge")
    with open_cpu_generator(network, threads=1) as generator:
        translate_array(
            prepared.network_input, made.target, generator, window, Stopwatch(), lambda _: None
        )
    assert_same(results(prepared, made), by_torch_and_monai(volumes, of, network), prepared)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_as_on_a_card_it_is_what_pytorch_and_monai_make(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled steps in numpy, between the window's own kernels in a fake card's queues."""
    pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")
    replace_buffers(monkeypatch)
    spec = NETWORKS[name]
    network, of = small_network(build(spec)), card_of(spec)
    volumes = scans(spec.in_channels, kind)
    prepared = prepared_scan(volumes, of, options=OPTIONS)
    made, window = canvas(prepared), SlidingWindow(prepared.plan.layout, "gaussian", "edge")
    run_window_into(
        prepared.network_input,
        made.target,
        window,
        steps_of(network),
        graph=network.graph,
    )
    assert_same(results(prepared, made), by_torch_and_monai(volumes, of, network), prepared)


class TestMaps:
    def test_each_channel_has_its_own(self) -> None:
        first, second = scans(2)
        of = card_of(NETWORKS["2 to 1"])
        given = prepared_scan([first, second], of).network_input
        for array, scan, intensity in zip(
            given.scaling.forward(given.values), (first, second), MAPS_IN, strict=True
        ):
            np.testing.assert_allclose(array, mapped(scan, intensity)[0], atol=1e-6)

    def test_one_for_all_is_fitted_to_each_scan_by_itself(self) -> None:
        of = card_of(NETWORKS["2 to 1"], intensity_in=MinMax())
        given = prepared_scan(scans(2), of).network_input
        assert given.values.min(axis=(1, 2, 3)).tolist() == [-1, -1]
        assert given.values.max(axis=(1, 2, 3)).tolist() == [1, 1]

    def test_a_result_in_the_first_scans_unit_is_stored_as_that(self) -> None:
        spec = NETWORKS["2 to 2"]
        of = card_of(spec, intensity_out=(MAPS_IN[0], Window(-1000, 2000)))
        first, second = prepared_scan(scans(2), of).plan.results
        assert first.keeps_unit
        assert first.voxel_type
        assert (first.voxel_type.dtype, first.voxel_type.slope) == (np.int16, 0.5)
        assert not second.keeps_unit

    def test_one_whose_result_decides_its_type_is_measured_by_itself(self) -> None:
        of = card_of(NETWORKS["1 to 2"], intensity_out=Identity())
        prepared = prepared_scan(scans(1), of)
        made = np.stack([np.full(EXTENTS, value, np.float32) for value in (0.1, 3000.0)])
        made[:, 0] = [[[0.2]], [[-500.0]]]
        types = [each.voxels.dtype for each in finish(prepared, Canvas(Stored(made)))]
        assert types == [np.float32, np.int16]

    def test_a_scan_without_contrast_is_named(self) -> None:
        first, second = scans(2)
        flat = second.with_voxels(np.full(EXTENTS, 7, np.int16))
        with pytest.raises(PreparationError, match="T2: Every voxel has the value 7"):
            prepared_scan([first, flat], card_of(NETWORKS["2 to 1"]))
        with pytest.raises(PreparationError, match=r"^Every voxel"):
            prepared_scan(flat, card(intensity_in=ZScore(), intensity_out=ZScore()))


def test_at_the_models_spacing_all_channels_are_resampled() -> None:
    of = card_of(NETWORKS["2 to 1"], spacing=(2.0, 2.0, 2.0), intensity_in=Identity())
    ramp = np.add.outer(np.arange(8.0), np.zeros((8, 8)))
    two = [volume(ramp.astype(np.float32)), volume((100 - ramp).astype(np.float32))]
    given = prepared_scan(two, of).network_input.values
    assert given.shape == (2, 4, 4, 4)
    np.testing.assert_allclose(given.sum(axis=0), 100, atol=1e-4)


class TestFootprint:
    @pytest.mark.parametrize("name", ["2 to 1", "1 to 2", "2 to 2"])
    def test_large_arrays_are_counted_in_the_memory_estimate(self, name: str) -> None:
        spec, arrays = NETWORKS[name], CountedArrays()

        volumes = scans(spec.in_channels)
        prepared = prepared_scan(volumes, card_of(spec), arrays.empty)
        foreseen = prepared.plan.footprint
        read = sum(each.voxels.nbytes for each in volumes)
        assert foreseen.read == read + sum(arrays.sizes)
        kept = read if not np.shares_memory(prepared.network_input.values, volumes[0].voxels) else 0
        made = canvas(prepared, arrays.empty)
        rows = prepared.plan.layout.patch[0] * EXTENTS[1] * EXTENTS[2] * 4
        held = read - kept + sum(arrays.sizes)
        assert foreseen.translated == held + (1 + spec.out_channels) * rows
        made.target.values[...] = 0
        finish(prepared, made, arrays.empty)
        assert foreseen.finished == read - kept + sum(arrays.sizes)


class TestAlignment:
    @staticmethod
    def moved(scan: Volume, by: float) -> Volume:
        affine = scan.affine.copy()
        affine[0, 3] += by
        return replace(scan, affine=affine)

    def test_grids_that_are_one_stay_as_they_are(self) -> None:
        volumes = scans(2)
        assert on_one_grid(volumes, ("T1", "T2"), resample=True) == (tuple(volumes), ())

    def test_grids_that_differ_are_refused_with_the_figures(self) -> None:
        first, second = scans(2)
        with pytest.raises(
            PreparationError,
            match=r"grids of T2 and T1 differ: corners that lie up to 0.5 mm apart; register",
        ):
            on_one_grid((first, self.moved(second, 0.5)), ("T1", "T2"), resample=False)

    def test_resampled_it_lies_where_it_did(self) -> None:
        """A function that is linear in space, so that trilinear interpolation keeps it."""
        oblique = np.array(
            [[0.9, 0.1, 0, 5], [-0.1, 0.8, 0.1, -3], [0, 0.1, -1.2, 7], [0, 0, 0, 1.0]]
        )
        there = np.diag([0.5, 0.6, 0.4, 1.0])
        there[:3, 3] = (3, -9, -10)
        shape = (40, 50, 60)

        def plane(affine: Any, extents: tuple[int, int, int]) -> Any:
            index = np.indices(extents).reshape(3, -1)
            place = affine[:3, :3] @ index + affine[:3, 3:]
            return ((3, -2, 5) @ place + 40).reshape(extents)

        first = volume(np.zeros((6, 7, 5), np.int16), oblique)
        second = volume((plane(there, shape) * 10).astype(np.float32), there, 0.1, 0.0)
        (_, made), _ = on_one_grid((first, second), ("T1", "T2"), resample=True)
        assert made.shape == first.shape
        assert np.array_equal(made.affine, first.affine)
        inside = made.voxels != second.values().min()
        assert inside.mean() > 0.9
        np.testing.assert_allclose(
            made.voxels[inside], plane(oblique, (6, 7, 5))[inside], atol=2e-3
        )

    def test_work_done_is_reported_with_the_figures(self) -> None:
        first, second = scans(2)
        (_, made), done = on_one_grid((first, self.moved(second, 10)), ("T1", "T2"), resample=True)
        assert done == (
            "T2 was resampled onto T1, trilinearly: corners that lie up to 10 mm apart; 35.7% of "
            "its voxels are outside and get its lowest value",
        )
        assert (made.voxels[:10] == second.voxels.min()).all()
        np.testing.assert_allclose(made.voxels[10:], second.voxels[:-10], rtol=1e-6)

    def test_a_scan_of_another_place_is_refused(self) -> None:
        first, second = scans(2)
        with pytest.raises(PreparationError, match="T2 is at another position than the first scan"):
            on_one_grid((first, self.moved(second, 500)), ("T1", "T2"), resample=True)

    def test_a_grid_that_runs_the_other_way_comes_back_voxel_by_voxel(self) -> None:
        first, second = scans(2)
        turned = np.diag([-1.0, 1, 1, 1])
        turned[0, 3] = EXTENTS[0] - 1
        flipped = replace(second, voxels=second.voxels[::-1], affine=turned)
        (_, made), _ = on_one_grid((first, flipped), ("T1", "T2"), resample=True)
        np.testing.assert_allclose(made.voxels, second.voxels, rtol=1e-6)
