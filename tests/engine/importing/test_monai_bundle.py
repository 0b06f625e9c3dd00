"""MONAI bundles become the networks that MONAI builds of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.lazy_modules import torch
from support.onnx_exports import patch_of
from support.operator_dialect import check_dialect
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.known_networks.monai_bundle import is_bundle, read_bundle
from cuda_cyclegan.engine.importing.known_networks.monai_config import BundleConfig
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.model.grid_window import GridWindow, WindowStep
from cuda_cyclegan.engine.model.intensity_maps import (
    ClipValues,
    Percentiles,
    Standard,
    Steps,
    Window,
    ZScore,
)
from cuda_cyclegan.engine.model.model_card import ScanCrop
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.model.tiling import OWN, Tiling
from cuda_cyclegan.engine.network.layers import triple
from cuda_cyclegan.pipelines.model_import.file_kinds import ImportRequest
from cuda_cyclegan.pipelines.model_import.importing import survey
from cuda_cyclegan.pipelines.model_import.monai_data import BundleData, bundle_data

NEAR = 2e-6
"""Relative L2; max(5e-6, 1.5 times PyTorch's own error) is asked."""

SIZES: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1, "out_channels": 1}
TWO_LEVELS = SIZES | {"channels": [4, 8], "strides": [2]}
GROUPS = ["GROUP", {"num_groups": 2}]
DEFINITIONS: dict[str, dict[str, Any]] = {
    "UNet": SIZES
    | {"channels": [4, 8, 12], "strides": [2, 2], "num_res_units": 2, "norm": "batch"},
    "UNet of single convolutions": TWO_LEVELS | {"in_channels": 2, "act": "RELU", "dropout": 0.1},
    "UNet of groups": TWO_LEVELS
    | {"num_res_units": 1, "norm": GROUPS, "out_channels": 2, "adn_ordering": "NA"}
    | {"act": ["leakyrelu", {"negative_slope": 0.2}], "kernel_size": 5},
    "AutoEncoder": TWO_LEVELS | {"strides": [2, 2], "num_res_units": 1},
    "AutoEncoder of single convolutions": TWO_LEVELS | {"strides": [2, 2]},
    "BasicUNet": SIZES | {"features": [4, 4, 6, 8, 8, 4]},
    "SegResNet": SIZES
    | {"init_filters": 8, "blocks_down": [1, 2, 2], "blocks_up": [1, 1], "dropout_prob": 0.2},
    "DynUNet": SIZES
    | {"kernel_size": [3, 3, [1, 3, 3]], "strides": [1, 2, [1, 2, 2]], "filters": [4, 8, 12]}
    | {"upsample_kernel_size": [2, [1, 2, 2]]},
    "DynUNet of residual blocks": SIZES
    | {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "filters": [4, 8, 12]}
    | {"upsample_kernel_size": [2, 2], "res_block": True, "norm_name": "batch"}
    | {"deep_supervision": True},
    "AttentionUnet": SIZES | {"channels": [4, 8, 12], "strides": [2, 2]},
}


def as_tuples(value: Any) -> Any:
    """A definition as Python code writes it."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def built(name: str) -> Any:
    """MONAI's own network of a definition, with weights that show when one is misplaced."""
    from monai.networks import nets
    from support.torch_generators import trained

    torch.manual_seed(0)
    arguments = {key: as_tuples(one) for key, one in DEFINITIONS[name].items()}
    return trained(getattr(nets, name.split()[0])(**arguments)).eval()


def written(folder: Path, state: dict[str, Any], definition: Any, **config: Any) -> Path:
    """A bundle of these parts."""
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    text = json.dumps({"network_def": definition, **config})
    (folder / "configs" / "inference.json").write_text(text)
    torch.save(state, folder / "models" / "model.pt")
    return folder


def bundle(folder: Path, name: str = "UNet", **config: Any) -> Path:
    definition = {"_target_": name.split()[0], **DEFINITIONS[name]}
    return written(folder / "bundle", built(name).state_dict(), definition, **config)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_bundle_computes_what_monai_does(name: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    module, folder = built(name), bundle(tmp_path, name)
    assert is_bundle(folder)
    found = convert_graph(check_dialect(read_bundle(folder).graph), None).network
    assert found.graph.patch is None
    extents = (32, 32, 32) if name == "BasicUNet" else (16, 8, 12)
    patch = patch_of(*extents, channels=DEFINITIONS[name]["in_channels"])
    with torch.no_grad():
        expected = module.double()(torch.from_numpy(patch).double()).numpy()
    with open_cpu_generator(found, threads=1) as generator:
        made = generator(patch)
    assert np.linalg.norm(made - expected) <= NEAR * np.linalg.norm(expected)


TRANSFORMS = {
    "transforms": [
        {"_target_": "LoadImaged", "keys": "image"},
        {"_target_": "Orientationd", "keys": "image", "axcodes": "RAS"},
        {"_target_": "Spacingd", "keys": "image", "pixdim": [1.0, 1.5, 2]},
        {
            "_target_": "ScaleIntensityRanged",
            "a_min": -100,
            "a_max": 900,
            "b_min": -1.0,
            "b_max": 1.0,
            "clip": True,
        },
        {"_target_": "monai.transforms.NormalizeIntensityd", "nonzero": True},
    ]
}
SAID = "--source T1 --target T2 --intensity-out zscore --output-range open"


def import_(folder: Path, options: str = SAID) -> Result:
    output = folder.with_suffix(".safetensors")
    return CliRunner().invoke(
        app, ["model", "import", str(folder), "--output", str(output), *options.split()]
    )


def test_statements_of_the_bundle_on_its_data_fill_the_model_card(tmp_path: Path) -> None:
    pytest.importorskip("monai")
    inferer = {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 8]}
    plain = {"transforms": TRANSFORMS["transforms"][:-1]}
    folder = bundle(tmp_path, preprocessing=plain, inferer=inferer)
    result = import_(folder)
    assert result.exit_code == 0, result.stderr
    assert "LoadImaged" not in result.stdout
    model = load_model(folder.with_suffix(".safetensors"))
    card = model.card
    assert (card.axes, card.spacing, card.patch) == ("RAS", (1, 1.5, 2), (16, 16, 8))
    assert (card.intensity_in, card.input_range) == (Window(-100, 900), "-1..1")
    assert (card.tiling, card.padding, model.inference) == (OWN["monai"], 0.0, "patches")
    assert (card.grid_rule, card.maps_on) == ("monai", "grid")
    other = import_(folder, f"{SAID} --axes LPS --patch 8,8,8 --tiling torchio:overlap=0.5 --force")
    assert other.exit_code == 0, other.stderr
    card = load_model(folder.with_suffix(".safetensors")).card
    assert (card.axes, card.spacing, card.patch) == ("LPS", (1, 1.5, 2), (8, 8, 8))
    assert card.tiling == Tiling("torchio", (0.5, 0.5, 0.5), "crop")


def test_a_transform_that_is_not_reproduced_stops_the_import(tmp_path: Path) -> None:
    pytest.importorskip("monai")
    inferer = {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 8]}
    folder = bundle(tmp_path, preprocessing=TRANSFORMS, inferer=inferer)
    result = import_(folder)
    assert result.exit_code == 2
    assert "NormalizeIntensityd" in result.stdout
    assert "missing, listed above: --intensity-in, --input-range" in result.stderr
    wrong = import_(folder, f"{SAID} --omit Spacingd")
    assert "such parts are: NormalizeIntensityd" in " ".join(wrong.stderr.split())
    stated = import_(folder, f"{SAID} --intensity-in zscore --input-range open")
    assert stated.exit_code == 0, stated.stderr
    left = import_(folder, f"{SAID} --omit NormalizeIntensityd --force")
    assert left.exit_code == 0, left.stderr
    card = load_model(folder.with_suffix(".safetensors")).card
    assert card.intensity_in == Window(-100, 900)
    assert "omitted: NormalizeIntensityd" in card.provenance.notes


@pytest.mark.parametrize(
    ("inferer", "flag"),
    [
        ({"_target_": "SlidingWindowInferer", "roi_size": [8, 8, -1]}, "--patch"),
        (None, "--tiling"),
        ({"_target_": "SaliencyInferer"}, "--tiling"),
        ({"_target_": "SlidingWindowInferer", "roi_size": 8, "padding_mode": "circular"}, None),
        ({"_target_": "SlidingWindowInferer", "roi_size": 8, "overlap": "$1 / 4"}, None),
        ({"_target_": "SlidingWindowInferer", "roi_size": 8, "process_fn": "$f"}, None),
        ({"_target_": "SlidingWindowInferer", "roi_size": 8, "with_coord": True}, None),
        ("$monai.inferers.SlidingWindowInferer(8)", None),
    ],
)
def test_an_inferer_that_is_not_reproduced_stops_the_import(
    inferer: Any, flag: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("monai")
    plain = {"transforms": TRANSFORMS["transforms"][:-1]}
    more = {} if inferer is None else {"inferer": inferer}
    folder = bundle(tmp_path, preprocessing=plain, **more)
    result = import_(folder)
    assert result.exit_code == 2
    assert (flag or "--tiling") in result.stderr
    answered = import_(folder, f"{SAID} --tiling monai:blend=gaussian --patch 8,8,8")
    assert answered.exit_code == 0, answered.stderr


@pytest.mark.parametrize("inferer", ["SimpleInferer", "SlidingWindowInferer"])
def test_inference_of_whole_volumes_is_the_models(inferer: str, tmp_path: Path) -> None:
    pytest.importorskip("monai")
    roi = {} if inferer == "SimpleInferer" else {"roi_size": -1}
    plain = {"transforms": TRANSFORMS["transforms"][:-1]}
    folder = bundle(tmp_path, preprocessing=plain, inferer={"_target_": inferer, **roi})
    result = import_(folder)
    assert result.exit_code == 0, result.stderr
    assert load_model(folder.with_suffix(".safetensors")).inference == "volume"


CHAINS: dict[str, tuple[list[dict[str, Any]], Any, Any]] = {
    "clipped to another range": (
        [{"a_min": 0, "a_max": 10, "b_min": 2, "b_max": 4, "clip": True}],
        Steps((ClipValues(0, 10), Standard(-10, 5))),
        "open",
    ),
    "not clipped": ([{"a_min": 0, "a_max": 10}], Steps((Standard(0, 10),)), "open"),
    "percentiles": (
        [{"lower": 1, "upper": 99, "b_min": 0, "b_max": 1, "clip": True}],
        Percentiles(1, 99),
        "0..1",
    ),
    "nonzero": ([{"nonzero": True}], Steps((ZScore(),), "nonzero", "zero"), "open"),
    "two": (
        [{"a_min": 0, "a_max": 4, "b_min": -1, "b_max": 1, "clip": True}, {"nonzero": False}],
        Steps((ClipValues(0, 4), Standard(2, 2), ZScore())),
        "open",
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_intensity_transforms_become_maps(case: str) -> None:
    names = {"a_min": "ScaleIntensityRanged", "lower": "ScaleIntensityRangePercentilesd"}
    described, wanted, onto = CHAINS[case]
    transforms: Any = [
        {"_target_": names.get(next(iter(one)), "NormalizeIntensityd"), "keys": ["image"], **one}
        for one in described
    ]
    config = BundleConfig({"preprocessing": {"transforms": transforms}, "inferer": {}})
    data = bundle_data(config, 1)
    assert (data.intensity_in, data.input_range, data.maps_on) == (wanted, onto, "scan")


@pytest.mark.parametrize(
    ("one", "channels"),
    [
        ({"_target_": "Lambdad", "keys": "image", "func": "$lambda x: x"}, 1),
        ({"_target_": "RandGaussianNoised", "keys": "image"}, 1),
        ({"_target_": "Spacingd", "keys": "image", "pixdim": [1, 1, 2]}, 1),
        ({"_target_": "Spacingd", "keys": "image", "pixdim": 1, "mode": "nearest"}, 1),
        ({"_target_": "Spacingd", "keys": "image", "pixdim": 1, "new": 3}, 1),
        ({"_target_": "NormalizeIntensityd", "keys": "image"}, 2),
        ({"_target_": "CropForegroundd", "keys": "image", "k_divisible": 4}, 1),
        ({"_target_": "DivisiblePadd", "keys": "image", "k": 8, "method": "end"}, 1),
        ({"_target_": "BorderPadd", "keys": "image", "spatial_border": [1, 2]}, 1),
        ({"_target_": "CenterSpatialCropd", "keys": "image", "roi_size": [8, 8, 8.5]}, 1),
        ("$some.expression()", 1),
        ("@missing", 1),
    ],
)
def test_nothing_is_ignored_in_silence(one: Any, channels: int) -> None:
    config = BundleConfig({"preprocessing": {"transforms": [one]}, "inferer": {}})
    before_inferer = [each for each in bundle_data(config, channels).left if each.name != "{}"]
    assert len(before_inferer) == 1


def step(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": name, "keys": "image", **arguments}


def read_data(*transforms: Any, inferer: Any = None, channels: int = 1) -> BundleData:
    inferer = inferer or {"_target_": "SimpleInferer"}
    content: Any = {"preprocessing": {"transforms": list(transforms)}, "inferer": inferer}
    return bundle_data(BundleConfig(content), channels)


SPACED = step("Spacingd", pixdim=1)
RANGED = step("ScaleIntensityRanged", a_min=0, a_max=9, b_min=0, b_max=1, clip=True)
FOREGROUND = step("CropForegroundd", source_key="image")
CENTRE = step("CenterSpatialCropd", roi_size=[8, -1, 9])


@pytest.mark.parametrize(
    ("transforms", "wanted", "maps_on"),
    [
        (
            [SPACED, RANGED, step("ResizeWithPadOrCropd", spatial_size=[8, 9, -1], value=-1)],
            GridWindow((WindowStep("extents", (8, 9, 0)),), -1.0),
            "grid",
        ),
        (
            [step("DivisiblePad", k=8, mode="replicate"), RANGED],
            GridWindow((WindowStep("multiple", (8, 8, 8)),), "edge"),
            "window",
        ),
        ([CENTRE], GridWindow((WindowStep("at-most", (8, 0, 9)),)), None),
        (
            [RANGED, step("BorderPadd", spatial_border=[1, 2, 3, 4, 5, 6])],
            GridWindow((WindowStep("before", (1, 3, 5)), WindowStep("after", (2, 4, 6)))),
            "scan",
        ),
        ([SPACED, FOREGROUND], GridWindow((WindowStep("positive", (0, 0, 0)),)), None),
        (
            [{**FOREGROUND, "margin": 3, "value": -9}, RANGED],
            GridWindow((WindowStep("positive-padded", (3, 3, 3)),), -9.0),
            "window",
        ),
        (
            [FOREGROUND, CENTRE, {**FOREGROUND, "margin": 1, "allow_smaller": True}],
            GridWindow((WindowStep("at-most", (8, 0, 9)), WindowStep("positive", (1, 1, 1)))),
            None,
        ),
        (
            [step("SpatialPadd", spatial_size=8), RANGED],
            GridWindow((WindowStep("at-least", (8, 8, 8)),)),
            "window",
        ),
    ],
)
def test_crops_and_pads_become_a_window_on_the_grid(
    transforms: Any, wanted: GridWindow, maps_on: str | None
) -> None:
    data = read_data(*transforms)
    assert data.left == []
    assert (data.grid_window, data.maps_on) == (wanted, maps_on)
    is_first = transforms[0] is FOREGROUND
    assert data.crop == (ScanCrop("positive", 0, 0.0) if is_first else None)


@pytest.mark.parametrize(
    ("transforms", "why", "answers"),
    [
        ([CENTRE, SPACED], "it follows cropping or padding", ("spacing",)),
        ([CENTRE, step("Orientationd", axcodes="RAS")], "it follows cropping", ("axes",)),
        (
            [CENTRE, step("Resized", spatial_size=[8, 8, 8], mode="trilinear")],
            "it follows cropping",
            ("grid",),
        ),
        (
            [step("DivisiblePadd", k=8, value=1), step("BorderPadd", spatial_border=1)],
            "it pads with 0.0, and a transform before it with 1.0",
            ("grid_window", "omit"),
        ),
        (
            [RANGED, CENTRE, step("NormalizeIntensityd")],
            "other intensity transforms come before",
            ("intensity_in",),
        ),
        (
            [{**FOREGROUND, "keys": ["a", "b"]}],
            "it measures one of several images",
            ("crop", "grid_window"),
        ),
    ],
)
def test_orders_that_are_not_reproduced_are_refused_in_words(
    transforms: Any, why: str, answers: tuple[str, ...]
) -> None:
    [left] = read_data(*transforms).left
    assert left.name == transforms[-1]["_target_"]
    assert left.why.startswith(why)
    assert left.answers == answers


PAD = {"_target_": "SpatialPadd", "keys": "image", "spatial_size": [8, 12, 16]}


@pytest.mark.parametrize(
    ("pad", "roi", "wanted"),
    [
        ({}, (8, 12, 16), 0.0),
        ({"value": -1.0}, (8, 12, 16), -1.0),
        ({"mode": "edge"}, (8, 12, 16), "edge"),
        ({"spatial_size": [-1, 12, -1], "value": 0.5}, (8, 12, 16), 0.5),
    ],
)
def test_windows_pad_small_volumes_as_the_transform_did(pad: Any, roi: Any, wanted: Any) -> None:
    inferer = {"_target_": "SlidingWindowInferer", "roi_size": list(roi), "cval": 0.5}
    concat = {"_target_": "ConcatItemsd", "keys": "image", "name": "image"}
    transforms: Any = [{**PAD, **pad}, concat]
    content: Any = {"preprocessing": {"transforms": transforms}, "inferer": inferer}
    data = bundle_data(BundleConfig(content), 1)
    assert data.left == []
    assert (data.padding, data.patch) == (wanted, roi)


WINDOWS = {"_target_": "SlidingWindowInferer", "roi_size": [8, 12, 16]}


@pytest.mark.parametrize(
    ("transforms", "inferer", "why"),
    [
        ([{**PAD, "method": "end"}], WINDOWS, "its method is end"),
        ([{**PAD, "mode": "reflect"}], WINDOWS, "its mode is reflect"),
        ([{**PAD, "constant_values": 1}], WINDOWS, "its constant_values is not known"),
    ],
)
def test_other_paddings_are_refused_in_words(transforms: Any, inferer: Any, why: str) -> None:
    content: Any = {"preprocessing": {"transforms": transforms}, "inferer": inferer}
    [left] = bundle_data(BundleConfig(content), 1).left
    assert left.name == "SpatialPadd"
    assert left.why.startswith(why)
    assert left.answers == ("grid_window", "omit")


@pytest.mark.parametrize(
    ("pad", "inferer"),
    [
        ({"spatial_size": [8, 8, 8]}, WINDOWS),
        ({}, {**WINDOWS, "roi_size": -1}),
        ({}, {"_target_": "SimpleInferer"}),
        ({"spatial_size": [-1, 12, 16], "value": 1}, WINDOWS),
    ],
)
def test_a_padding_that_the_windows_do_not_do_is_a_window_on_the_grid(
    pad: Any, inferer: Any
) -> None:
    data = read_data({**PAD, **pad}, inferer=inferer)
    extents = triple(max(edge, 0) for edge in {**PAD, **pad}["spatial_size"])
    assert data.left == []
    assert data.grid_window == GridWindow(
        (WindowStep("at-least", extents),), float(pad.get("value", 0))
    )


def test_facts_state_crops_as_the_options_take_them(tmp_path: Path) -> None:
    pytest.importorskip("monai")
    transforms = [
        {"_target_": "CropForegroundd", "keys": "image", "margin": 2, "allow_smaller": True},
        {"_target_": "CenterSpatialCropd", "keys": "image", "roi_size": [21, -1, 18]},
    ]
    folder = bundle(tmp_path, preprocessing={"transforms": transforms})
    facts = {fact.subject: fact.value for fact in survey(ImportRequest(folder)).found.facts}
    assert facts["cropped to"] == "positive voxels, margin 2"
    assert facts["window on the grid"] == "at-most:21/0/18,padding=0,fill=0"


def test_a_spacing_before_the_axes_are_turned_keeps_the_files_first_voxel() -> None:
    transforms: Any = [
        {"_target_": "Spacingd", "keys": "image", "pixdim": 1.5},
        {"_target_": "Orientationd", "keys": "image", "axcodes": "LPS"},
    ]
    data = bundle_data(BundleConfig({"preprocessing": {"transforms": transforms}}), 1)
    assert (data.axes, data.spacing, data.grid_rule) == ("LPS", (1.5, 1.5, 1.5), "monai-scan")


def test_missing_statements_of_the_bundle_are_requested(tmp_path: Path) -> None:
    pytest.importorskip("monai")
    expression = {
        "transforms": [{"_target_": "Spacingd", "pixdim": "$[__import__('os').getpid()]"}]
    }
    result = import_(bundle(tmp_path, preprocessing=expression))
    assert result.exit_code == 2
    assert "--axes, --spacing, --patch" in result.stderr
    assert "Spacingd" in result.stdout


def test_references_are_followed(tmp_path: Path) -> None:
    pytest.importorskip("monai")
    definition = {"_target_": "monai.networks.nets.UNet", **DEFINITIONS["UNet"]}
    definition |= {"channels": "@sizes#0", "num_res_units": "@units"}
    folder = written(
        tmp_path / "b",
        built("UNet").state_dict(),
        definition,
        sizes=["@all"],
        units=2,
        all=[4, 8, 12],
    )
    plain = read_bundle(bundle(tmp_path)).graph
    assert read_bundle(folder).graph.operators == plain.operators


HARM: dict[str, tuple[dict[str, Any], str]] = {
    "an expression": (
        {"norm": "$__import__('os').system('true')"},
        "is the expression .* is not evaluated",
    ),
    "a circle": ({"norm": "@network_def#norm"}, "refers to itself"),
    "a missing reference": ({"norm": "@nowhere"}, "lacks what '@nowhere' refers to"),
    "an argument more": ({"attention": True}, "'attention' is not supported"),
    "an option more": ({"norm": ["batch", {"track": 1}]}, "Option 'track' of 'batch'"),
    "another norm": ({"norm": "layer"}, "norm 'layer' is not supported"),
    "another activation": ({"act": "geglu"}, "activation 'geglu' is not supported"),
    "a norm of nonsense": ({"norm": 7}, "norm that makes no sense"),
    "another network": ({"_target_": "SwinUNETR"}, "is 'SwinUNETR', but only UNet, "),
    "code": ({"_target_": "os.UNet"}, r"is 'os\.UNet', but only"),
    "2-D": ({"spatial_dims": 2}, "only 3-D generators"),
    "strides of text": ({"strides": "22"}, "'strides' is not a list"),
    "strides of nothing": ({"strides": [0, 0]}, "other than three numbers"),
    "fewer levels": ({"channels": [4, 8]}, "are not of the same network"),
    "fewer units": ({"num_res_units": 1}, "which the network definition does not have"),
}


@pytest.fixture(scope="module")
def state() -> Any:
    pytest.importorskip("monai")
    return built("UNet").state_dict()


@pytest.mark.parametrize("name", HARM)
def test_harm_is_reported_in_a_sentence(name: str, state: Any, tmp_path: Path) -> None:
    change, message = HARM[name]
    definition = {"_target_": "UNet", **DEFINITIONS["UNet"], **change}
    with pytest.raises(CheckpointError, match=message):
        read_bundle(written(tmp_path / "b", state, definition))


@pytest.mark.parametrize("text", ["[" * 200_000, "{", "[]", "{}", '{"network_def": "$x"}', "\xff"])
def test_other_configurations_are_refused(text: str, state: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "b", state, {})
    (folder / "configs" / "inference.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"inference\.json|network_def"):
        read_bundle(folder)
