"""Model folders of nnU-Net v2: imported, and compared with nnU-Net's own predictor."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.lazy_modules import torch
from support.operator_dialect import check_dialect

from cuda_cyclegan import Translator
from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.checkpoint.evidence import NetworkChoices
from cuda_cyclegan.engine.importing.known_networks.nnunet_folder import read_nnunet
from cuda_cyclegan.engine.model.intensity_maps import ClipValues, Standard, Steps, ZScore
from cuda_cyclegan.engine.model.model_card import ScanCrop
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.model.tiling import Tiling
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.model_import.card_draft import CardDraft
from cuda_cyclegan.pipelines.model_import.file_kinds import ImportRequest
from cuda_cyclegan.pipelines.model_import.importing import make_model, survey

JUDGED = Path(__file__).parents[2] / "fixtures/nnunet"
OUTPUTS: dict[str, Any] = dict(np.load(JUDGED / "outputs.npz"))
FOLDS = {"plain": ("0",), "residual": ("0", "1")}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    def unpacked(name: str) -> Path:
        with tarfile.open(JUDGED / "folders.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / name / "nnUNetTrainer__nnUNetPlans__3d_fullres"

    return unpacked


def imported(folder: Path, folds: tuple[str, ...] = (), **said: Any) -> Model:
    draft = CardDraft(**{"axes": "RAS", **said})
    return make_model(survey(ImportRequest(folder, NetworkChoices(), draft, folds=folds))).model


@pytest.mark.parametrize("name", ["plain", pytest.param("residual", marks=pytest.mark.slow)])
def test_raw_outputs_are_those_of_nnunets_predictor(
    name: str, folder: Callable[[str], Path]
) -> None:
    """Outputs agree to 1e-4 of the range with its sums in float32. As it is, it sums in half
    precision, whose least numbers weigh the corners of patches: the outermost voxels are off by
    that.
    """
    made = translated(imported(folder(name), FOLDS[name]))
    for dtype, allowed, share in (("float16", 2e-3, 0.98), ("float32", 1e-4, 1.0)):
        expected = OUTPUTS[f"{name} {dtype}"]
        inside = expected.any(axis=0)
        apart = np.abs(made - expected)[:, inside] / np.ptp(expected)
        assert np.mean(apart <= allowed) >= share, (dtype, apart.max())


def translated(model: Model) -> FloatArray:
    """Return the results [C, i, j, k] of the scans that nnU-Net's predictor had."""
    affine = np.diag([1.5, 1.0, 1.2, 1.0])
    scans = [
        Volume(np.asfortranarray(each.astype(np.float32)), affine, None, "nifti")
        for each in OUTPUTS["scan"][: len(model.card.input_channels)]
    ]
    with Translator(model, "cpu", overlap=0.5) as translator:
        results = translator.translate_channels(scans)
    return np.stack([result.values() for result in results])


REGIONS = {"labels": {"background": 0, "whole": [1, 2], "core": 2}, "regions_class_order": [1, 2]}


def with_regions(place: Path) -> Path:
    dataset = json.loads((place / "dataset.json").read_text())
    (place / "dataset.json").write_text(json.dumps({**dataset, **REGIONS}))
    return place


def test_the_softmax_of_results_is_what_nnunet_exports(folder: Callable[[str], Path]) -> None:
    """The same holds outside the crop box, where the probability of the background is 1."""
    scores = np.exp(translated(imported(folder("plain"))))
    made, expected = scores / scores.sum(axis=0), OUTPUTS["plain labels"]
    np.testing.assert_allclose(made, expected, rtol=0, atol=5e-4)
    outside = expected[0] == 1
    assert outside.mean() > 0.1
    np.testing.assert_array_equal(made[0, outside], 1)
    assert made[1, outside].max() < 1e-12


def test_the_sigmoid_of_regions_is_what_nnunet_exports(folder: Callable[[str], Path]) -> None:
    model = imported(with_regions(folder("plain")))
    assert model.card.output_channels == ("whole", "core")
    made, expected = 1 / (1 + np.exp(-translated(model))), OUTPUTS["plain regions"]
    np.testing.assert_allclose(made, expected, rtol=0, atol=5e-4)
    assert made[:, ~expected.any(axis=0)].max() < 1e-12


def test_labels_of_one_value_in_a_list_are_no_regions(folder: Callable[[str], Path]) -> None:
    place = folder("plain")
    dataset = json.loads((place / "dataset.json").read_text())
    labels = {"background": 0, "lesion": [1]}
    (place / "dataset.json").write_text(json.dumps({**dataset, "labels": labels}))
    card = imported(place).card
    assert (card.output_channels, card.fills) == (("background", "lesion"), (0.0, -30.0))


def test_the_card_is_filled_in_from_the_plans(folder: Callable[[str], Path]) -> None:
    card = imported(folder("residual"), FOLDS["residual"], target=("PET",)).card
    assert (card.source, card.target) == ("CT, T1", "PET")
    assert (card.axes, card.spacing, card.patch) == ("SRA", (1.2, 1.2, 4.0), (16, 16, 8))
    steps = (ClipValues(5.0, 300.0), Standard(110.0, 80.0))
    assert card.intensity_in == (Steps(steps), ZScore())
    assert card.tiling == Tiling("nnunet", (0.5, 0.5, 0.5))
    assert (card.grid_rule, card.input_range, card.output_range) == ("nnunet", "open", "open")
    assert (card.established.by, card.established.code) == ("code", "nnunetv2")


def test_statements_of_the_user_come_first(folder: Callable[[str], Path]) -> None:
    model = imported(folder("plain"), intensity_out=Standard(100.0, 20.0), target=("A", "B"))
    assert model.card.intensity_out == Standard(100.0, 20.0)
    assert model.card.output_channels == ("A", "B")
    assert model.card.fills == (0.0, 0.0)  # values in a unit are not the scores of classes
    crop = ScanCrop("positive", 2, (5.0, 7.0))
    assert imported(folder("plain"), crop=crop).card.crop == crop
    assert imported(folder("plain")).card.output_channels == ("background", "lesion")


def test_networks_are_stated_in_the_dialect(folder: Callable[[str], Path]) -> None:
    for name, folds in FOLDS.items():
        for graph in read_nnunet(folder(name), folds).graphs:
            check_dialect(graph)


def test_several_folds_must_be_named(folder: Callable[[str], Path]) -> None:
    with pytest.raises(CheckpointError, match="has the folds 0, 1; name those"):
        imported(folder("residual"))
    with pytest.raises(CheckpointError, match="has no fold '7', but 0, 1"):
        imported(folder("residual"), ("7",))


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        plans = json.loads((folder / "plans.json").read_text())
        change(plans["configurations"]["3d_fullres"])
        (folder / "plans.json").write_text(json.dumps(plans))

    return apply


def argument(name: str, value: Any) -> Callable[[Path], None]:
    return changed(lambda reported: reported["architecture"]["arch_kwargs"].update({name: value}))


LAST = "decoder.seg_layers.1.weight"


def stored(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "fold_0/checkpoint_final.pth"
        contents = torch.load(path, weights_only=False)
        change(contents["network_weights"])
        torch.save(contents, path)

    return apply


REFUSED: dict[str, Callable[[Path], object]] = {
    "normalises by 'MyNormalization'": changed(
        lambda reported: reported.update(normalization_schemes=["MyNormalization"])
    ),
    "is a cascade": changed(lambda reported: reported.update(previous_stage="3d_lowres")),
    "resamples by 'resample_torch_fornnunet'": changed(
        lambda reported: reported.update(resampling_fn_data="resample_torch_fornnunet")
    ),
    "only 3D networks": changed(lambda reported: reported.update(patch_size=[16, 16])),
    "not a PlainConvUNet or ResidualEncoderUNet": changed(
        lambda reported: reported["architecture"].update(network_class_name="mine.MedNeXt")
    ),
    "normalises by torch.nn.BatchNorm3d": argument("norm_op", "torch.nn.BatchNorm3d"),
    "has dropout": argument("dropout_op", "torch.nn.Dropout3d"),
    "of different trainings": argument("features_per_stage", [4, 8, 16]),
    "'encoder.stages.0.0.convs.0.conv.bias' of the shape .* describes it as absent": argument(
        "conv_bias", False
    ),
    "norm.weight' .* describes it as absent": argument("norm_op_kwargs", {"affine": False}),
    "Option 'track_running_stats' of 'instance' is not supported": argument(
        "norm_op_kwargs", {"affine": True, "track_running_stats": True}
    ),
    "Option 'eps' of 'instance' is not a number": argument(
        "norm_op_kwargs", {"affine": True, "eps": "small"}
    ),
    "'encoder.extra.weight', which no PlainConvUNet has": stored(
        lambda weights: weights.update({"encoder.extra.weight": weights[LAST].clone()})
    ),
    "'decoder.seg_layers.1.weight', which the weights lack": stored(
        lambda weights: weights.pop(LAST)
    ),
    "lists of unequal lengths": argument("strides", [[1, 1, 1]]),
    "sizes that make no sense": argument("n_conv_per_stage_decoder", [1, 1 << 30]),
    "does not match nnU-Net v2.3": lambda folder: (folder / "plans.json").write_text("[]"),
    "no fold_X/checkpoint_final.pth": lambda folder: shutil.rmtree(folder / "fold_0"),
    "is not valid JSON": lambda folder: (folder / "dataset.json").write_text("{"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_step_of_nnunet_is_refused(message: str, folder: Callable[[str], Path]) -> None:
    place = folder("plain")
    REFUSED[message](place)
    with pytest.raises(CheckpointError, match=message):
        imported(place)
