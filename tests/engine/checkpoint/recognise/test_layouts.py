"""Checkpoints of each training repository compute what the training code computes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from support import torch_generators as made  # noqa: E402

from cuda_cyclegan.engine.checkpoint.read.checkpoint import read_checkpoint  # noqa: E402
from cuda_cyclegan.engine.checkpoint.recognise.layouts import recognise  # noqa: E402
from cuda_cyclegan.engine.checkpoint.recognise.recognition import Choices, Recognised  # noqa: E402
from cuda_cyclegan.engine.checkpoint.recognise.reference_search import candidates, resolve  # noqa: E402
from cuda_cyclegan.engine.errors import CheckpointError  # noqa: E402
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build  # noqa: E402
from cuda_cyclegan.engine.network.graph import FloatArray, Network  # noqa: E402
from cuda_cyclegan.engine.onnxruntime.session import open_cpu_generator  # noqa: E402

spectral_norm = torch.nn.utils.spectral_norm
parametrized_spectral_norm = torch.nn.utils.parametrizations.spectral_norm


@dataclass(frozen=True)
class Repository:
    """One training repository: its generator, how a user answers for it, what stays open."""

    make: Callable[[], "torch.nn.Module"]
    answers: Choices = field(default_factory=Choices)
    open: frozenset[str] = frozenset()
    eval: bool = True


REFLECT, REPLICATE = Choices(padding="reflect"), Choices(padding="replicate")
PAD = frozenset({"padding"})
REPOSITORIES = {
    "DavidSolanas": Repository(made.padded_resnet, REFLECT, PAD),
    "DavidSolanas, 3 channels to 2, 1 block": Repository(
        lambda: made.padded_resnet(3, 2, blocks=1), REFLECT, PAD
    ),
    "three samplings": Repository(lambda: made.padded_resnet(samplings=3), REFLECT, PAD),
    "davidiommi, never in eval": Repository(
        lambda: made.padded_resnet(pad="replicate", norm=made.tracked_instance),
        Choices(padding="replicate", norm_statistics="patch"),
        PAD | {"norm_statistics"},
        eval=False,
    ),
    "davidiommi, in eval": Repository(
        lambda: made.padded_resnet(pad="replicate", norm=made.tracked_instance),
        Choices(padding="replicate", norm_statistics="stored"),
        PAD | {"norm_statistics"},
    ),
    "batch norm": Repository(
        lambda: made.padded_resnet(norm=made.batch, bias=False, up_bias=False),
        Choices(padding="reflect", norm_statistics="stored"),
        PAD | {"norm_statistics"},
    ),
    "batch norm, never in eval": Repository(
        lambda: made.padded_resnet(norm=made.batch, bias=False, up_bias=False),
        Choices(padding="reflect", norm_statistics="patch"),
        PAD | {"norm_statistics"},
        eval=False,
    ),
    "dropout slots": Repository(lambda: made.padded_resnet(dropout=True), REFLECT, PAD),
    "ganslate with batch norm": Repository(
        lambda: made.padded_resnet(pad="replicate", norm=made.batch, bias=False),
        Choices(padding="replicate", norm_statistics="stored"),
        PAD | {"norm_statistics"},
    ),
    "mfazampour": Repository(made.unpadded_resnet),
    "dan-hanson": Repository(lambda: made.unpadded_resnet(norm=made.affine_instance, bias=False)),
    "dhaberl": Repository(made.NamedResNet),
    "naga-karthik": Repository(
        made.sampling_resnet,
        Choices(padding="replicate", upsampling="nearest"),
        PAD | {"upsampling"},
    ),
    "naga-karthik, trilinear": Repository(
        lambda: made.sampling_resnet(mode="trilinear"),
        Choices(padding="replicate", upsampling="trilinear"),
        PAD | {"upsampling"},
    ),
    "naga-karthik, trilinear with corners": Repository(
        lambda: made.sampling_resnet(mode="trilinear", align_corners=True),
        Choices(padding="replicate", upsampling="trilinear-corners"),
        PAD | {"upsampling"},
    ),
    "naga-karthik, spectral norm and dropout": Repository(
        lambda: made.sampling_resnet(spectral=spectral_norm, dropout=True),
        Choices(padding="replicate", upsampling="nearest"),
        PAD | {"upsampling"},
    ),
    "naga-karthik, parametrized spectral norm": Repository(
        lambda: made.sampling_resnet(spectral=parametrized_spectral_norm),
        Choices(padding="replicate", upsampling="nearest"),
        PAD | {"upsampling"},
    ),
    "davidiommi U-Net": Repository(
        lambda: made.UNet(norm=made.tracked_instance, bias=False),
        Choices(concat="skip-first", norm_statistics="stored"),
        frozenset({"concat", "norm_statistics"}),
    ),
    "neoamos U-Net": Repository(
        lambda: made.UNet(levels=5, width=2, skip_first=False),
        Choices(concat="deeper-first"),
        frozenset({"concat"}),
    ),
    "U-Net, 2 channels to 3": Repository(
        lambda: made.UNet(2, 3, levels=4), Choices(concat="skip-first"), frozenset({"concat"})
    ),
}


def compute(recognised: Recognised, patch: FloatArray) -> FloatArray:
    return run(Network(build(recognised.spec), recognised.weights), patch)


def run(network: Network, patch: FloatArray) -> FloatArray:
    with open_cpu_generator(network, threads=1) as generator:
        return generator(patch)


def pair_of(
    module: "torch.nn.Module", channels: int, extent: int, evaluate: bool = True
) -> tuple[FloatArray, FloatArray]:
    """A random patch, and what the training code makes of it."""
    patch = torch.randn(
        1, channels, extent, extent, extent, generator=torch.Generator().manual_seed(3)
    )
    with torch.no_grad():
        return patch.numpy(), module.train(evaluate is False)(patch).numpy()


def save(module: "torch.nn.Module", path: Path) -> Path:
    torch.save(module.state_dict(), path)
    return path


@pytest.mark.parametrize("name", REPOSITORIES)
def test_computes_what_the_training_code_computes(name: str, tmp_path: Path) -> None:
    repository = REPOSITORIES[name]
    module = made.trained(repository.make())
    path = save(module, tmp_path / "latest_net_G.pth")
    checkpoint = read_checkpoint(path)
    open_questions = recognise(checkpoint, Choices()).undecided
    recognised = recognise(checkpoint, repository.answers)
    extent = 32 if isinstance(recognised.spec, UNetSpec) and recognised.spec.levels > 4 else 16
    patch, expected = pair_of(module, recognised.spec.in_channels, extent, repository.eval)

    assert {question.field for question in open_questions} == repository.open
    assert recognised.undecided == ()
    assert np.abs(compute(recognised, patch) - expected).max() < 1e-4


def test_tells_what_the_shapes_tell(tmp_path: Path) -> None:
    path = save(made.padded_resnet(3, 2, width=6, blocks=4, samplings=1), tmp_path / "G.pth")
    spec = recognise(read_checkpoint(path), REFLECT).spec
    assert spec == ResNetSpec(
        in_channels=3, out_channels=2, width=6, blocks=4, downsamplings=1, padding="reflect"
    )


def test_dropout_is_reported_as_switched_off(tmp_path: Path) -> None:
    path = save(made.padded_resnet(dropout=True), tmp_path / "G.pth")
    defaulted = recognise(read_checkpoint(path), REFLECT).defaulted
    assert ("dropout", "off") in {(finding.subject, finding.value) for finding in defaulted}


def test_no_tanh_when_the_user_says_so(tmp_path: Path) -> None:
    module = made.trained(made.unpadded_resnet())
    module.model[-1] = torch.nn.Identity()
    patch, expected = pair_of(module, 1, 16)
    recognised = recognise(read_checkpoint(save(module, tmp_path / "G.pth")), Choices(tanh=False))
    assert np.abs(expected).max() > 1
    assert np.abs(compute(recognised, patch) - expected).max() < 1e-4


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float64"])
def test_weights_of_every_precision_become_float32(precision: str, tmp_path: Path) -> None:
    module = made.trained(made.unpadded_resnet()).to(getattr(torch, precision))
    recognised = recognise(read_checkpoint(save(module, tmp_path / "G.pth")), Choices())
    patch, expected = pair_of(module.float(), 1, 16)
    assert all(array.dtype == np.float32 for array in recognised.weights.values())
    assert np.abs(compute(recognised, patch) - expected).max() < 1e-4


# --- the reference patch decides ---


@pytest.mark.parametrize(
    "name",
    [
        "DavidSolanas",
        "davidiommi, never in eval",
        "davidiommi, in eval",
        "naga-karthik, trilinear",
        "neoamos U-Net",
    ],
)
def test_reference_patch_answers_every_question(name: str, tmp_path: Path) -> None:
    repository = REPOSITORIES[name]
    module = made.trained(repository.make())
    recognised = recognise(read_checkpoint(save(module, tmp_path / "G.pth")), Choices())
    reference = pair_of(module, 1, 32 if "U-Net" in name else 16, repository.eval)
    resolved = resolve(recognised, *reference)
    assert resolved.undecided == ()
    assert resolved.choices == repository.answers


def test_candidates_are_all_combinations(tmp_path: Path) -> None:
    path = save(made.padded_resnet(norm=made.tracked_instance), tmp_path / "G.pth")
    found = {
        (candidate.choices.padding, candidate.choices.norm_statistics)
        for candidate in candidates(recognise(read_checkpoint(path), Choices()))
    }
    assert found == {(p, s) for p in ("reflect", "replicate") for s in ("patch", "stored")}


def test_reference_of_another_network_is_refused(tmp_path: Path) -> None:
    recognised = recognise(
        read_checkpoint(save(made.padded_resnet(), tmp_path / "G.pth")), Choices()
    )
    reference = pair_of(made.trained(made.padded_resnet()), 1, 16)
    with pytest.raises(CheckpointError, match="computes the reference"):
        resolve(recognised, *reference)


def test_reference_that_does_not_tell_readings_apart_is_refused(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet())
    with torch.no_grad():
        module.model[-2].weight.mul_(1e-5)
    recognised = recognise(read_checkpoint(save(module, tmp_path / "G.pth")), Choices())
    with pytest.raises(CheckpointError, match=r"Several readings .* or say setting padding"):
        resolve(recognised, *pair_of(module, 1, 16))


def test_readings_with_equal_outputs_are_one(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet())
    with torch.no_grad():
        module.model[-2].weight.zero_()
    recognised = recognise(read_checkpoint(save(module, tmp_path / "G.pth")), Choices())
    assert resolve(recognised, *pair_of(module, 1, 16)).undecided == ()


def test_reference_of_another_shape_is_refused(tmp_path: Path) -> None:
    module = made.unpadded_resnet()
    recognised = recognise(read_checkpoint(save(module, tmp_path / "G.pth")), Choices())
    patch, output = pair_of(module, 1, 16)
    with pytest.raises(CheckpointError, match="has the shape"):
        resolve(recognised, patch, output[..., :8])


def test_resolving_picks_the_direction(tmp_path: Path) -> None:
    forward, backward = made.trained(made.unpadded_resnet()), made.unpadded_resnet()
    path = tmp_path / "30.pth"
    torch.save({"G_AB": backward.state_dict(), "G_BA": forward.state_dict()}, path)
    recognised = recognise(read_checkpoint(path), Choices())
    assert [question.field for question in recognised.undecided] == ["direction"]
    assert resolve(recognised, *pair_of(forward, 1, 16)).choices.direction == "BtoA"


# --- wrappers ---


def prefixed(module: "torch.nn.Module", prefix: str) -> dict[str, "torch.Tensor"]:
    return {prefix + key: value for key, value in module.state_dict().items()}


def wrappers() -> dict[str, Callable[["torch.nn.Module", "torch.nn.Module"], object]]:
    critic = made.patch_discriminator()

    def lightning(forward: "torch.nn.Module", backward: "torch.nn.Module") -> object:
        state = {
            **prefixed(forward, "netG_A2B."),
            **prefixed(backward, "netG_B2A."),
            **prefixed(critic, "netD_A."),
        }
        return {"epoch": 3, "state_dict": state, "hyper_parameters": {"lr": 0.1, "b": (1, 2)}}

    return {
        "ganslate": lambda f, b: {
            "G_AB": f.state_dict(),
            "G_BA": b.state_dict(),
            "D_B": critic.state_dict(),
            "optimizer_G": torch.optim.Adam(f.parameters()).state_dict(),
        },
        "dan-hanson": lambda f, b: {
            "epoch": 4,
            "n_resnet": 2,
            "g_model_AtoB_state": f.state_dict(),
            "g_model_BtoA_state": b.state_dict(),
            "d_model_A_state": critic.state_dict(),
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


@pytest.mark.parametrize("name", wrappers())
@pytest.mark.parametrize("direction", ["AtoB", "BtoA"])
def test_pairs_in_one_file_are_told_apart(name: str, direction: str, tmp_path: Path) -> None:
    forward, backward = made.unpadded_resnet(), made.trained(made.unpadded_resnet())
    torch.save(wrappers()[name](forward, backward), tmp_path / "both.ckpt")
    checkpoint = read_checkpoint(tmp_path / "both.ckpt")
    assert [q.field for q in recognise(checkpoint, Choices()).undecided] == ["direction"]

    recognised = recognise(checkpoint, Choices(direction=direction))
    wanted = forward if direction == "AtoB" else backward
    assert np.array_equal(recognised.weights["first.weight"], wanted.model[0].weight.detach())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda g: {"model_state_dict": prefixed(g, "module."), "optimizer": {}, "epoch": 5},
        lambda g: prefixed(g, "_orig_mod."),
        lambda g: prefixed(g, "generator."),
        lambda g: prefixed(g, "model."),
        lambda g: {"state_dict": prefixed(g, "net.module.")},
        lambda g: g.model.state_dict(),
        lambda g: {"G": g.state_dict(), "netD": made.patch_discriminator().state_dict()},
    ],
    ids=["dhaberl", "compiled", "attribute", "model twice", "nested", "bare sequence", "with D"],
)
def test_single_generators_are_unwrapped(wrap: Callable[..., object], tmp_path: Path) -> None:
    module = made.trained(made.unpadded_resnet())
    torch.save(wrap(module), tmp_path / "G.pth.tar")
    recognised = recognise(read_checkpoint(tmp_path / "G.pth.tar"), Choices())
    assert recognised.undecided == ()
    assert np.array_equal(recognised.weights["first.weight"], module.model[0].weight.detach())


@pytest.mark.parametrize(
    ("file", "direction"),
    [("latest_net_G_A.pth", "AtoB"), ("200_net_G_B.pth", "BtoA"), ("netG_A2B_7.pth.tar", "AtoB")],
)
def test_file_names_tell_the_direction(file: str, direction: str, tmp_path: Path) -> None:
    told = recognise(read_checkpoint(save(made.unpadded_resnet(), tmp_path / file)), Choices()).told
    assert ("direction", direction) in {(finding.subject, finding.value) for finding in told}


def test_several_networks_without_a_direction_need_a_name(tmp_path: Path) -> None:
    module, other = made.trained(made.unpadded_resnet()), made.unpadded_resnet()
    torch.save({"ema": module.state_dict(), "raw": other.state_dict()}, tmp_path / "G.pth")
    checkpoint = read_checkpoint(tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match="setting generator, one of 'ema', 'raw'"):
        recognise(checkpoint, Choices())
    with pytest.raises(CheckpointError, match="must be one of 'ema', 'raw', not 'emu'"):
        recognise(checkpoint, Choices(generator="emu"))
    chosen = recognise(checkpoint, Choices(generator="ema")).weights["first.weight"]
    assert np.array_equal(chosen, module.model[0].weight.detach())


def test_safetensors_carry_the_same_generator(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    module = made.trained(made.unpadded_resnet())
    save_file(module.state_dict(), tmp_path / "G.safetensors")
    checkpoint = read_checkpoint(tmp_path / "G.safetensors")
    patch, expected = pair_of(module, 1, 16)
    assert checkpoint.kind == "safetensors"
    assert np.abs(compute(recognise(checkpoint, Choices()), patch) - expected).max() < 1e-4


# --- the options file beside the checkpoint ---


def test_option_text_never_decides_the_padding(tmp_path: Path) -> None:
    path = save(made.padded_resnet(), tmp_path / "G.pth")
    (tmp_path / "train_opt.txt").write_text(
        "----------------- Options ---------------\n"
        "             padding_type: reflect                       \t[default: None]\n"
        "                     netG: resnet_9blocks                \n"
    )
    recognised = recognise(read_checkpoint(path), Choices())
    told = {(finding.subject, finding.value) for finding in recognised.told}
    assert {("option padding_type", "reflect"), ("option netG", "resnet_9blocks")} <= told
    assert [question.field for question in recognised.undecided] == ["padding"]


@pytest.mark.parametrize(("used", "norm"), [("True", "stored"), ("False", "instance")])
def test_options_of_the_test_run_tell_the_statistics(used: str, norm: str, tmp_path: Path) -> None:
    path = save(made.padded_resnet(norm=made.tracked_instance), tmp_path / "G.pth")
    (tmp_path / "test_opt.txt").write_text(f"   eval: {used} \t[default: False]\n")
    assert recognise(read_checkpoint(path), REFLECT).spec.norm == norm
    contrary = "patch" if used == "True" else "stored"
    said = Choices(padding="reflect", norm_statistics=contrary)
    assert recognise(read_checkpoint(path), said).spec.norm != norm


def test_norm_none_in_the_options_leaves_out_the_norm(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet(norm=lambda _: torch.nn.Identity(), bias=False))
    path = save(module, tmp_path / "G.pth")
    (tmp_path / "opt.txt").write_text("norm: none\n")
    patch, expected = pair_of(module, 1, 16)
    recognised = recognise(read_checkpoint(path), REFLECT)
    assert np.abs(compute(recognised, patch) - expected).max() < 1e-4


def test_unpadded_unet_of_the_options_is_refused(tmp_path: Path) -> None:
    path = save(made.UNet(), tmp_path / "G.pth")
    (tmp_path / "train_opt.txt").write_text("netG: unet_32\n")
    with pytest.raises(CheckpointError, match="unet_32"):
        recognise(read_checkpoint(path), Choices())


# --- what is refused ---


def state(**shapes: tuple[int, ...]) -> dict[str, "torch.Tensor"]:
    return {key.replace("__", "."): torch.zeros(shape) for key, shape in shapes.items()}


CUBE = (3, 3, 3)
REFUSED = {
    "2-D": (state(model__1__weight=(8, 1, 7, 7)), "2-D network"),
    "cyclegan3d": (state(encoders__0__weight=(8, 1, *CUBE)), "MONAI residual U-Net"),
    "DynUNet": (state(input_block__conv1__conv__weight=(8, 1, *CUBE)), "DynUNet"),
    "yingao123": (state(prev_conv__0__weight=(8, 1, *CUBE)), "normalises after its activation"),
    "CUT": (state(model__1__weight=(8, 1, 7, 7, 7), model__4__filt=(8, 1, *CUBE)), "blur"),
    "V-Net": (state(in_ab__conv__weight=(8, 1, *CUBE)), "V-Net"),
    "separate U-Net": (state(conv_block1__conv1__0__weight=(8, 1, *CUBE)), "encoder and decoder"),
    "own model": (state(first__weight=(8, 1, 7, 7, 7)), "already a model"),
    "no convolution": (state(fc__weight=(8, 4)), "no convolution weights"),
    "unknown": (state(thing__weight=(8, 1, *CUBE)), "not those of a known"),
    "discriminator": (made.patch_discriminator().state_dict(), "discriminator"),
    "weight norm": (
        state(model__0__weight_g=(8, 1, 1, 1, 1), model__0__weight_v=(8, 1, 7, 7, 7)),
        "neither a convolution nor a normalisation",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_networks_are_refused_by_what_they_are(name: str, tmp_path: Path) -> None:
    tensors, message = REFUSED[name]
    torch.save(tensors, tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=message) as raised:
        recognise(read_checkpoint(tmp_path / "G.pth"), Choices())
    assert str(tmp_path / "G.pth") in str(raised.value)


def changed(path: str, shape: tuple[int, ...]) -> dict[str, "torch.Tensor"]:
    return {**made.padded_resnet().state_dict(), path: torch.zeros(shape)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (changed("model.1.weight", (4, 1, 9, 7, 7)), "kernel of 9x7x7"),
        (changed("model.4.weight", (8, 4, 2, 5, 5)), "8x4x2x5x5"),
        (changed("model.7.weight", (24, 8, 3, 3, 3)), "24x8x3x3x3"),
        (changed("model.10.conv_block.1.weight", (16, 16, 5, 5, 5)), "16x16x5x5x5"),
        (changed("model.1.bias", (5,)), "do not fit together"),
        (changed("model.30.weight", (16, 16, 3, 3, 3)), "not those of a known"),
        (changed("model.2.running_mean", (4,)), "only running_mean"),
        (changed("model.26.weight", (1, 4, 7, 7, 7)), "not those of a known"),
    ],
)
def test_variants_that_do_not_fit_are_refused(
    tensors: dict[str, "torch.Tensor"], message: str, tmp_path: Path
) -> None:
    torch.save(tensors, tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=message):
        recognise(read_checkpoint(tmp_path / "G.pth"), REFLECT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_diverged_weights_are_refused(value: float, tmp_path: Path) -> None:
    module = made.unpadded_resnet().double()
    with torch.no_grad():
        module.model[0].weight[0, 0, 0, 0, 0] = value
    path = save(module, tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=r"model\.0\.weight holds numbers that are not fin"):
        recognise(read_checkpoint(path), Choices())


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (Choices(concat="skip-first"), "Setting concat"),
        (Choices(upsampling="nearest"), "Setting upsampling"),
        (Choices(norm_statistics="patch"), "Setting norm-statistics"),
    ],
)
def test_choices_without_meaning_are_refused(choices: Choices, words: str, tmp_path: Path) -> None:
    path = save(made.unpadded_resnet(), tmp_path / "G.pth")
    with pytest.raises(CheckpointError, match=words):
        recognise(read_checkpoint(path), choices)
