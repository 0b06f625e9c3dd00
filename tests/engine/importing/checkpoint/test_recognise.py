"""The generator in a checkpoint: which tensors, which network, and which are refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.lazy_modules import torch
from support.lazy_modules import torch_generators as made
from support.torch_pairs import pair_of, run, save

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.checkpoint.evidence import (
    CONCATS,
    ENDS,
    PLAIN_PADS,
    RESIDUALS,
    SAMPLINGS,
    FieldValue,
    NetworkChoices,
    parsed,
    word,
)
from cuda_cyclegan.engine.importing.checkpoint.recognise import recognise
from cuda_cyclegan.engine.importing.checkpoint_file import read_checkpoint
from cuda_cyclegan.engine.network.architectures import Groups
from cuda_cyclegan.engine.network.layers import Constant, Elu, LeakyRelu, Relu

UNPROVEN = NetworkChoices(unproven=True)


def prefixed(module: "torch.nn.Module", prefix: str) -> dict[str, "torch.Tensor"]:
    return {prefix + key: value for key, value in module.state_dict().items()}


def critic() -> dict[str, "torch.Tensor"]:
    return made.patch_discriminator().state_dict()


def lightning(forward: "torch.nn.Module", backward: "torch.nn.Module") -> object:
    state = {
        **prefixed(forward, "netG_A2B."),
        **prefixed(backward, "netG_B2A."),
        **prefixed(made.patch_discriminator(), "netD_A."),
    }
    return {"epoch": 3, "state_dict": state, "hyper_parameters": {"lr": 0.1, "b": (1, 2)}}


WRAPPERS: dict[str, Callable[["torch.nn.Module", "torch.nn.Module"], object]] = {
    "ganslate": lambda f, b: {
        "G_AB": f.state_dict(),
        "G_BA": b.state_dict(),
        "D_B": critic(),
        "optimizer_G": torch.optim.Adam(f.parameters()).state_dict(),
    },
    "dan-hanson": lambda f, b: {
        "epoch": 4,
        "n_resnet": 2,
        "g_model_AtoB_state": f.state_dict(),
        "g_model_BtoA_state": b.state_dict(),
        "d_model_A_state": critic(),
    },
    "Lightning": lightning,
    "named generators": lambda f, b: {
        "generator_ab_state_dict": f.state_dict(),
        "generator_ba_state_dict": b.state_dict(),
    },
    "compiled pair": lambda f, b: {
        "G_AB": prefixed(f, "_orig_mod."),
        "G_BA": prefixed(b, "_orig_mod.module."),
    },
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("direction", ["AtoB", "BtoA"])
def test_pairs_in_one_file_are_told_apart(name: str, direction: str, tmp_path: Path) -> None:
    forward, backward = made.unpadded_resnet(), made.trained(made.unpadded_resnet())
    torch.save(WRAPPERS[name](forward, backward), tmp_path / "both.ckpt")
    checkpoint = read_checkpoint(tmp_path / "both.ckpt")
    assert [q.field for q in recognise(checkpoint, UNPROVEN).undecided] == ["direction"]

    recognised = recognise(checkpoint, NetworkChoices(direction=direction, unproven=True))
    wanted = forward if direction == "AtoB" else backward
    assert np.array_equal(
        recognised.network.weights["first.weight"], wanted.model[0].weight.detach()
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda g: {"model_state_dict": prefixed(g, "module."), "optimizer": {}, "epoch": 5},
        lambda g: prefixed(g, "_orig_mod."),
        lambda g: prefixed(g, "generator."),
        lambda g: prefixed(g, "model."),
        lambda g: {"state_dict": prefixed(g, "net.module.")},
        lambda g: g.model.state_dict(),
        lambda g: {"G": g.state_dict(), "netD": critic()},
    ],
    ids=["dhaberl", "compiled", "attribute", "model twice", "nested", "bare sequence", "with D"],
)
def test_single_generators_are_unwrapped(wrap: Callable[..., object], tmp_path: Path) -> None:
    module = made.trained(made.unpadded_resnet())
    torch.save(wrap(module), tmp_path / "G.pth.tar")
    recognised = recognise(read_checkpoint(tmp_path / "G.pth.tar"), UNPROVEN)
    assert recognised.undecided == ()
    assert np.array_equal(
        recognised.network.weights["first.weight"], module.model[0].weight.detach()
    )


@pytest.mark.parametrize(
    ("file", "direction"),
    [("latest_net_G_A.pth", "AtoB"), ("200_net_G_B.pth", "BtoA"), ("netG_A2B_7.pth.tar", "AtoB")],
)
def test_file_names_show_the_direction(file: str, direction: str, tmp_path: Path) -> None:
    reported = recognise(
        read_checkpoint(save(made.unpadded_resnet(), tmp_path / file)), UNPROVEN
    ).facts
    assert ("direction", direction) in {(finding.subject, finding.value) for finding in reported}


def test_several_networks_without_a_direction_need_a_name(tmp_path: Path) -> None:
    module, other = made.trained(made.unpadded_resnet()), made.unpadded_resnet()
    torch.save({"ema": module.state_dict(), "raw": other.state_dict()}, tmp_path / "G.pth")
    checkpoint = read_checkpoint(tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match="setting generator, one of 'ema', 'raw'"):
        recognise(checkpoint, UNPROVEN)
    with pytest.raises(CheckpointError, match="must be one of 'ema', 'raw', not 'emu'"):
        recognise(checkpoint, NetworkChoices(generator="emu", unproven=True))
    chosen = recognise(checkpoint, NetworkChoices(generator="ema", unproven=True)).network.weights[
        "first.weight"
    ]
    assert np.array_equal(chosen, module.model[0].weight.detach())


def test_the_best_generator_is_not_skipped_for_the_last(tmp_path: Path) -> None:
    states = {f"{name}_generator": made.unpadded_resnet().state_dict() for name in ("best", "last")}
    torch.save(states, tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match="one of 'best_generator', 'last_generator'"):
        recognise(read_checkpoint(tmp_path / "G.pth"), UNPROVEN)


def test_safetensors_carry_the_same_generator(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    module = made.trained(made.unpadded_resnet())
    save_file(module.state_dict(), tmp_path / "G.safetensors")
    checkpoint = read_checkpoint(tmp_path / "G.safetensors")
    patch, expected = pair_of(module, 1, 16)
    assert checkpoint.kind == "safetensors"
    assert np.abs(run(recognise(checkpoint, UNPROVEN).network, patch) - expected).max() < 1e-4


# --- what lies beside the generator ---


def conv() -> dict[str, "torch.Tensor"]:
    return {"weight": torch.zeros(1, 1, 3, 3, 3)}


def beside(*names: str) -> Callable[["torch.nn.Module"], object]:
    """A state in which a generator lies under `core` and something else under other names."""
    return lambda generator: {
        **prefixed(generator, "core."),
        **{f"{name}.weight": conv()["weight"] for name in names},
    }


UNKNOWN: dict[str, tuple[Callable[["torch.nn.Module"], object], str]] = {
    "stem": (lambda g: {**g.state_dict(), "stem.weight": conv()["weight"]}, "'stem'"),
    "head": (lambda g: {**g.state_dict(), "head.0.weight": conv()["weight"]}, "'head.0'"),
    "stem and head": (beside("stem", "head"), "'core/|'stem/weight', 'head/weight'"),
    "refine net": (beside("refine.0", "refine.2"), "'refine/0.weight', 'refine/2.weight'"),
    "scalar": (lambda g: {**g.state_dict(), "scale": torch.tensor(2.0)}, "'scale'"),
    "scalar beside": (
        lambda g: {**prefixed(g, "G."), "gain": torch.tensor(2.0)},
        "'gain'",
    ),
    "scalar of the file": (
        lambda g: {"model_state_dict": g.state_dict(), "scale": torch.tensor(2.0)},
        "'scale'",
    ),
    "norm in front": (
        lambda g: {
            **g.state_dict(),
            "input_norm.weight": torch.ones(1),
            "input_norm.bias": torch.ones(1),
        },
        "'input_norm'",
    ),
    "second network": (lambda g: {"G_AB": g.state_dict(), "polish": conv()}, "'polish/weight'"),
    "beside in its entry": (
        lambda g: {"G_A2B": {"model": g.state_dict(), "gain": torch.tensor(2.0)}},
        "'G_A2B/gain'",
    ),
    "polish of the same way": (
        lambda g: {"G_A2B": {"core": g.state_dict(), "polish": conv()}},
        "'G_A2B/polish/weight'",
    ),
    "linear layer": (lambda g: {**g.state_dict(), "fc.weight": torch.ones(3, 4)}, "'fc.weight'"),
    "list": (lambda g: {"G": g.state_dict(), "affine": [torch.ones(3)]}, "'affine/0'"),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize(
    "choices",
    [NetworkChoices(), NetworkChoices(unproven=True), NetworkChoices(code="mfazampour")],
    ids=str,
)
def test_tensors_that_may_matter_stop_the_import(
    name: str, choices: NetworkChoices, tmp_path: Path
) -> None:
    wrap, words = UNKNOWN[name]
    torch.save(wrap(made.unpadded_resnet()), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=words):
        recognise(read_checkpoint(tmp_path / "G.pth"), choices)


def test_networks_next_to_the_generators_are_left_and_listed(tmp_path: Path) -> None:
    generator, other = made.unpadded_resnet(), made.unpadded_resnet()
    optimizer = torch.optim.Adam(generator.parameters())
    generator(torch.zeros(1, 1, 16, 16, 16)).sum().backward()
    optimizer.step()
    contents = {
        "G_A2B": generator.state_dict(),
        "G_B2A": other.state_dict(),
        "D_A": critic(),
        "optimizer_G": optimizer.state_dict(),
        "loss": torch.tensor(0.5),
        "best_psnr": torch.tensor(30.0),
        "epoch": torch.tensor(3),
        "criterionGAN": {"real_label": torch.tensor(1.0)},
    }
    torch.save(contents, tmp_path / "30.pth")
    choices = NetworkChoices(unproven=True, direction="AtoB")
    left = recognise(read_checkpoint(tmp_path / "30.pth"), choices).left
    assert {part.name: part.is_network for part in left} == {
        "G_B2A": True,
        "D_A": True,
        "": False,
        "criterionGAN": False,
    }


def test_a_list_of_generators_is_named(tmp_path: Path) -> None:
    networks = torch.nn.ModuleList([made.unpadded_resnet(), made.unpadded_resnet()])
    torch.save(networks.state_dict(), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=r"ModuleList saves them; .* one of '0', '1'"):
        recognise(read_checkpoint(tmp_path / "G.pth"), UNPROVEN)


@pytest.mark.parametrize(("one", "other"), [("netG", "netF"), ("G_c", "G_d"), ("G", "critic")])
def test_a_generator_is_not_taken_for_a_helper_by_its_name(
    one: str, other: str, tmp_path: Path
) -> None:
    networks = {name: made.unpadded_resnet().state_dict() for name in (one, other)}
    networks["D_X"] = critic()
    torch.save(networks, tmp_path / "G.pth")
    checkpoint = read_checkpoint(tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=f"generator, one of '{one}', '{other}'"):
        recognise(checkpoint, UNPROVEN)
    assert recognise(checkpoint, NetworkChoices(generator=other, unproven=True))


def test_a_running_mean_of_the_weights_may_be_what_is_wanted(tmp_path: Path) -> None:
    generator = made.unpadded_resnet()
    shadow = [parameter.detach() for parameter in generator.parameters()]
    contents = {"G": generator.state_dict(), "ema": {"decay": 0.999, "shadow_params": shadow}}
    torch.save(contents, tmp_path / "G.pth")
    checkpoint = read_checkpoint(tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=r"a copy that .* choose it with setting generator=G"):
        recognise(checkpoint, UNPROVEN)
    assert recognise(checkpoint, NetworkChoices(generator="G", unproven=True))


REFLECT = NetworkChoices(padding="reflect", unproven=True)


State = Callable[[], dict[str, "torch.Tensor"]]


def state(**shapes: tuple[int, ...]) -> State:
    return lambda: {key.replace("__", "."): torch.zeros(shape) for key, shape in shapes.items()}


CUBE = (3, 3, 3)
REFUSED: dict[str, tuple[State, str]] = {
    "2-D": (state(model__1__weight=(8, 1, 7, 7)), "2-D network"),
    "no convolution": (state(fc__weight=(8, 4)), "no convolution weights"),
    "unknown": (state(thing__weight=(8, 1, *CUBE)), "match no known.*torch-export.md"),
    "discriminator": (lambda: made.patch_discriminator().state_dict(), "discriminator"),
    "a small network under Lightning": (
        state(model__encoder__weight=(8, 1, *CUBE), model__decoder__weight=(1, 8, *CUBE)),
        "match no known",
    ),
    "pixel discriminator": (
        state(net__0__weight=(8, 1, 1, 1, 1), net__2__weight=(16, 8, 1, 1, 1)),
        "pixel discriminator",
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


NAMED: dict[str, tuple[str, str]] = {
    "own model": ("already a model", "first.weight block0.conv0.weight down0.weight last.weight"),
    "MUNIT": ("MUNIT", "enc_style.model.0.conv enc_content.model.0.conv dec.model.0 mlp.model.0"),
    "nnU-Net": (
        "a checkpoint of nnU-Net.*name the model folder",
        "encoder.stages.0.0.convs.0.conv decoder.stages.0.convs.0.conv decoder.seg_layers.0",
    ),
    "MedNeXt": (
        "a MedNeXt",
        "stem enc_block_0.0.conv1 down_0.conv1 bottleneck.0.conv1 up_0.conv1 dec_block_0.0.conv1",
    ),
    "MONAI's MedNeXt": (
        "a MedNeXt",
        "stem enc_stages.0.0.conv1 down_blocks.0.conv1 bottleneck.0.conv1 dec_stages.0.0.conv1",
    ),
    "DynUNet": (
        "MONAI's DynUNet",
        "input_block.conv1.conv downsamples.0.conv1.conv bottleneck.conv1.conv "
        "upsamples.0.transp_conv.conv upsamples.0.conv_block.conv1.conv output_block.conv.conv "
        "skip_layers.downsample.conv1.conv",
    ),
    "AttentionUnet": (
        "MONAI's AttentionUnet",
        "model.0.conv.0.conv model.1.attention.W_g.0.conv model.1.attention.psi.0.conv "
        "model.1.upconv.up.conv model.2.conv",
    ),
    "UNet of residual units": (
        "MONAI's UNet of residual units",
        "model.0.conv.unit0.conv model.0.residual model.1.submodule.0.conv.unit0.conv "
        "model.2.0.conv model.2.1.conv.unit0.conv",
    ),
    "UNet": ("MONAI's UNet,", "model.0.conv model.1.submodule.0.conv model.2.conv"),
    "BasicUNet": (
        "MONAI's BasicUNet",
        "conv_0.conv_0.conv down_1.convs.conv_0.conv upcat_1.upsample.deconv final_conv",
    ),
    "SegResNet": (
        "MONAI's SegResNet",
        "convInit.conv down_layers.0.1.conv1.conv up_layers.0.0.conv1.conv conv_final.2.conv",
    ),
    "AutoEncoder": ("MONAI's AutoEncoder", "encode.encode_0.conv decode.decode_0.conv.conv"),
    "V-Net": ("a V-Net", "in_tr.conv1 down_tr32.down_conv up_tr256.up_conv out_tr.conv1"),
    "cyclegan3d": (
        "MONAI residual U-Net",
        "encoders.0.0 encoders.1.conv1.conv decoders.0.upsample_conv.0 out_conv.0",
    ),
    "vox2vox": (
        "vox2vox",
        "down1.model.0 down2.model.0 mid1.model.0 mid2.model.0 up1.model.0 up2.model.0 final.0",
    ),
    "yingao123": (
        "normalises after its activation",
        "prev_conv.featureConv enc_1.featureConv dec_1.featureConv syn_head.featureConv",
    ),
    "ganslate V-Net": (
        "V-Net",
        "in_ab.conv1 downs.0.down_conv_ab.0 ups.0.up_conv_ab.0 out_ab.conv1",
    ),
    "ganslate Piresnet": ("partially invertible", "downconv_ab.1 core.sequence.0.0 upconv_ab.0"),
    "a transformer": (
        "attention layers",
        "swinViT.patch_embed.proj swinViT.layers1.0.blocks.0.attn",
    ),
}
"""Phrase of the refusal, and names of layers as the network's own code has them."""


def layers(names: str, prefix: str = "") -> dict[str, "torch.Tensor"]:
    keys = (name if name.endswith(".weight") else f"{name}.weight" for name in names.split())
    return {prefix + key: torch.zeros(8, 8, *CUBE) for key in keys}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_a_known_network_has_its_name(name: str, wrapped: bool, tmp_path: Path) -> None:
    phrase, names = NAMED[name]
    held = layers(names, "net.") | layers("loss.0", "") if wrapped else layers(names)
    torch.save({"state_dict": held, "epoch": 1} if wrapped else held, tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=phrase):
        recognise(read_checkpoint(tmp_path / "G.pth"), UNPROVEN)


@pytest.mark.parametrize(
    "names",
    [
        "bottleneck.0.conv1 enc.0.conv1 dec.0.conv1",
        "core.0 head.0 tail.0",
        "encoders.0 decoders.0 out_conv.0",
        "input_block.conv1.conv body.conv tail.conv",
    ],
)
def test_a_part_of_its_names_proves_no_network(names: str, tmp_path: Path) -> None:
    torch.save(layers(names), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match="match no known"):
        recognise(read_checkpoint(tmp_path / "G.pth"), UNPROVEN)


def test_blocks_of_an_unknown_network_are_no_networks(tmp_path: Path) -> None:
    names = "first.model.0 second.model.0 stages.0.conv_block.conv1 stages.0.proj last.model.0"
    torch.save(layers(names), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=r"match no known.*torch-export.md"):
        recognise(read_checkpoint(tmp_path / "G.pth"), UNPROVEN)


def changed(path: str, shape: tuple[int, ...]) -> State:
    return lambda: {**made.padded_resnet().state_dict(), path: torch.zeros(shape)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (changed("model.1.weight", (4, 1, 9, 7, 7)), "kernel of 9x7x7.*torch-export.md"),
        (changed("model.4.weight", (8, 4, 2, 5, 5)), "8x4x2x5x5"),
        (changed("model.7.weight", (24, 8, 3, 3, 3)), "24x8x3x3x3"),
        (
            changed("model.10.conv_block.1.weight", (16, 16, 5, 5, 5)),
            "16x16x5x5x5.*torch-export.md",
        ),
        (changed("model.1.bias", (5,)), "do not fit together"),
        (changed("model.30.weight", (16, 16, 3, 3, 3)), "match no known|in addition to the layers"),
        (changed("model.2.running_mean", (4,)), "only running_mean"),
        (
            changed("model.3.weight", (1,)),
            "'model.3' have only weight; .* PReLU",
        ),
        (changed("model.26.weight", (1, 4, 7, 7, 7)), "match no known"),
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
    with pytest.raises(
        CheckpointError, match=r"model\.0\.weight contains numbers that are not fin"
    ):
        recognise(read_checkpoint(path), NetworkChoices(unproven=True))


VALUES: dict[str, tuple[FieldValue, ...]] = {
    "padding": (*PLAIN_PADS, Constant(-1.0), Constant(0.25)),
    "norm": ("instance", "stored", "none", Groups(8)),
    "norm_statistics": ("patch", "stored"),
    "activation": (Relu(), LeakyRelu(0.2), Elu()),
    "residual": RESIDUALS,
    "end": ENDS,
    "upsampling": SAMPLINGS,
    "concat": CONCATS,
}


@pytest.mark.parametrize("name", VALUES)
def test_words_of_a_field_are_read_as_its_value(name: str) -> None:
    for value in VALUES[name]:
        assert parsed(name, word(value)) == value
    words = [word(value) for value in VALUES[name]]
    assert len({*words}) == len(words)
    assert not any("_" in one for one in words)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (NetworkChoices(concat="skip-first"), "Setting concat does not apply"),
        (NetworkChoices(upsampling="nearest"), "Setting upsampling does not apply"),
        (NetworkChoices(norm_statistics="patch"), "Setting norm-statistics does not apply"),
        (NetworkChoices(norm="stored"), "would have tensors other"),
        (NetworkChoices(norm="layer"), "must be instance, group:N or none, not 'layer'"),
        (NetworkChoices(residual="twice"), "must be one of sum, activated-sum, none, not 'twice'"),
        (NetworkChoices(end="relu"), "must be one of tanh, sigmoid, none, not 'relu'"),
        (NetworkChoices(activation="gelu"), "must be relu, leaky:SLOPE or elu"),
        (NetworkChoices(padding="mirror"), "must be reflect, replicate, zero or constant:VALUE"),
        (NetworkChoices(padding="constant:much"), "'constant:much' has no number after its colon"),
    ],
)
def test_choices_without_meaning_are_refused(
    choices: NetworkChoices, words: str, tmp_path: Path
) -> None:
    path = save(made.unpadded_resnet(), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=words):
        recognise(read_checkpoint(path), choices)
