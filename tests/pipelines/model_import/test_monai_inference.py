"""A MONAI bundle gives for a scan what MONAI's transforms, inferer and Invertd give, or refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from support.lazy_modules import torch
from support.monai_bundles import SCANS, bundle, judged, relative, scan_of, transform

from cuda_cyclegan import Translator
from cuda_cyclegan.engine.model.intensity_maps import Identity
from cuda_cyclegan.engine.model.model_card import PipelineProof
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.pipelines.model_import.card_draft import CardDraft
from cuda_cyclegan.pipelines.model_import.file_kinds import ImportRequest
from cuda_cyclegan.pipelines.model_import.importing import make_model, survey
from cuda_cyclegan.pipelines.model_import.pipeline_proof import Mismatch, prove_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")  # MONAI's own

ORIENTED = transform("Orientationd", axcodes="RAS")
RANGED = transform(
    "ScaleIntensityRanged", a_min=-1000, a_max=1000, b_min=-1.0, b_max=1.0, clip=True
)
SPACED = transform("Spacingd", pixdim=[1.3, 1.1, 1.6], mode="bilinear")
DRAFT = CardDraft(
    source=("CT",), target=("T1",), intensity_out=Identity(), output_range="open", spacing=None
)


def window(roi: Any = (16, 16, 16), **arguments: Any) -> dict[str, Any]:
    return {"_target_": "SlidingWindowInferer", "roi_size": roi, **arguments}


INFERERS = {
    "defaults": window(),
    "gaussian": window(mode="gaussian"),
    "half overlap": window(overlap=0.5, mode="gaussian", sigma_scale=0.2),
    "each axis": window([20, 16, 12], overlap=[0.5, 0.25, 0.1], mode="gaussian", cval=-1.0),
    "replicated": window(padding_mode="replicate", overlap=0.6),
    "adapted": {**window(mode="gaussian"), "_target_": "SlidingWindowInfererAdapt"},
}


def imported(folder: Path, native: bool = True) -> Model:
    draft = replace(DRAFT, spacing="native") if native else DRAFT
    found = survey(ImportRequest(folder, draft=draft))
    assert not found.undecided, found.undecided
    return make_model(found).model


def check(folder: Path, scan: Path, native: bool, least: float) -> None:
    from monai.data import MetaTensor  # noqa: F401

    torch.set_num_threads(1)
    wanted = judged(folder, scan)
    with Translator(imported(folder, native), "cpu") as translator:
        made = translator.translate_file(scan).values()
    assert wanted.wanted.std() > 0.01
    assert relative(made, wanted.wanted) <= max(least, 2 * wanted.own_error)


@pytest.mark.slow
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("inferer", INFERERS)
def test_patches_of_a_bundle(inferer: str, scan: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    folder = bundle(tmp_path / "bundle", INFERERS[inferer], ORIENTED, RANGED)
    check(folder, scan_of(scan, tmp_path), native=True, least=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scan", SCANS)
def test_grids_of_a_bundle(scan: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    folder = bundle(tmp_path / "bundle", INFERERS["gaussian"], ORIENTED, SPACED, RANGED)
    check(folder, scan_of(scan, tmp_path), native=False, least=1e-4)


CUBIC = transform("Spacingd", pixdim=1.4, mode="bilinear")
CASES: dict[str, tuple[Any, ...]] = {
    "percentiles": (
        ORIENTED,
        SPACED,
        transform(
            "ScaleIntensityRangePercentilesd", lower=1, upper=99, b_min=0.0, b_max=1.0, clip=True
        ),
    ),
    "percentiles, not clipped": (
        ORIENTED,
        transform("ScaleIntensityRangePercentilesd", lower=5, upper=95, b_min=-2.0, b_max=3.0),
        SPACED,
    ),
    "z-score": (ORIENTED, SPACED, transform("NormalizeIntensityd", channel_wise=True)),
    "z-score of nonzero voxels": (ORIENTED, transform("NormalizeIntensityd", nonzero=True)),
    "z-score by numbers": (
        ORIENTED,
        transform("NormalizeIntensityd", subtrahend=-400.0, divisor=300.0),
        SPACED,
    ),
    "minimum and maximum": (ORIENTED, SPACED, transform("ScaleIntensityd", minv=-1.0, maxv=1.0)),
    "gamma": (
        ORIENTED,
        SPACED,
        transform("ScaleIntensityd"),
        transform("AdjustContrastd", gamma=1.5),
    ),
    "clipped and z-scored": (
        ORIENTED,
        SPACED,
        transform("ClipIntensityPercentilesd", lower=2, upper=98),
        transform("NormalizeIntensityd"),
    ),
    "range and z-score": (ORIENTED, SPACED, RANGED, transform("NormalizeIntensityd")),
    "range, not clipped": (
        ORIENTED,
        transform("ScaleIntensityRanged", a_min=-1000, a_max=500, b_min=0.0, b_max=2.0),
    ),
    "cropped": (ORIENTED, transform("CropForegroundd", source_key="image"), RANGED),
    "cropped, then resampled": (
        ORIENTED,
        transform("CropForegroundd", source_key="image", margin=2, allow_smaller=True),
        SPACED,
        RANGED,
    ),
    "resized": (
        ORIENTED,
        transform("Resized", spatial_size=[24, 28, 20], mode="trilinear"),
        RANGED,
    ),
    "spacing first": (CUBIC, ORIENTED, RANGED),
}


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["SAR", "LPS", "oblique, anisotropic"])
@pytest.mark.parametrize("case", CASES)
def test_transforms_of_a_bundle(case: str, scan: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    folder = bundle(tmp_path / "bundle", INFERERS["gaussian"], *CASES[case])
    native = not any(one["_target_"] in ("Spacingd", "Resized") for one in CASES[case])
    check(folder, scan_of(scan, tmp_path), native=native, least=1e-5 if native else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize(
    "pad", [{"value": -1.0}, {"mode": "edge"}, {"spatial_size": [-1, 16, -1], "value": 0.3}]
)
def test_volumes_padded_to_the_windows_of_a_bundle(
    pad: dict[str, Any], scan: str, tmp_path: Path
) -> None:
    pytest.importorskip("monai")
    padded = transform("SpatialPadd", **{"spatial_size": [20, 16, 12], **pad})
    inferer = window([20, 16, 12], mode="gaussian", cval=0.3)
    folder = bundle(tmp_path / "bundle", inferer, ORIENTED, SPACED, RANGED, padded)
    check(folder, scan_of(scan, tmp_path), native=False, least=1e-4)


ROI = INFERERS["gaussian"]
WHOLE = {"_target_": "SimpleInferer"}
Z_SCORED = transform("NormalizeIntensityd")
FIXED = transform("ResizeWithPadOrCropd", spatial_size=[24, 20, 28], mode="edge")
MULTIPLE = transform("DivisiblePadd", k=[8, 16, 4], value=-1.0)
CENTRE = transform("CenterSpatialCropd", roi_size=[21, -1, 18])
BORDER = transform("BorderPadd", spatial_border=[1, 2, 3, 0, 5, 2])
FOREGROUND = transform("CropForegroundd", source_key="image", margin=2)
WINDOWS: dict[str, tuple[Any, ...]] = {
    "fixed extents": (ROI, ORIENTED, SPACED, RANGED, FIXED),
    "fixed extents, then z-scored": (ROI, ORIENTED, SPACED, FIXED, Z_SCORED),
    "fixed extents of the scan's grid": (WHOLE, ORIENTED, RANGED, FIXED),
    "a multiple": (WHOLE, ORIENTED, SPACED, RANGED, MULTIPLE),
    "the centre": (ROI, ORIENTED, SPACED, CENTRE, Z_SCORED),
    "a border": (ROI, ORIENTED, SPACED, RANGED, BORDER),
    "foreground": (ROI, ORIENTED, SPACED, FOREGROUND, RANGED),
    "foreground of network values": (
        *(ROI, ORIENTED, RANGED, SPACED, FOREGROUND),
        {**FIXED, "mode": "constant"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("case", WINDOWS)
def test_crops_and_pads_of_a_bundle(case: str, scan: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    inferer, *transforms = WINDOWS[case]
    folder = bundle(tmp_path / "bundle", inferer, *transforms)
    native = SPACED not in transforms
    check(folder, scan_of(scan, tmp_path), native=native, least=1e-5 if native else 1e-4)


@pytest.mark.slow
def test_zeros_next_to_the_foreground_are_noted(tmp_path: Path) -> None:
    """Rounding in MONAI's interpolation decides there, so that its box may have a voxel more."""
    pytest.importorskip("monai")
    folder = bundle(tmp_path / "bundle", ROI, ORIENTED, SPACED, FOREGROUND, Z_SCORED)
    source, model = scan_of("regular", tmp_path), imported(folder, native=False)
    with Translator(model, "cpu") as translator:
        assert not any("exactly 0" in note for note in translator.translate_file(source).notes)
        image: Any = nibabel.load(source)
        values = np.maximum(np.asarray(image.dataobj), 0)
        values[:13] = 0
        nibabel.Nifti1Image(values, image.affine).to_filename(tmp_path / "zeros.nii")
        notes = translator.translate_file(tmp_path / "zeros.nii").notes
    assert any("exactly 0" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize("inferer", [{"_target_": "SimpleInferer"}, window(-1)])
def test_whole_volumes_of_a_bundle(inferer: Any, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    folder = bundle(tmp_path / "bundle", inferer, ORIENTED, RANGED)
    check(folder, scan_of("regular", tmp_path), native=True, least=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["scan", "model"])
@pytest.mark.parametrize("scan", ["LPS", "thin", "oblique, anisotropic"])
def test_monais_own_result_proves_the_pipeline(scan: str, grid: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    folder = bundle(tmp_path / "bundle", INFERERS["gaussian"], ORIENTED, SPACED, RANGED)
    source = scan_of(scan, tmp_path)
    monais = judged(folder, source)
    affine: Any = nibabel.load(source).affine
    values = monais.wanted
    if grid == "model":
        values, affine = monais.before
    output = tmp_path / "output.nii"
    nibabel.Nifti1Image(values.astype(np.float32), affine).to_filename(output)
    model = imported(folder, native=False)
    proof = prove_pipeline(model, source, output)
    assert isinstance(proof, PipelineProof)
    assert proof.difference <= 1e-5
    other = replace(model, card=replace(model.card, spacing=(1.1, 1.3, 1.6)))
    found = prove_pipeline(other, source, output)
    assert isinstance(found, Mismatch)
    assert {change.field for change in found.named} == {"spacing"}
    assert {change.card.spacing for change in found.named} == {model.card.spacing}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fixed extents", "a multiple"])
def test_monais_own_result_names_a_missing_window(case: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    inferer, *transforms = WINDOWS[case]
    folder = bundle(tmp_path / "bundle", inferer, *transforms)
    source, model = scan_of("LPS", tmp_path), imported(folder, native=False)
    values, affine = judged(folder, source).before
    output = tmp_path / "output.nii"
    nibabel.Nifti1Image(values.astype(np.float32), affine).to_filename(output)
    assert isinstance(prove_pipeline(model, source, output), PipelineProof)
    other = replace(model, card=replace(model.card, grid_window=None))
    found = prove_pipeline(other, source, output)
    assert isinstance(found, Mismatch)
    assert {change.field for change in found.named} == {"grid_window"}
