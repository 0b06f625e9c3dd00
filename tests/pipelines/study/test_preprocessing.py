"""Intensities prepared as MONAI, TorchIO and nnU-Net do, and the way back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.numerics_models import OPTIONS, card, volume

from cuda_cyclegan.cli.options.model import parsed_intensity
from cuda_cyclegan.engine.model.intensity_maps import (
    ClipValues,
    GammaCurve,
    Identity,
    IntensityMap,
    Logarithm,
    MinMax,
    Standard,
    Steps,
    Window,
    ZScore,
)
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.study.finish import canvas, finish
from cuda_cyclegan.pipelines.study.plan import plan_study
from cuda_cyclegan.pipelines.study.prepare import Prepared, prepare

JUDGES: dict[str, Any] = dict(
    np.load(Path(__file__).parents[2] / "fixtures/preprocessing/judges.npz")
)
CASES = [name for name in JUDGES if " " in name and not name.startswith("nnunet")]


def prepared(scans: list[Volume], **changes: Any) -> Prepared:
    model = card(**{"intensity_in": Identity(), "intensity_out": Identity(), **changes})
    return prepare(scans, plan_study(scans, model, OPTIONS, (1, 1, 1)), model)


def returned(study: Prepared, change: Any = lambda network: network) -> Volume:
    """The result of a network that computes `change` of its input."""
    made = canvas(study)
    given: FloatArray = study.network_input.scaling.forward(study.network_input.values)
    made.target.scaling.store(change(given), made.target.values)
    return finish(study, made)[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("slope", [1.0, 0.5])
def test_intensities_are_those_of_the_training_code(case: str, slope: float) -> None:
    *ends, scan, text = case.split()
    stored = JUDGES[scan] if slope == 1 else JUDGES[scan] * np.int32(2)
    study = prepared(
        [volume(stored, slope=slope)],
        intensity_in=parsed_intensity(text, "--intensity-in"),
        input_range="0..1" if ends else "-1..1",
    )
    expected = JUDGES[case]
    [made] = study.network_input.scaling.forward(study.network_input.values)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


CHAINS: list[IntensityMap] = [
    Steps((Logarithm(1.0), ZScore())),
    Steps((MinMax(), GammaCurve(0.7))),
    Steps((ZScore(),), "nonzero", "zero"),
    Steps((ZScore(),), "filled", "zero"),
    Steps((Logarithm(1.0), ZScore()), "positive"),
    Steps((ClipValues(-1e4, 1e4), Standard(60, 20))),
    Standard(60, 20),
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("spacing", [None, (1.0, 1.0, 1.0)])
def test_steps_are_undone(chain: IntensityMap, spacing: Any) -> None:
    scan = volume(JUDGES["mr"])
    study = prepared(
        [scan],
        intensity_in=chain,
        intensity_out=chain,
        input_range="0..1",
        output_range="0..1",
        spacing=spacing,
        axes="LPS",
    )
    result = returned(study)
    np.testing.assert_allclose(result.voxels, scan.voxels, rtol=0, atol=0)


def test_a_z_scored_target_gets_its_unit_by_its_mean_and_sd() -> None:
    scan = volume(JUDGES["ct"].astype(np.float32))
    study = prepared([scan], intensity_in=ZScore(), intensity_out=Standard(300.0, 25.0))
    [given] = study.network_input.scaling.forward(study.network_input.values)
    result = returned(study)
    np.testing.assert_allclose(result.voxels, given * 25 + 300, rtol=1e-6)


def test_the_region_of_the_scan_is_that_of_the_result() -> None:
    chain = Steps((ZScore(),), "nonzero", "zero")
    scan = volume(JUDGES["mr"])
    study = prepared([scan], intensity_in=chain, intensity_out=chain)
    result = returned(study, lambda network: network + 1)
    inside = scan.voxels != 0
    assert (result.voxels[~inside] == 0).all()
    moved = result.voxels[inside] - scan.voxels[inside]
    assert abs(moved - scan.voxels[inside].std()).max() <= 0.5


def test_the_region_of_several_scans_is_one_with_its_holes_filled() -> None:
    two = JUDGES["mr"].copy()
    two[0] = 7
    scans = [volume(JUDGES["mr"]), volume(two)]
    chain = Steps((ZScore(),), "filled", "zero")
    study = prepared(
        scans, intensity_in=chain, input_channels=("T1", "T2"), architecture=card().architecture
    )
    union = JUDGES["nnunet_mask"].copy()
    union[0] = True
    for scan, made in zip(scans, study.network_input.values, strict=True):
        part = scan.voxels[union].astype(np.float64)
        np.testing.assert_allclose(made[union], (part - part.mean()) / part.std(), atol=2e-6)
        assert (made[~union] == 0).all()


def constant_within() -> Volume:
    voxels = np.zeros((8, 8, 8), np.int16)
    voxels[2:5] = 9
    return volume(voxels)


@pytest.mark.parametrize(
    ("chain", "scan", "message"),
    [
        (
            Steps((Logarithm(0.0), ZScore())),
            volume(JUDGES["ct"]),
            "logarithm of values that reach down",
        ),
        (Steps((ZScore(),), "nonzero"), constant_within(), "have the value 9"),
        (
            Steps((ZScore(),), "positive"),
            volume(np.minimum(JUDGES["ct"], 0)),
            "voxels that are above 0, and the scan has none",
        ),
        (
            Steps((Window(0, 1), ZScore())),
            volume(JUDGES["ct"] * 0 - 3 + JUDGES["mr"] % 3),
            "value -1",
        ),
    ],
)
def test_a_scan_without_the_statistics_is_refused(
    chain: IntensityMap, scan: Volume, message: str
) -> None:
    with pytest.raises(PreparationError, match=message):
        prepared([scan], intensity_in=chain)


def test_a_spread_has_no_unit_behind_a_bent_map() -> None:
    model = card(intensity_out=Steps((Logarithm(1.0),)))
    with pytest.raises(PreparationError, match="omit setting spread"):
        plan_study([volume(JUDGES["mr"])], model, OPTIONS, (1, 1, 1), spreads=True)
