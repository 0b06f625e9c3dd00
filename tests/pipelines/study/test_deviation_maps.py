"""The disagreement of an ensemble as the last channel of its network: on any grid, in any unit."""

from typing import Any

import numpy as np
import pytest
from support.counted_arrays import CountedArrays
from support.numerics_models import FunctionGenerator, card, shared, volume

from cuda_cyclegan.engine.model.intensity_maps import MinMax, Window
from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import Concat, FloatArray, Relu
from cuda_cyclegan.io.volume import Empty, Volume
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.inference import mean_in_foreground
from cuda_cyclegan.pipelines.study.translator import InferredStudy, Scans, StudyTranslator

EMPTY = np.empty(0, np.float32)
GRAPH = Graph(1, (Node("relu", Relu(), (INPUT,)), Node("joined", Concat(), (INPUT, "relu"))))
EXTENTS = (14, 12, 10)


def with_deviation(patches: FloatArray) -> FloatArray:
    """Return a mean, and a deviation that grows with it."""
    mean = np.tanh(patches)
    return np.concatenate([mean, np.float32(0.25) * (mean + 1)], axis=1)


class Ensemble:
    """A scan on its way through a network that computes a disagreement."""

    def __init__(self, scan: Volume, of: ModelCard, **options: Any) -> None:
        self.generator = FunctionGenerator(with_deviation, GRAPH)
        self.scan = scan
        self.model = Model(of, Network(GRAPH, {}), EMPTY, EMPTY, "")
        self.options = TranslateOptions((8, 8, 8), precision="fp32", **options).resolved()
        self.plan = StudyTranslator(self.model, self.options).plan(Scans((scan,), ()))

    def inferred(self, empty: Empty = np.empty) -> InferredStudy:
        translator = StudyTranslator(self.model, self.options, empty=empty)
        prepared = translator.prepare(Scans((self.scan,), ()), self.plan)
        return translator.infer(prepared, shared(self.generator))


def scan_of(dtype: str) -> Volume:
    voxels = np.random.default_rng(2).uniform(0, 200, EXTENTS).astype(dtype)
    return volume(voxels)


@pytest.mark.parametrize("dtype", ["int16", "float32"])
@pytest.mark.parametrize("spacing", [None, (1.9, 1.5, 2.2)])
def test_map_and_measure_have_the_unit_of_the_result(dtype: str, spacing: Any) -> None:
    of = card(
        intensity_in=MinMax(), intensity_out=Window(-100, 900), spacing=spacing, disagreement=3
    )
    ensemble = Ensemble(scan_of(dtype), of, output_type="float32")
    inferred = ensemble.inferred()
    inside = mean_in_foreground(
        inferred.output.target.values[1], inferred.study.prepared.network_input
    )
    made = StudyTranslator(ensemble.model, ensemble.options).finish(inferred)
    [result], [found] = made.volumes, made.maps
    assert (found.mark.kind, found.mark.recipe) == ("disagreement", "3 networks")
    assert (found.volume.voxels.dtype, found.volume.keeps_unit) == (np.float32, False)
    wanted = 0.25 * (result.voxels.astype(np.float64) + 100)
    np.testing.assert_allclose(found.volume.voxels, wanted, rtol=0, atol=0.05 * wanted.max())
    if spacing is None:
        np.testing.assert_allclose(found.volume.voxels, wanted, rtol=0, atol=1e-2)
    assert made.measures
    assert made.measures.disagreement == pytest.approx(500 * inside, rel=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("spacing", [None, (0.7, 1.0, 1.0)])
@pytest.mark.parametrize("spread", [0, 2])
def test_large_arrays_are_counted_in_the_memory_estimate(
    dtype: str, spacing: Any, spread: int
) -> None:
    arrays = CountedArrays()

    of = card(
        intensity_in=MinMax(), intensity_out=Window(-100, 900), spacing=spacing, disagreement=3
    )
    ensemble = Ensemble(scan_of(dtype), of, spread=spread)
    inferred = ensemble.inferred(arrays.empty)
    foreseen, extents = ensemble.plan.footprint, ensemble.plan.layout.extents
    given_values = inferred.study.prepared.network_input.values
    is_given = np.shares_memory(given_values, ensemble.scan.voxels)
    scan = ensemble.scan.voxels.nbytes if is_given else 0
    blended = 3 * min(8, extents[0]) * extents[1] * extents[2] * 4
    assert foreseen.translated == scan + sum(arrays.sizes) + blended
    StudyTranslator(ensemble.model, ensemble.options, empty=arrays.empty).finish(inferred)
    assert foreseen.finished == scan + sum(arrays.sizes)


def test_seams_of_the_disagreement_do_not_count() -> None:
    of = card(intensity_in=MinMax(), intensity_out=Window(-100, 900), disagreement=3)
    ensemble = Ensemble(scan_of("int16"), of, seam_score=True)
    inferred = ensemble.inferred()
    translator = StudyTranslator(ensemble.model, ensemble.options)
    before = translator.finish(inferred).seams
    inferred.output.target.values[1, 8:] += 100
    assert translator.finish(inferred).seams == before
