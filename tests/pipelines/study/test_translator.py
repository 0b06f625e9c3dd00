"""A study from file to file through a generator that changes nothing."""

from pathlib import Path, PurePosixPath
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK
from support.numerics_models import FunctionGenerator, card, shared, volume

from cuda_cyclegan.engine.model.intensity_maps import (
    Identity,
    IntensityMap,
    MinMax,
    NetworkRange,
    Percentiles,
    Window,
)
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import Conv3d, InstanceNorm, Relu, Triple, Upsample
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.io.writing import write
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.translator import Scans, StudyTranslator

OBLIQUE = np.array(
    [[-0.9, 0.2, 0.1, 40], [0.25, 0.8, -0.4, -31], [0.1, 0.3, 1.9, 12], [0, 0, 0, 1]]
)
MAPS = [Identity(), MinMax(), Percentiles(0, 100), Window(-3000, 4000)]


def translate_unchanged(
    scan: Path,
    form: str,
    intensity: IntensityMap,
    result: Path,
    intensity_out: IntensityMap | None = None,
    made: NetworkRange = "-1..1",
) -> tuple[str, ...]:
    """Store the result; returns the notes on it."""
    empty = np.empty(0, np.float32)
    of = card(
        axes="SPL",
        intensity_in=intensity,
        intensity_out=intensity_out or intensity,
        output_range=made,
    )
    generator = FunctionGenerator()
    model = Model(of, Network(generator.graph, {}), empty, empty, "")
    options = TranslateOptions((8, 8, 8), 0.25, precision="fp32").resolved()
    translator = StudyTranslator(model, options)
    study = Study(PurePosixPath(scan.name), (scan,), form)
    scans = translator.read(study)
    prepared = translator.prepare(scans, translator.plan(scans))
    inferred = translator.infer(prepared, shared(generator))
    translated = translator.finish(inferred)
    write(translated.volumes[0], result)
    return translated.notes


def voxels(dtype: str) -> np.ndarray[Any, Any]:
    low, high = (0, 255) if dtype == "uint8" else (-2000, 3000)
    return np.random.default_rng(0).uniform(low, high, (13, 9, 17)).astype(dtype)


@pytest.mark.parametrize("intensity", [Identity(), MinMax()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("dtype", "slope", "is_exact"),
    [
        ("int16", 0.37, True),
        ("uint16", 2.5, True),
        ("float32", 0.37, False),
        ("float64", 1.0, False),
        ("float64", 0.37, False),
        ("int32", 1.0, False),
    ],
)
def test_values_that_are_no_short_integers_keep_the_precision_of_networks(
    tmp_path: Path, dtype: str, slope: float, is_exact: bool, intensity: IntensityMap
) -> None:
    low, high = (0, 1e9) if dtype == "int32" else (0, 3000)
    stored = np.random.default_rng(0).uniform(low, high, (13, 9, 17)).astype(dtype)
    image = nibabel.Nifti1Image(stored, OBLIQUE)
    image.header.set_data_dtype(dtype)
    image.header.set_slope_inter(slope, 0)
    image.to_filename(tmp_path / "a.nii")
    made = "open" if intensity == Identity() else "-1..1"
    translate_unchanged(tmp_path / "a.nii", "nifti", intensity, tmp_path / "b.nii", made=made)
    before, after = (nibabel.load(tmp_path / name) for name in ("a.nii", "b.nii"))
    numbers = [np.asarray(each.dataobj.get_unscaled(), np.float64) for each in (before, after)]
    limit = 0 if is_exact else 2.0**-23 * numbers[0].max()
    assert after.get_data_dtype() == dtype
    np.testing.assert_allclose(*numbers, rtol=0, atol=limit)


@pytest.mark.parametrize("intensity", MAPS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_nifti_comes_back_as_it_was(tmp_path: Path, dtype: str, intensity: IntensityMap) -> None:
    image = nibabel.Nifti1Image(voxels(dtype), OBLIQUE)
    if dtype == "int16":
        image.header.set_slope_inter(0.5, -100)
    image.set_qform(nibabel.Nifti1Image(voxels(dtype), np.diag([2.0, 1, 1, 1])).affine, code=2)
    scan, result = tmp_path / "scan.nii.gz", tmp_path / "out" / "scan.nii.gz"
    image.to_filename(scan)
    result.parent.mkdir()
    translate_unchanged(scan, "nifti", intensity, result)
    before, after = nibabel.load(scan), nibabel.load(result)
    np.testing.assert_array_equal(after.affine, before.affine)
    np.testing.assert_array_equal(after.header.get_qform(), before.header.get_qform())
    exact = dtype != "float32"
    np.testing.assert_allclose(
        after.get_fdata(), before.get_fdata(), rtol=0, atol=0 if exact else 3e3 * 2**-23
    )
    assert after.get_data_dtype() == dtype or (dtype == "uint8" and intensity == MAPS[-1])


@pytest.mark.parametrize(
    ("intensity_in", "intensity_out", "holds"),
    [
        (Percentiles(0, 100), Percentiles(0, 100), True),
        (Window(-3000, 4000), Window(-3000, 4000), True),
        (Percentiles(0, 100), Window(-1000, 2000), False),
        (Window(-1000, 2000), MinMax(), False),
    ],
)
def test_a_display_range_stays_with_results_in_the_scans_unit(
    tmp_path: Path, intensity_in: IntensityMap, intensity_out: IntensityMap, holds: bool
) -> None:
    image = nibabel.Nifti1Image(voxels("int16"), OBLIQUE)
    image.header["cal_min"], image.header["cal_max"] = -160, 240
    scan, result = tmp_path / "scan.nii.gz", tmp_path / "result.nii.gz"
    image.to_filename(scan)
    translate_unchanged(scan, "nifti", intensity_in, result, intensity_out)
    made = nibabel.load(result).header
    assert (made["cal_min"], made["cal_max"]) == ((-160, 240) if holds else (0, 0))


@pytest.mark.parametrize(("suffix", "form"), [(".nrrd", "nrrd"), (".mha", "metaimage")])
def test_itk_formats_come_back_as_they_were(tmp_path: Path, suffix: str, form: str) -> None:
    image = SimpleITK.GetImageFromArray(voxels("int16"))
    image.SetSpacing((0.7, 0.8, 2.5))
    image.SetOrigin((-3.0, 40.0, 7.5))
    image.SetDirection((0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, -1.0, 0.0))
    scan, result = tmp_path / f"scan{suffix}", tmp_path / f"result{suffix}"
    SimpleITK.WriteImage(image, scan)
    translate_unchanged(scan, form, Window(-3000, 4000), result)
    after = SimpleITK.ReadImage(result)
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(after), voxels("int16"))
    assert after.GetPixelID() == image.GetPixelID()
    np.testing.assert_allclose(after.GetDirection(), image.GetDirection(), atol=1e-12)
    np.testing.assert_allclose(after.GetOrigin(), image.GetOrigin(), atol=1e-12)
    np.testing.assert_allclose(after.GetSpacing(), image.GetSpacing(), rtol=1e-12)


def test_the_same_file_gives_the_same_file(tmp_path: Path) -> None:
    scan = tmp_path / "scan.nii.gz"
    nibabel.Nifti1Image(voxels("int16"), OBLIQUE).to_filename(scan)
    for name in ("one.nii.gz", "two.nii.gz"):
        translate_unchanged(scan, "nifti", Percentiles(1, 99), tmp_path / name)
    one, two = tmp_path / "one.nii.gz", tmp_path / "two.nii.gz"
    assert one.read_bytes() == two.read_bytes()
    assert nibabel.load(one).get_fdata().std() > 100


NORMED = Graph(1, (Node("norm", InstanceNorm(1), (INPUT,)),))
PLAIN = Graph(1, (Node("relu", Relu(), (INPUT,)),))


@pytest.mark.parametrize(
    ("graph", "trained", "inference", "options", "said"),
    [
        (NORMED, (16, 16, 16), None, {"patch": (8, 16, 16)}, "patches of 16x16x16"),
        (NORMED, (16, 16, 16), None, {"patch": (16, 16, 16)}, ""),
        (NORMED, (16, 16, 16), "volume", {"patch": (16, 16, 16)}, "whole volumes"),
        (NORMED, (16, 16, 16), "volume", {"patch": (16, 16, 16), "inference": "volume"}, ""),
        (PLAIN, (16, 16, 16), "volume", {"patch": (8, 8, 8)}, ""),
    ],
)
def test_patches_that_are_smaller_than_in_training_have_a_note(
    graph: Graph, trained: Triple, inference: Any, options: Any, said: str
) -> None:
    empty = np.empty(0, np.float32)
    model = Model(card(patch=trained, inference=inference), Network(graph, {}), empty, empty, "")
    translator = StudyTranslator(model, TranslateOptions(precision="fp32", **options).resolved())
    voxels = np.random.default_rng(0).uniform(-1, 1, (20, 18, 17)).astype(np.float32)
    scans = Scans((volume(voxels),), ())
    plan = translator.plan(scans)
    notes = translator.prepare(scans, plan).notes
    assert notes == translator.foresee(scans, plan)[1]
    assert len(notes) == bool(said)
    assert all(said in note and "norms take statistics" in note for note in notes)


def test_a_plan_says_when_a_volume_is_padded_for_the_network() -> None:
    halved = Conv3d(1, 1, (2, 2, 2), "w", None, (2, 2, 2))
    graph = Graph(
        1,
        (Node("halve", halved, (INPUT,)), Node("back", Upsample("nearest", (2, 2, 2)), ("halve",))),
    )
    empty = np.empty(0, np.float32)
    model = Model(
        card(), Network(graph, {"w": np.zeros((1, 1, 2, 2, 2), np.float32)}), empty, empty, ""
    )
    options = TranslateOptions((8, 8, 8), precision="fp32", inference="volume").resolved()
    translator = StudyTranslator(model, options)
    for extents, notes in (((20, 18, 17), 1), ((20, 18, 16), 0)):
        voxels = np.random.default_rng(0).uniform(-1, 1, extents).astype(np.float32)
        scans = Scans((volume(voxels),), ())
        found = translator.foresee(scans, translator.plan(scans))[1]
        assert len(found) == notes
        assert all("20x18x17 voxels are padded to 20x18x18" in note for note in found)
