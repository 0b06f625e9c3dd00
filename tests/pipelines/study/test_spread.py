"""Mean and standard deviation over mirrored patches: against NumPy, on any grid, in any unit."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counted_arrays import CountedArrays
from support.numerics_models import FunctionGenerator, card, shared, through, volume

from cuda_cyclegan.engine.model.intensity_maps import Identity, MinMax, Window
from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.scaling import Scaling, Stored
from cuda_cyclegan.io.volume import Empty, Volume
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, SpreadMoments, mean_in_foreground
from cuda_cyclegan.pipelines.study.patches import flipped, flips
from cuda_cyclegan.pipelines.study.prepare import prepare
from cuda_cyclegan.pipelines.study.translator import (
    InferredStudy,
    Scans,
    StudyTranslator,
    Translated,
)

PATCH = (8, 8, 8)
EXTENTS = (14, 12, 10)
OBLIQUE = np.array([[0, 0, 1.2, 5], [-1, 0, 0, 3], [0, 0.9, 0, -7], [0, 0, 0, 1]])
EMPTY = np.empty(0, np.float32)


def bent(patches: FloatArray) -> FloatArray:
    """Return values that differ for a patch and its mirror image."""
    return np.tanh(patches * 2 + np.roll(patches, (1, 2, 1), axis=(2, 3, 4)) / 4)


class Study:
    """A scan on its way through a generator. calls: how many patches it was given."""

    def __init__(self, scan: Volume, of: ModelCard, flip_count: int, function: Any = bent) -> None:
        self.generator = FunctionGenerator(function)
        self.scan, self.flips = scan, flip_count
        self.model = Model(of, Network(self.generator.graph, {}), EMPTY, EMPTY, "")
        self.options = TranslateOptions(PATCH, precision="fp32", spread=flip_count).resolved()
        self.plan = StudyTranslator(self.model, self.options).plan(Scans((scan,), ()))
        self.reported: list[tuple[int, int]] = []

    def inferred(self, empty: Empty = np.empty) -> InferredStudy:
        translator = StudyTranslator(self.model, self.options, empty=empty)
        prepared = translator.prepare(Scans((self.scan,), ()), self.plan)
        return translator.infer(
            prepared, shared(self.generator), lambda *done: self.reported.append(done)
        )

    def translated(self, empty: Empty = np.empty) -> Translated:
        return self.finished(self.inferred(empty), empty)

    def finished(self, inferred: InferredStudy, empty: Empty = np.empty) -> Translated:
        return StudyTranslator(self.model, self.options, empty=empty).finish(inferred)

    def each(self) -> list[FloatArray]:
        """Return the output of each flip by itself, in network intensity on the model's grid."""
        prepared = prepare([self.scan], self.plan, self.model.card)
        given = prepared.network_input.scaling.forward(prepared.network_input.values)
        window = SlidingWindow(self.plan.layout, self.options.blend, "edge")
        return [
            through(
                given,
                FunctionGenerator(
                    lambda patches, flip=flip: flipped(bent(flipped(patches, flip)), flip)
                ),
                window,
            )[0]
            for flip in flips(self.flips, self.model.card.axes)
        ]


def scan_of(dtype: str) -> Volume:
    voxels = np.random.default_rng(2).uniform(0, 200, EXTENTS).astype(dtype)
    return volume(voxels, OBLIQUE, slope=2.0 if dtype == "int16" else 1.0)


@settings(deadline=None)
@given(
    st.integers(2, 8),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
    st.permutations(range(3)),
    st.integers(0, 10**6),
)
def test_moments_are_those_of_numpy(
    count: int, extents: Triple, axes: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    arrays = random.uniform(-1, 1, (count, *extents)).astype(np.float32)
    laid = np.full((2, *(extents[axis] for axis in axes)), np.nan, np.float32)
    mean, deviation = (each.transpose(np.argsort(axes)) for each in laid)
    moments = SpreadMoments(mean, deviation)
    for array in arrays:
        moments.add(array)
    moments.end()
    exact = arrays.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(axis=0), rtol=0, atol=1e-6)
    np.testing.assert_allclose(deviation, exact.std(axis=0, ddof=1), rtol=0, atol=1e-6)


@given(st.integers(2, 8), st.floats(-1e6, 1e6, width=32))
def test_arrays_that_agree_have_no_deviation_at_all(count: int, value: float) -> None:
    moments = SpreadMoments(*np.empty((2, 3, 4, 5), np.float32))
    for _ in range(count):
        moments.add(np.full((3, 4, 5), value, np.float32))
    moments.end()
    assert (moments.mean == np.float32(value)).all()
    assert (moments.deviation == 0).all()


def test_the_foreground_is_what_is_not_air_whatever_the_scan_is_stored_as() -> None:
    stored = np.full((1, 30, 30, 30), -1000, np.int16)
    stored[0, 5:20, 8:25, 3:] = 50
    values = np.where(stored[0] == 50, 3.0, 77.0).astype(np.float32)
    given_scan = Stored(stored.transpose(0, 3, 1, 2), Scaling(0.0, 1000.0))
    assert mean_in_foreground(values.transpose(2, 0, 1), given_scan) == 3.0
    flat = Stored(np.zeros((1, 3, 3, 3), np.float32))
    assert mean_in_foreground(np.full((3, 3, 3), 2.0, np.float32), flat) == 2.0


def test_the_foreground_of_several_scans_is_that_of_the_first() -> None:
    first = np.zeros((4, 4, 4), np.float32)
    first[1:3] = 1
    values = np.where(first > 0, np.float32(3), np.float32(7))
    assert mean_in_foreground(values, Stored(np.stack([first, 10 - 10 * first]))) == 3.0


@pytest.mark.parametrize("axes", ["RAS", "SPL"])
@pytest.mark.parametrize("dtype", ["int16", "float32"])
@pytest.mark.parametrize("flip_count", [2, 5, 8])
def test_maps_are_mean_and_deviation_of_the_results_before_they_are_rounded(
    dtype: str, flip_count: int, axes: str
) -> None:
    of = card(axes=axes, intensity_in=MinMax(), intensity_out=Window(-100, 900))
    study = Study(scan_of(dtype), of, flip_count)
    made = study.translated()
    results = np.stack(study.each()).astype(np.float64) * 500 + 400
    mean, deviation = (study.plan.orientation.oriented(each.volume.voxels) for each in made.maps)
    np.testing.assert_allclose(mean, results.mean(axis=0), rtol=0, atol=2e-3)
    np.testing.assert_allclose(deviation, results.std(axis=0, ddof=1), rtol=0, atol=2e-3)
    assert deviation.max() > 1
    for each in made.maps:
        stored = each.volume
        assert (stored.voxels.dtype, stored.slope, stored.intercept) == (np.float32, 1.0, 0.0)
        np.testing.assert_array_equal(stored.affine, OBLIQUE)
    assert [each.mark.words for each in made.maps] == [
        f"mean of {flip_count} flips",
        f"sd of {flip_count} flips",
    ]
    assert made.spread
    assert made.spread.flips == flip_count
    assert made.spread.deviation == pytest.approx(500 * _in_foreground(study), rel=1e-4)
    assert made.patches == flip_count * len(study.plan.layout)
    assert study.reported == [
        (done, made.patches)
        for before in range(flip_count)
        for done in range(
            before * len(study.plan.layout), (before + 1) * len(study.plan.layout) + 1
        )
    ]


def _in_foreground(study: Study) -> float:
    """Compute the figure by its definition, from a scan of few voxels, all of which are used."""
    prepared = prepare([study.scan], study.plan, study.model.card)
    deviation = np.stack(study.each()).std(axis=0, ddof=1, dtype=np.float64)
    return mean_in_foreground(deviation.astype(np.float32), prepared.network_input)


def test_a_result_that_is_turned_upside_down_has_a_deviation_nevertheless() -> None:
    """The network's own range may run against that of the scan."""
    voxels = np.random.default_rng(2).uniform(0, 200, EXTENTS).astype(np.float32)
    of = card(intensity_in=MinMax(), intensity_out=MinMax())
    scan = volume(-voxels, slope=-1.0)
    deviation = Study(scan, of, 4).translated().maps[1].volume.voxels
    assert deviation.min() >= 0
    assert deviation.max() > 0


@pytest.mark.parametrize("wanted", [(0.7, 1.0, 1.0), (1.9, 1.5, 2.2)])
def test_maps_come_back_from_the_spacing_of_the_model(wanted: Any) -> None:
    of = card(intensity_in=MinMax(), intensity_out=Window(-100, 900), spacing=wanted)
    study = Study(scan_of("int16"), of, 4)
    assert study.plan.resampling
    made = study.translated()
    outputs = np.stack(study.each())
    expected = outputs.mean(axis=0, dtype=np.float64), outputs.std(axis=0, ddof=1, dtype=np.float64)
    back = study.plan.resampling.inverse
    for each, network, (centre, radius) in zip(
        made.maps, expected, ((400, 500), (0, 500)), strict=True
    ):
        array = network.astype(np.float32)
        exact = back.rows(lambda start, stop, a=array: a[start:stop], 0, back.target[0])
        seen = study.plan.orientation.oriented(each.volume.voxels)
        np.testing.assert_allclose(seen, exact * radius + centre, rtol=0, atol=5e-3)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("out", [Identity(), MinMax(), Window(-100, 900)], ids=str)
@pytest.mark.parametrize("spacing", [None, (0.7, 1.0, 1.0)])
def test_the_result_has_the_same_bytes_as_without(dtype: str, out: Any, spacing: Any) -> None:
    of = card(intensity_in=MinMax(), intensity_out=out, spacing=spacing)
    alone, beside = (Study(scan_of(dtype), of, count).translated() for count in (0, 5))
    assert (alone.maps, alone.spread) == ((), None)
    assert beside.volumes[0].voxels.dtype == alone.volumes[0].voxels.dtype
    assert beside.volumes[0].voxels.tobytes() == alone.volumes[0].voxels.tobytes()
    assert (beside.volumes[0].slope, beside.volumes[0].intercept) == (
        alone.volumes[0].slope,
        alone.volumes[0].intercept,
    )


@pytest.mark.parametrize(
    ("dtype", "out", "spacing"),
    [
        *product(
            ["uint8", "int16", "float32", "float64"],
            [MinMax(), Window(-100, 900)],
            [None, (0.7, 1, 1), (1.9, 1.5, 2.2)],
        )
    ],
)
def test_large_arrays_are_counted_in_the_memory_estimate(
    dtype: str, out: Any, spacing: Any
) -> None:
    arrays = CountedArrays()

    study = Study(
        scan_of(dtype), card(intensity_in=MinMax(), intensity_out=out, spacing=spacing), 5
    )
    inferred = study.inferred(arrays.empty)
    foreseen, extents = study.plan.footprint, study.plan.layout.extents
    given_values = inferred.study.prepared.network_input.values
    is_given = np.shares_memory(given_values, study.scan.voxels)
    scan = study.scan.voxels.nbytes if is_given else 0
    blended = 2 * min(8, extents[0]) * extents[1] * extents[2] * 4
    assert foreseen.translated == scan + sum(arrays.sizes) + blended
    study.finished(inferred, arrays.empty)
    assert foreseen.finished == scan + sum(arrays.sizes)
    alone = Study(study.scan, study.model.card, 0).plan.footprint
    assert foreseen.peak > alone.peak
