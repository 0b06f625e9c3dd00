"""Scans that do not suit a model by its card alone: noted by evidence, and honest ones not."""

import numpy as np
import pytest
from support.calibration_scans import head
from support.numerics_models import card, volume
from support.product_source import ROOT

from cuda_cyclegan.engine.model.intensity_maps import (
    ClipValues,
    IntensityMap,
    Percentiles,
    Steps,
    Window,
)
from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.volume import AnyArray
from cuda_cyclegan.pipelines.decisions import with_inference
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.plan import plan_study
from cuda_cyclegan.pipelines.study.prepare import fit_scans
from cuda_cyclegan.pipelines.study.scan_limits import (
    notes_of_gaps,
    notes_of_grid,
    notes_of_unit,
)
from cuda_cyclegan.pipelines.study.statistics import study_range
from cuda_cyclegan.pipelines.study.translator import StudyTranslator

SHAPE = (48, 44, 40)
RELATIVE = Percentiles(1.0, 99.0)
HU = Window(-1000.0, 1000.0)
CLIPPED = Steps((ClipValues(-1000.0, 1000.0), RELATIVE))
MR = head(0, SHAPE)


def ct(air: float = -1000.0) -> AnyArray:
    """A CT with the shape of the MR: soft tissue, a shell of bone, and air."""
    random = np.random.default_rng(0)
    body = np.where(MR > 790, 900, 40) + random.normal(0, 12, SHAPE)
    return np.where(MR > 200, body, air).astype(np.int16)


def unit_notes(
    source: str, intensity: IntensityMap, voxels: AnyArray, *, is_calibrated: bool = False
) -> list[str]:
    scan = volume(voxels)
    measured = study_range(scan)
    return [*notes_of_unit(source, intensity, scan, measured, is_calibrated=is_calibrated)]


@pytest.mark.parametrize("source", ["T1", "T2w MRI", "FLAIR", "MR"])
@pytest.mark.parametrize("intensity", [RELATIVE, Window(0.0, 1000.0)])
@pytest.mark.parametrize("air", [-1000.0, -1024.0, -3024.0])
def test_a_ct_in_hu_for_a_model_of_mr_is_noted(
    source: str, intensity: IntensityMap, air: float
) -> None:
    [note] = unit_notes(source, intensity, ct(air), is_calibrated=True)
    assert note.startswith("its values are those of a CT in HU (")
    assert f"and the model translates {source}" in note


@pytest.mark.parametrize(("source", "intensity"), [("CT", RELATIVE), ("CT", HU), ("CBCT", HU)])
@pytest.mark.parametrize("kind", ["stored", "standardised", "shares"])
def test_an_mr_for_a_model_of_ct_is_noted(source: str, intensity: IntensityMap, kind: str) -> None:
    scans = {"stored": MR, "standardised": (MR - 300.0) / 400, "shares": MR / MR.max()}
    [note] = unit_notes(source, intensity, scans[kind])
    assert f"a {source} in HU has air below -500" in note


def test_a_ct_clipped_by_steps_is_expected_in_hu() -> None:
    assert unit_notes("CT", CLIPPED, MR)
    assert not unit_notes("CT", CLIPPED, ct())


FITTING: dict[str, tuple[str, IntensityMap, AnyArray]] = {
    "MR": ("T1", RELATIVE, MR),
    "standardised MR": ("T1", RELATIVE, 1000 * (MR - 600.0) / 400),
    "phase": ("MR", RELATIVE, np.random.default_rng(0).integers(-4096, 4096, SHAPE)),
    "CT": ("CT", RELATIVE, ct()),
    "CT outside its field of view": ("CT", HU, ct(-3024)),
    "CBCT": ("CBCT", HU, ct()),
    "CBCT in another unit": ("CBCT", RELATIVE, ct() + 1024),
    "CT stored from 0 for such a model": ("CT", Window(0.0, 4095.0), ct() + 1024),
    "CT clipped from 0": ("CT", Steps((ClipValues(0.0, 4095.0), RELATIVE)), ct() + 1024),
    "part of a CT with fat": ("CT", HU, np.where(MR > 200, 250, -90)),
    "CT of a brain alone": ("CT", HU, np.where(MR > 200, 20 + MR % 30, 0)),
    "unknown source": ("images", RELATIVE, ct()),
    "model of MR that takes HU": ("MR", HU, ct()),
    "PET": ("PET", RELATIVE, MR / 100),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_fitting_unit_is_not_noted(name: str) -> None:
    assert not unit_notes(*FITTING[name])


def test_the_note_names_the_channel() -> None:
    model = card(source="T1 and CT", input_channels=("T1", "CT"), intensity_in=RELATIVE)
    [note] = fit_scans([volume(MR), volume(MR)], model).notes
    assert note.startswith("CT: its values reach from")
    assert not fit_scans([volume(MR), volume(ct())], model).notes


def test_a_calibrated_model_may_take_ct_in_another_unit() -> None:
    assert not unit_notes("CT", RELATIVE, ct() + 1024, is_calibrated=True)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("count", [1, 6])
def test_planes_without_values_are_noted(axis: int, count: int) -> None:
    voxels = np.moveaxis(MR.copy(), axis, 0)
    voxels[18 : 18 + count] = 7
    [note] = notes_of_gaps(volume(np.moveaxis(voxels, 0, axis)))
    where = "from 18 to 23" if count > 1 else "18"
    assert note.startswith(f"{count} of its {SHAPE[axis]} planes along {'ijk'[axis]} ({where}) ha")


def masked() -> AnyArray:
    return np.where(MR > 200, MR, 0)


def two_legs() -> AnyArray:
    """Two cylinders along k, with no value between them along i."""
    i, j, _ = np.indices((60, 40, 30))
    legs = [np.hypot(i - at, j - 20) < 12 for at in (14, 44)]
    return np.where(legs[0] | legs[1], 300 + np.arange(60 * 40 * 30).reshape(60, 40, 30) % 50, 0)


@pytest.mark.parametrize("voxels", [MR, masked(), np.pad(masked(), 6), ct(), two_legs()])
def test_planes_around_a_body_are_not_noted(voxels: AnyArray) -> None:
    assert not [*notes_of_gaps(volume(voxels))]


def test_a_plane_that_is_almost_of_one_value_is_not_noted() -> None:
    voxels = MR.copy()
    voxels[:, :, 20] = 7
    voxels[1, 1, 20] = 8
    assert not [*notes_of_gaps(volume(voxels))]


def grid_notes(of: ModelCard, shape: Triple, spacing: Triple) -> list[str]:
    scan = volume(np.zeros(shape, np.int16), np.diag([*map(float, spacing), 1.0]))
    options = TranslateOptions(of.patch, 0.25, precision="fp32").resolved()
    return [*notes_of_grid(plan_study([scan], of, options, (1, 1, 1)), scan, of)]


MODEL = card(axes="RAS", spacing=(1.0, 1.0, 1.0), patch=(32, 32, 32))


def test_voxels_far_coarser_than_the_models_are_noted() -> None:
    [note] = grid_notes(MODEL, (40, 40, 20), (1, 1, 5))
    assert note.startswith("its voxels are 5 mm long along W, 5 times those of the model (1 mm)")
    assert not grid_notes(MODEL, (40, 40, 20), (1, 1, 4))


def test_a_scan_that_fills_less_than_half_of_a_patch_is_noted() -> None:
    [note] = grid_notes(MODEL, (40, 15, 40), (1, 1, 1))
    assert note.startswith("it has 15 voxels along H on the model's grid, and patches of the model")
    assert not grid_notes(MODEL, (40, 16, 40), (1, 1, 1))


def test_the_sample_has_no_such_note() -> None:
    model = load_model(ROOT / "sample_data" / "model.safetensors")
    options = with_inference(model, TranslateOptions(precision="fp32")).resolved()
    translator = StudyTranslator(model, options)
    [study] = discover([ROOT / "sample_data" / "scans"], None).studies
    scans = translator.read(study)
    assert translator.foresee(scans, translator.plan(scans))[1] == ()
