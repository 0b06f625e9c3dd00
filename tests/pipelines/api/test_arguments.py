"""Arguments that users mix up: paths, models, arrays and images are taken, the rest explained."""

from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.batch_world import SHAPE, scan, stored, tiny_model
from support.dicom_phantoms import Phantom
from support.product_source import ROOT
from support.translate_world import World

import cuda_cyclegan as cc
from cuda_cyclegan.cli.render.text import known_settings
from cuda_cyclegan.io.errors import UnsupportedScanError
from cuda_cyclegan.pipelines.errors import SettingsError
from cuda_cyclegan.pipelines.model_import.card_draft import CardDraft
from cuda_cyclegan.pipelines.option import options_in

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
VOXELS = np.random.default_rng(1).integers(0, 900, SHAPE).astype(np.int16)
OURS = (cc.ScanError, cc.EngineError, cc.PipelineError)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "m.safetensors")


@pytest.fixture(scope="module")
def translator(file: Path) -> cc.Translator:
    return cc.Translator(file, "cpu")


@pytest.mark.parametrize("kind", [str, Path, cc.load_model])
def test_a_model_is_taken_by_any_name(kind: Callable[[Path], Any], file: Path) -> None:
    with cc.Translator(kind(file), "cpu") as opened:
        assert opened.model.path == file


@pytest.mark.parametrize("kind", [str, Path, cc.load_model])
def test_a_folder_is_translated_with_a_model_by_any_name(
    kind: Callable[[Path], Any], file: Path, tmp_path: Path
) -> None:
    scan(tmp_path / "scans" / "a.nii.gz")
    report = cc.translate_folder(tmp_path / "scans", kind(file), tmp_path / "out", device="cpu")
    assert report.count("translated") == 1
    assert report.model.path == file


def test_the_model_back_may_be_open_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    scan(world.inputs / "a.nii.gz")
    back = tiny_model(tmp_path / "back.safetensors", source="T2", target="T1")
    [of_path, of_model] = [
        cc.translate_folder(
            world.inputs,
            world.model,
            tmp_path / name,
            device="cpu",
            options=cc.TranslateOptions(cycle_check=cc.CycleCheck(model)),
        )
        for name, model in (("a", str(back)), ("b", cc.load_model(back)))
    ]
    assert of_path.options == of_model.options
    assert of_path.count("translated") == of_model.count("translated") == 1


def test_a_scan_is_taken_in_every_form(translator: cc.Translator, tmp_path: Path) -> None:
    path = stored(tmp_path / "a.nii", VOXELS)
    image = nibabel.load(path)
    forms: list[Any] = [str(path), path, image, cc.from_nibabel(image), sitk.ReadImage(str(path))]
    expected = translator.translate(VOXELS, np.eye(4)).voxels
    for form in forms:
        assert np.array_equal(translator.translate(form).voxels, expected)
        assert np.array_equal(translator.translate_volume(form).voxels, expected)
        assert np.array_equal(translator.translate_channels([form])[0].voxels, expected)
        assert np.array_equal(np.asarray(cc.to_nibabel(form).dataobj), VOXELS)
        assert np.array_equal(sitk.GetArrayFromImage(cc.to_simpleitk(form)).T, VOXELS)
    for read in (cc.from_nibabel(str(path)), cc.from_simpleitk(path)):
        assert np.array_equal(read.voxels, VOXELS)


WRONG_SCANS: list[Any] = [7, None, {"a": 1}, VOXELS, [VOXELS], b"a.nii", object(), [], [7, "a.nii"]]


@pytest.mark.parametrize("wrong", WRONG_SCANS, ids=lambda wrong: type(wrong).__name__)
def test_argument_that_is_no_scan_is_refused_in_a_sentence(
    translator: cc.Translator, wrong: Any
) -> None:
    for take in (
        translator.translate,
        translator.translate_volume,
        translator.translate_channels,
        translator.translate_file,
        cc.to_nibabel,
        cc.to_simpleitk,
        cc.from_nibabel,
        cc.from_simpleitk,
    ):
        with pytest.raises(OURS) as refused:
            take(wrong)
        assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("voxels", "affine"),
    [
        ("a.nii", np.eye(4)),
        ([[1, 2], [3]], np.eye(4)),
        (VOXELS, "an affine"),
        (VOXELS, [[1, 2], [3]]),
        (VOXELS, object()),
        (nibabel.Nifti1Image(VOXELS, np.eye(4)), np.eye(4)),
        (cc.Volume(VOXELS.tolist(), np.eye(4), None, "nifti"), None),
        (cc.Volume(VOXELS[0], np.eye(4), None, "nifti"), None),
    ],
)
def test_argument_that_is_no_array_with_its_affine_is_refused_in_a_sentence(
    translator: cc.Translator, voxels: Any, affine: Any
) -> None:
    if isinstance(voxels, cc.Volume) and isinstance(voxels.voxels, list):
        assert translator.translate(voxels).shape == SHAPE
        return
    with pytest.raises(UnsupportedScanError, match=r"\.$"):
        translator.translate(voxels, affine)


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"model": 7}, "Argument model must be a path, not int"),
        ({"model": None}, "Argument model must be a path, not NoneType"),
        ({"device": 0}, "Argument device must be text, not an integer"),
        ({"overlap": "0.5"}, "Argument overlap must be a number or a list or null, not text"),
        ({"patch": 16}, "Argument patch must be a list or null, not an integer"),
        ({"patch": (16, "16", 16)}, r"Argument patch\[1\] must be an integer, not text"),
        (
            {"blend": "cubic"},
            "Argument blend must be one of constant, crop, gaussian, hann, linear",
        ),
        ({"precision": "half"}, "Argument precision must be one of bf16, fp16, fp32, tf32"),
        ({"nan_to": "zero"}, "Argument nan_to must be a number or null, not text"),
        ({"nan_to": float("nan")}, "nan-to=nan is not a voxel value"),
        ({"nan_to": np.zeros(3)}, "Argument nan_to must be plain values, not ndarray"),
        ({"fewest_slices": "3"}, "Argument fewest_slices must be an integer, not text"),
        ({"limits": {"vram": 1}}, "Argument limits must be a CudaLimits, not dict"),
        ({"limits": cc.CudaLimits(vram="8G")}, "Argument limits.vram must be an integer"),
        ({"on_event": None}, "Argument on_event must be a function of one event, not NoneType"),
    ],
)
def test_settings_of_a_translator_are_named(
    file: Path, settings: dict[str, Any], reported: str
) -> None:
    with pytest.raises(SettingsError, match=rf"{reported}.*\.$"):
        cc.Translator(**{"model": file, "device": "cpu", **settings})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"patch": 16}, ("patch",)),
        ({"nan_to": float("nan")}, ("nan_to",)),
        ({"limits": cc.CudaLimits(vram="8G")}, ("limits.vram",)),
        ({"inference": "volume", "overlap": 0.5}, ("overlap", "inference")),
        ({"precision": "fp16"}, ("precision", "device")),
    ],
)
def test_an_error_lists_the_arguments_that_do_not_fit(
    file: Path, settings: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as caught:
        cc.Translator(**{"model": file, "device": "cpu", **settings})
    assert caught.value.settings == named


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"inputs": 7}, "Argument inputs must be a path, not int"),
        ({"inputs": b"scans"}, "Argument inputs must be a path, not bytes"),
        ({"inputs": [7]}, "Argument inputs must be a path, not int"),
        ({"inputs": VOXELS}, "Argument inputs must be a path, not ndarray"),
        ({"output": None}, "Argument output must be a path, not NoneType"),
        ({"model": VOXELS}, "Argument model must be a path, not ndarray"),
        ({"options": {"preview": True}}, "Argument options must be a TranslateOptions, not dict"),
        (
            {"options": cc.TranslateOptions(preview="yes")},
            "Argument options.preview must be true or false, not text",
        ),
        (
            {"options": cc.TranslateOptions(cycle_check="back.safetensors")},
            "Argument options.cycle_check must be an object or null, not text",
        ),
        ({"channels": ["T1"]}, "Argument channels must be an object, not a list"),
        ({"channels": {"T1": 1}}, r"Argument channels.\[...\] must be text, not an integer"),
        ({"modality": 7}, "Argument modality must be a list, not an integer"),
        ({"series": 7}, "Argument series must be text, not an integer"),
    ],
)
def test_settings_of_a_folder_are_named(
    file: Path, tmp_path: Path, settings: dict[str, Any], reported: str
) -> None:
    right = {"inputs": tmp_path, "model": file, "output": tmp_path / "out"}
    with pytest.raises(SettingsError, match=rf"^{reported}.*\.$"):
        cc.translate_folder(**{**right, **settings})


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"checkpoint": 7}, "Argument checkpoint must be a path, not int"),
        ({"output": 7}, "Argument output must be a path, not int"),
        ({"card": {}}, "Argument card must be a CardDraft, not dict"),
        ({"card": CardDraft(source="T1")}, "Argument card.source must be a list"),
        ({"choices": "cut"}, "Argument choices must be a NetworkChoices, not str"),
        ({"reference": VOXELS}, "Argument reference must be a path, not ndarray"),
    ],
)
def test_settings_of_an_import_are_named(
    tmp_path: Path, settings: dict[str, Any], reported: str
) -> None:
    right = {"checkpoint": tmp_path / "a.pth", "output": tmp_path / "m", "card": CardDraft()}
    with pytest.raises(SettingsError, match=rf"^{reported}.*\.$"):
        cc.import_checkpoint(**{**right, **settings})


def test_a_model_is_loaded_from_a_path_only() -> None:
    wrong: Any = 7
    with pytest.raises(cc.ModelFileError, match=r"from the path of its file, not from a int\."):
        cc.load_model(wrong)


def test_numbers_of_numpy_are_numbers(file: Path) -> None:
    patch: Any = [np.int64(16), np.int16(16), np.uint8(16)]
    overlap: Any = np.float32(0.5)
    with cc.Translator(file, "cpu", patch=patch, overlap=overlap, nan_to=np.float64(0)) as opened:
        assert opened.translate(VOXELS, np.eye(4)).shape == SHAPE


@pytest.mark.parametrize("modality", ["CT", "ct", ["CT"], ("CT", "MR"), {"CT"}])
def test_one_modality_may_be_named_without_a_list(
    file: Path, tmp_path: Path, modality: Any
) -> None:
    scan(tmp_path / "scans" / "a.nii.gz")
    report = cc.translate_folder(
        iter([tmp_path / "scans"]), file, tmp_path / "out", device="cpu", modality=modality
    )
    assert report.count("translated") == 1


class TestNaN:
    def test_is_replaced_if_asked(self, file: Path, tmp_path: Path) -> None:
        voxels = VOXELS.astype(np.float32)
        voxels[3:6] = np.nan
        filled = np.nan_to_num(voxels, nan=5)
        path = stored(tmp_path / "a.nii", voxels)
        with cc.Translator(file, "cpu", nan_to=5) as opened:
            expected = opened.translate(filled, np.eye(4))
            for result in (opened.translate(voxels, np.eye(4)), opened.translate_file(path)):
                assert np.array_equal(result.voxels, expected.voxels)
                assert [note for note in result.notes if "were NaN, and were replaced by 5" in note]

    def test_stays_in_what_the_caller_holds(self, file: Path) -> None:
        voxels = VOXELS.astype(np.float32)
        voxels[0, 0, 0] = np.nan
        volume = cc.from_nibabel(nibabel.Nifti1Image(voxels, np.eye(4)))
        with cc.Translator(file, "cpu", nan_to=0) as opened:
            opened.translate(voxels, np.eye(4))
            opened.translate_volume(volume)
        assert np.isnan(voxels[0, 0, 0])
        assert np.isnan(volume.voxels[0, 0, 0])

    def test_is_refused_by_a_setting_that_is_there(self, translator: cc.Translator) -> None:
        with pytest.raises(cc.PipelineError, match="setting nan-to"):
            translator.translate(np.full(SHAPE, np.nan), np.eye(4))


class TestDicom:
    @pytest.fixture
    def few(self, tmp_path: Path) -> Path:
        Phantom("MR", slices=4).write(tmp_path)
        return tmp_path

    @pytest.fixture
    def uneven(self, tmp_path: Path) -> Path:
        Phantom("MR").write(tmp_path)[5].unlink()
        return tmp_path

    def test_array_of_few_slices_is_taken_if_requested(
        self, file: Path, translator: cc.Translator, few: Path
    ) -> None:
        with pytest.raises(cc.ScanError, match="setting min-slices"):
            translator.translate_file(few)
        with cc.Translator(file, "cpu", fewest_slices=4) as opened:
            assert opened.translate_file(few).shape[2] == 4
            assert opened.translate(few).shape[2] == 4

    def test_with_a_gap_is_taken_if_asked(
        self, file: Path, translator: cc.Translator, uneven: Path
    ) -> None:
        with pytest.raises(cc.ScanError, match="setting allow-uneven"):
            translator.translate_file(uneven)
        with cc.Translator(file, "cpu", allow_uneven=True) as opened:
            assert opened.translate_file(uneven).shape[2] == 12


RENAMED = {
    "channel": "channels",
    "force": "replace",
    "format": "output_format",
    "min-slices": "fewest_slices",
    "volume": "volume_index",
    "vram-limit": "vram",
}
ONLY_OF_COMMANDS = {
    *("address", "any-truth", "audit", "audit-syslog", "compare-inference", "config", "data-range"),
    *(
        "folder",
        "inbox-limit",
        "metrics",
        "on-failure",
        "pairs",
        "port",
        "queue",
        "reader",
        "reference-scan",
    ),
    *("report", "scheduler"),
    *("shard", "tls-certificate", "tls-key", "tls-trusted", "verbose", "yield-to-others"),
}


def test_every_setting_that_an_error_names_is_there() -> None:
    functions = (cc.Translator, cc.Translator.translate_file, cc.translate_folder)
    taken = {name for each in functions for name in signature(each).parameters}
    taken |= {*signature(cc.import_checkpoint).parameters}
    for kind in (cc.TranslateOptions, cc.CudaLimits, cc.CardDraft, cc.NetworkChoices):
        taken |= {field.name for field in fields(kind)}
    named = {name: RENAMED.get(name, name.replace("-", "_")) for name in known_settings()}
    declared = {option.shown.name: field for field, option in options_in(cc.TranslateOptions)}
    for name in RENAMED.keys() & declared.keys():
        assert RENAMED[name] == declared[name]
    named |= declared
    assert {name for name in named if named[name] not in taken} == ONLY_OF_COMMANDS
    page = (ROOT / "docs" / "python.md").read_text()
    for setting, name in RENAMED.items():
        assert f"`{setting}`" in page
        assert f"`{name}`" in page


@pytest.mark.parametrize(
    "name", ["patch", "overlap", "blend", "precision", "inference", "nan-to", "resample-channels"]
)
def test_a_translator_takes_what_its_errors_name(name: str) -> None:
    assert name.replace("-", "_") in signature(cc.Translator).parameters
