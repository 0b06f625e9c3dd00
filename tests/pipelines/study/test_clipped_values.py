"""Values that the voxel type of a result cannot hold are counted where they are stored."""

from pathlib import Path, PurePosixPath
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numerics_models import FunctionGenerator, card, shared
from support.tiers import examples

from cuda_cyclegan.engine.model.intensity_maps import (
    Identity,
    IntensityMap,
    MinMax,
    NetworkRange,
    Window,
    ZScore,
)
from cuda_cyclegan.engine.model.model_card import ScanCrop
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines.settings import OutputType, TranslateOptions
from cuda_cyclegan.pipelines.study.translator import StudyTranslator, Translated

nibabel: Any = _nibabel
SHAPE = (12, 13, 14)
KINDS: tuple[OutputType, OutputType] = ("uint16", "float32")


def translated(
    scan: Path,
    function: Any,
    asked: OutputType | None,
    maps: tuple[IntensityMap, IntensityMap] = (Identity(), Identity()),
    made: NetworkRange = "open",
    **on_card: Any,
) -> Translated:
    empty = np.empty(0, np.float32)
    inward, outward = maps
    of = card(
        intensity_in=inward,
        intensity_out=outward,
        input_range=made,
        output_range=made,
        **on_card,
    )
    generator = FunctionGenerator(function)
    model = Model(of, Network(generator.graph, {}), empty, empty, "")
    options = TranslateOptions((8, 8, 8), 0.25, precision="fp32", output_type=asked).resolved()
    translator = StudyTranslator(model, options)
    scans = translator.read(Study(PurePosixPath(scan.name), (scan,), "nifti"))
    prepared = translator.prepare(scans, translator.plan(scans))
    return translator.finish(translator.infer(prepared, shared(generator)))


def stored(path: Path, voxels: Any, slope: float = 1.0, intercept: float = 0.0) -> Path:
    """A file whose stored numbers are these."""
    image = nibabel.Nifti1Image(voxels, np.eye(4))
    image.header.set_data_dtype(voxels.dtype)
    image.header.set_slope_inter(slope, intercept)
    image.to_filename(path)
    return path


def ramp(low: float, high: float, dtype: str) -> Any:
    values = np.linspace(low, high, int(np.prod(SHAPE))).reshape(SHAPE)
    return (values if dtype == "float32" else np.rint(values)).astype(dtype)


@pytest.mark.parametrize("spacing", [None, (1.5, 1.5, 1.5)])
def test_negative_values_are_counted_if_they_were_stored_as_uint16(
    tmp_path: Path, spacing: Any
) -> None:
    """PET has such values; this also holds if the result is brought back onto another grid."""
    scan = stored(tmp_path / "a.nii", ramp(-3000, 120000, "float32"))
    found, exact = (translated(scan, lambda x: x, kind, spacing=spacing) for kind in KINDS)
    [volume], [note] = found.volumes, found.notes
    lost = int((np.rint(exact.volumes[0].voxels / 2) < 0).sum())
    assert (volume.voxels.dtype, volume.slope) == (np.uint16, 2)
    assert lost == 54 or spacing
    assert note.startswith(f"{lost} of 2184 voxels of its result are below 0 (lowest: -")
    assert "which voxel type uint16 cannot hold, and were clipped; float32 would keep them" in note


def test_the_farthest_value_is_stated_in_the_unit_of_the_result(tmp_path: Path) -> None:
    """The function is y = 40 x."""
    scan = stored(tmp_path / "a.nii", ramp(-1000, 4000, "int16"))
    [note] = translated(scan, lambda x: 40 * x, "uint16").notes
    assert note.startswith("437 of 2184 voxels of its result are below 0 (lowest: -40000), which")
    assert translated(scan, lambda x: 40 * x, "int16").notes == ()


def test_the_scans_own_type_with_a_slope_loses_nothing_in_silence(tmp_path: Path) -> None:
    scan = stored(tmp_path / "a.nii", ramp(0, 5000, "uint16"), slope=4.0)
    [note] = translated(scan, lambda x: x - 1000, "same").notes
    assert note.startswith("109 of 2184 voxels of its result are below 0 (lowest: -1000)")
    own = (MinMax(), MinMax())  # in the scan's own unit, and so in its own type
    [note] = translated(scan, lambda x: 2 * x - 0.5, None, own).notes
    assert "below 0 (lowest: " in note
    assert "which the scan's voxel type (uint16) cannot hold" in note


def test_both_ends_are_counted(tmp_path: Path) -> None:
    scan = stored(tmp_path / "a.nii", ramp(-128, 127, "int8"), slope=-2.0)
    [note] = translated(scan, lambda x: 2 * x, "same").notes
    counted = "voxels of its result are"
    assert f"{counted} above 256 (highest: 512)" in note
    assert f" and {543 + 1} of 2184 {counted} below -254 (lowest: -508)" in note


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
@pytest.mark.parametrize("asked", ["same", None])
def test_values_at_an_end_are_not_clipped(
    tmp_path: Path, dtype: str, asked: OutputType | None
) -> None:
    limits = np.iinfo(dtype)
    scan = stored(tmp_path / "a.nii", ramp(limits.min, limits.max, dtype))
    found = translated(scan, lambda x: x, asked)
    if dtype != "int32":  # whose ends are no float32
        assert found.notes == ()
        np.testing.assert_array_equal(found.volumes[0].voxels, ramp(limits.min, limits.max, dtype))


def test_the_background_of_an_unsigned_scan_has_no_note(tmp_path: Path) -> None:
    """Noise around 0, unless the user has asked for the type."""
    voxels = ramp(0, 4000, "uint16")
    voxels[:4] = 0
    scan, noise = stored(tmp_path / "a.nii", voxels), np.random.default_rng(0)

    def noisy(patches: Any) -> Any:
        return patches + noise.uniform(-0.002, 0.002, patches.shape).astype(np.float32)

    own = (MinMax(), MinMax())
    assert (translated(scan, noisy, None, own).volumes[0].voxels == 0).sum() > 200
    assert translated(scan, noisy, None, own).notes == ()
    [note] = translated(scan, noisy, "same", own).notes
    assert "are below 0 (lowest: -" in note


def test_surroundings_of_a_crop_count_too(tmp_path: Path) -> None:
    voxels = np.zeros(SHAPE, np.int16)
    voxels[4:9, 4:9, 4:9] = ramp(600, 700, "int16")[4:9, 4:9, 4:9]
    scan = stored(tmp_path / "a.nii", voxels)
    crop = ScanCrop("positive", 0, -1024.0)
    [note, *_] = translated(scan, lambda x: x + 100, "uint16", crop=crop).notes
    outside = voxels.size - 5**3
    assert note.startswith(f"{outside} of 2184 voxels of its result are below 0 (lowest: -1024)")


@settings(deadline=None, max_examples=examples(100))
@given(
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32"]),
    st.sampled_from([1.0, 0.25, -3.0]),
    st.floats(-2, 2),
    st.floats(0.1, 4),
    st.booleans(),
)
def test_exactly_what_does_not_fit_is_counted(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    slope: float,
    centre: float,
    factor: float,
    is_own: bool,
) -> None:
    """The count is exact for both ways to store a result."""
    limits = np.iinfo(dtype)
    folder = tmp_path_factory.mktemp("one")
    scan = stored(folder / "a.nii", ramp(limits.min, limits.max, dtype), slope)
    maps = (ZScore(), ZScore()) if is_own else (Window(-1.0, 1.0), Window(-1.0, 1.0))

    def function(patches: Any) -> Any:
        return (patches * factor + centre).astype(np.float32)

    found = translated(scan, function, "same", maps)
    exact = translated(scan, function, "float32", maps).volumes[0].voxels.astype(np.float64)
    numbers = exact / slope
    step = np.spacing(np.float32(limits.max)) + 1
    surely = int((numbers < limits.min - step).sum() + (numbers > limits.max + step).sum())
    hardly = int((numbers < limits.min - 0.4).sum() + (numbers > limits.max + 0.4).sum())
    counted = sum(int(text.split()[-1]) for text in _counts(found.notes))
    assert surely <= counted <= hardly + 2


def _counts(notes: tuple[str, ...]) -> list[str]:
    """The beginnings of all sentences that count voxels."""
    return [text for note in notes for text in note.split(" of 2184 voxels of its result are")[:-1]]
