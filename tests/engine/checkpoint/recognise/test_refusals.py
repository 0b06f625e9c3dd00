"""Networks that cannot be imported are named, and choices without meaning refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.lazy_modules import torch
from support.lazy_modules import torch_generators as made
from support.torch_pairs import save

from cuda_cyclegan.engine.checkpoint.read.checkpoint import read_checkpoint
from cuda_cyclegan.engine.checkpoint.recognise.evidence import NetworkChoices
from cuda_cyclegan.engine.checkpoint.recognise.recognition import recognise
from cuda_cyclegan.engine.errors import CheckpointError

REFLECT = NetworkChoices(padding="reflect", unproven=True)


State = Callable[[], dict[str, "torch.Tensor"]]


def state(**shapes: tuple[int, ...]) -> State:
    return lambda: {key.replace("__", "."): torch.zeros(shape) for key, shape in shapes.items()}


CUBE = (3, 3, 3)
REFUSED: dict[str, tuple[State, str]] = {
    "2-D": (state(model__1__weight=(8, 1, 7, 7)), "2-D network"),
    "cyclegan3d": (state(encoders__0__weight=(8, 1, *CUBE)), "MONAI residual U-Net"),
    "DynUNet": (state(input_block__conv1__conv__weight=(8, 1, *CUBE)), "DynUNet"),
    "yingao123": (state(prev_conv__0__weight=(8, 1, *CUBE)), "normalises after its activation"),
    "ganslate V-Net": (state(in_ab__conv__weight=(8, 1, *CUBE)), "V-Net"),
    "separate U-Net": (state(conv_block1__conv1__0__weight=(8, 1, *CUBE)), "encoder and decoder"),
    "own model": (state(first__weight=(8, 1, 7, 7, 7)), "already a model"),
    "no convolution": (state(fc__weight=(8, 4)), "no convolution weights"),
    "unknown": (state(thing__weight=(8, 1, *CUBE)), "not those of a known.* as ONNX"),
    "discriminator": (lambda: made.patch_discriminator().state_dict(), "discriminator"),
    "pixel discriminator": (
        state(net__0__weight=(8, 1, 1, 1, 1), net__2__weight=(16, 8, 1, 1, 1)),
        "pixel discriminator",
    ),
    "MONAI UNet": (
        state(model__0__conv__unit0__conv__weight=(8, 1, *CUBE)),
        "MONAI's UNet of residual units",
    ),
    "V-Net": (state(in_tr__conv1__weight=(16, 1, 5, 5, 5)), "V-Net"),
    "MUNIT": (
        state(
            enc_content__model__0__conv__weight=(8, 1, 7, 7, 7),
            dec__model__0__conv__weight=(8, 8, *CUBE),
        ),
        "MUNIT",
    ),
    "unknown parameter": (state(model__0__gamma=(8, 1, 7, 7, 7)), "'model.0.gamma'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_networks_are_refused_by_what_they_are(name: str, tmp_path: Path) -> None:
    tensors, message = REFUSED[name]
    torch.save(tensors(), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=message) as raised:
        recognise(read_checkpoint(tmp_path / "G.pth"), NetworkChoices(unproven=True))
    assert str(tmp_path / "G.pth") in str(raised.value)


def changed(path: str, shape: tuple[int, ...]) -> State:
    return lambda: {**made.padded_resnet().state_dict(), path: torch.zeros(shape)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (changed("model.1.weight", (4, 1, 9, 7, 7)), "kernel of 9x7x7.* as ONNX"),
        (changed("model.4.weight", (8, 4, 2, 5, 5)), "8x4x2x5x5"),
        (changed("model.7.weight", (24, 8, 3, 3, 3)), "24x8x3x3x3"),
        (changed("model.10.conv_block.1.weight", (16, 16, 5, 5, 5)), "16x16x5x5x5.* as ONNX"),
        (changed("model.1.bias", (5,)), "do not fit together"),
        (changed("model.30.weight", (16, 16, 3, 3, 3)), "not those of a known|beside the layers"),
        (changed("model.2.running_mean", (4,)), "only running_mean"),
        (
            changed("model.3.weight", (1,)),
            "'model.3' hold only weight; .* PReLU",
        ),
        (changed("model.26.weight", (1, 4, 7, 7, 7)), "not those of a known"),
    ],
)
def test_variants_that_do_not_fit_are_refused(tensors: State, message: str, tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=message):
        recognise(read_checkpoint(tmp_path / "G.pth"), REFLECT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_diverged_weights_are_refused(value: float, tmp_path: Path) -> None:
    module = made.unpadded_resnet().double()
    with torch.no_grad():
        module.model[0].weight[0, 0, 0, 0, 0] = value
    path = save(module, tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=r"model\.0\.weight holds numbers that are not fin"):
        recognise(read_checkpoint(path), NetworkChoices(unproven=True))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (NetworkChoices(concat="skip-first"), "Setting concat has no meaning"),
        (NetworkChoices(upsampling="nearest"), "Setting upsampling has no meaning"),
        (NetworkChoices(norm_statistics="patch"), "Setting norm-statistics has no meaning"),
        (NetworkChoices(norm="stored"), "would hold other tensors"),
        (NetworkChoices(norm="layer"), "would hold other tensors"),
        (NetworkChoices(activation="gelu"), "must be relu, leaky:SLOPE or elu"),
        (NetworkChoices(padding="mirror"), "must be reflect, replicate, zero or constant:VALUE"),
        (NetworkChoices(padding="constant:much"), "holds no number"),
    ],
)
def test_choices_without_meaning_are_refused(
    choices: NetworkChoices, words: str, tmp_path: Path
) -> None:
    path = save(made.unpadded_resnet(), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=words):
        recognise(read_checkpoint(path), choices)
