"""A named training code computes what modules written from its description compute."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.import_guide import table_of_codes
from support.lazy_modules import nn, torch
from support.lazy_modules import torch_generators as made
from support.lazy_modules import torch_variants as variants
from support.torch_pairs import distance, pair_of, run, save

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.checkpoint.evidence import NetworkChoices
from cuda_cyclegan.engine.importing.checkpoint.recognise import recognise
from cuda_cyclegan.engine.importing.checkpoint.training_codes import CODES, code_named
from cuda_cyclegan.engine.importing.checkpoint_file import read_checkpoint

GUIDE = Path(__file__).parents[4] / "docs" / "training-codes.md"


def identity(_: int) -> "torch.nn.Module":
    return nn.Identity()


@dataclass(frozen=True)
class Written:
    """A generator as a repository writes it.

    answers: what a user says beside the code. open: what stays to be asked without.
    """

    code: str
    make: Callable[[], "torch.nn.Module"]
    answers: dict[str, str] = field(default_factory=dict[str, str])
    open: frozenset[str] = frozenset()
    evaluate: bool = True


STATISTICS = frozenset({"norm_statistics"})
STORED, PATCH = {"norm_statistics": "stored"}, {"norm_statistics": "patch"}
BLOCKS = frozenset({"block_padding"})
REFLECT = {"block_padding": "reflect"}


def batch_resnet(**changes: object) -> "torch.nn.Module":
    return made.padded_resnet(**{"norm": made.batch, "bias": False, "up_bias": False, **changes})


def zero_blocks(pad: str, **changes: object) -> "torch.nn.Module":
    return variants.ResNet(width=4, samplings=2, pad=pad, block_pad="", **changes).made()


def unbiased_unet(**changes: object) -> "torch.nn.Module":
    return made.UNet(levels=5, width=2, bias=False, **changes)


def ganslate_with_batch_norm() -> "torch.nn.Module":
    module = made.padded_resnet(pad="replicate", norm=made.batch, bias=False)
    last = module.model[-2]
    module.model[-2] = nn.Conv3d(last.in_channels, last.out_channels, 7, bias=False)
    return module


WRITTEN = {
    "junyanz": Written("junyanz", lambda: made.padded_resnet(), REFLECT, BLOCKS),
    "junyanz, padding_type zero": Written("junyanz", lambda: zero_blocks("reflect")),
    "junyanz, dropout": Written(
        "junyanz", lambda: made.padded_resnet(dropout=True), REFLECT, BLOCKS
    ),
    "junyanz, no norm": Written("junyanz", lambda: batch_resnet(norm=identity), REFLECT, BLOCKS),
    "junyanz, batch norm in eval": Written(
        "junyanz", batch_resnet, REFLECT | STORED, BLOCKS | STATISTICS
    ),
    "junyanz, batch norm": Written(
        "junyanz", batch_resnet, REFLECT | PATCH, BLOCKS | STATISTICS, evaluate=False
    ),
    "junyanz, padding_type replicate": Written(
        "junyanz",
        lambda: variants.ResNet(width=4, samplings=2, block_pad="replicate").made(),
        {"block_padding": "replicate"},
        BLOCKS,
    ),
    "junyanz U-Net": Written("junyanz", lambda: made.UNet(levels=5, width=2)),
    "junyanz U-Net without norm": Written("junyanz", lambda: unbiased_unet(norm=identity)),
    "davidiommi": Written(
        "davidiommi",
        lambda: made.padded_resnet(pad="replicate", norm=made.tracked_instance),
        evaluate=False,
    ),
    "davidiommi, padding_type zero": Written(
        "davidiommi",
        lambda: zero_blocks("replicate", norm=made.tracked_instance),
        evaluate=False,
    ),
    "davidiommi, batch norm": Written(
        "davidiommi", lambda: batch_resnet(pad="replicate"), evaluate=False
    ),
    "davidiommi U-Net": Written(
        "davidiommi", lambda: unbiased_unet(norm=made.tracked_instance), evaluate=False
    ),
    "DavidSolanas": Written(
        "davidsolanas", lambda: made.padded_resnet(3, 2, blocks=1), REFLECT, BLOCKS
    ),
    "DavidSolanas U-Net": Written("DavidSolanas", lambda: made.UNet(2, 3, levels=5, width=2)),
    "lucpaul": Written("lucpaul", lambda: made.padded_resnet(), REFLECT, BLOCKS),
    "mfazampour": Written("mfazampour", lambda: made.unpadded_resnet()),
    "mfazampour, batch norm": Written(
        "mfazampour",
        lambda: made.unpadded_resnet(norm=made.batch, bias=False),
        STORED,
        STATISTICS,
    ),
    "mfazampour U-Net": Written(
        "mfazampour", lambda: made.UNet(levels=5, width=2, skip_first=False)
    ),
    "neoamos": Written("neoamos", lambda: made.UNet(levels=5, width=2, skip_first=False)),
    "ganslate": Written("ganslate", lambda: made.padded_resnet(pad="replicate")),
    "ganslate, batch norm": Written("ganslate", ganslate_with_batch_norm, STORED, STATISTICS),
    "ganslate U-Net": Written("ganslate", lambda: made.UNet(levels=5, width=2)),
    "dhaberl": Written("dhaberl", lambda: made.NamedResNet()),
    "naga-karthik": Written("naga-karthik", lambda: made.sampling_resnet()),
    "naga-karthik, spectral norm and dropout": Written(
        "naga-karthik", lambda: made.sampling_resnet(spectral=nn.utils.spectral_norm, dropout=True)
    ),
    "naga-karthik, parametrized spectral norm": Written(
        "naga-karthik",
        lambda: made.sampling_resnet(spectral=nn.utils.parametrizations.spectral_norm),
    ),
    "dan-hanson": Written(
        "dan-hanson", lambda: made.unpadded_resnet(norm=made.affine_instance, bias=False)
    ),
    "lucianoAvinas": Written(
        "lucianoAvinas", lambda: variants.anti_aliased(4, 2, up_mode="constant")
    ),
    "lucianoAvinas, without anti-aliasing": Written(
        "lucianoAvinas",
        lambda: variants.ResNet(4, 2, 2, pad="", block_pad="", mode="replicate").made(),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_named_code_needs_no_more_and_computes_the_same(name: str, tmp_path: Path) -> None:
    written = WRITTEN[name]
    module = made.trained(written.make())
    checkpoint = read_checkpoint(save(module, tmp_path / "latest_net_G_A.pth"))
    asked = recognise(checkpoint, NetworkChoices(code=written.code)).undecided
    assert {question.field for question in asked} == written.open
    recognised = recognise(checkpoint, NetworkChoices(code=written.code, **written.answers))
    assert recognised.undecided == ()
    assert recognised.established
    assert recognised.established.in_words.casefold() == f"code {written.code}".casefold()
    extent = 32 if "U-Net" in name or written.code == "neoamos" else 16
    patch, expected = pair_of(module, recognised.spec.in_channels, extent, written.evaluate)
    assert distance(run(recognised.network, patch), expected) < 1e-4


def test_every_generator_is_compared_with_a_module_in_its_layout(tmp_path: Path) -> None:
    compared: set[tuple[str, str]] = set()
    for written in WRITTEN.values():
        code = code_named(written.code)
        path = save(written.make(), tmp_path / "G.pth")
        match = recognise(read_checkpoint(path), NetworkChoices(code=code.name)).match
        generator = code.generator(match)
        assert generator.layout == match.layout
        compared.add((code.name, generator.file))
    assert compared == {(code.name, made.file) for code in CODES for made in code.generators}


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: made.UNet(levels=4, width=2), "which has 4 levels instead of 5 or more"),
        (
            lambda: variants.ResNet(4, 2, 2, block_name="block").made(),
            r"which has the layout numbered ResNet \(model.N.block\), which it does not write",
        ),
    ],
    ids=["U-Net of few levels", "block for conv_block"],
)
def test_a_layout_that_no_repository_saves_is_offered_no_code(
    module: Callable[[], "torch.nn.Module"], words: str, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(save(module(), tmp_path / "G.pth"))
    recognised = recognise(checkpoint, NetworkChoices())
    assert recognised.fitting_codes == ()
    assert [question.field for question in recognised.undecided] == ["reference"]
    with pytest.raises(CheckpointError, match=words):
        recognise(checkpoint, NetworkChoices(code="junyanz"))


def test_a_code_without_u_nets_is_not_offered_for_one(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(save(made.UNet(levels=5, width=2), tmp_path / "G.pth"))
    assert recognise(checkpoint, NetworkChoices()).fitting_codes == (
        "junyanz",
        "DavidSolanas",
        "mfazampour",
        "neoamos",
        "ganslate",
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_only_codes_that_write_such_tensors_are_offered(name: str, tmp_path: Path) -> None:
    written = WRITTEN[name]
    checkpoint = read_checkpoint(save(written.make(), tmp_path / "G.pth"))
    recognised = recognise(checkpoint, NetworkChoices())
    offered = {code.casefold() for code in recognised.fitting_codes}
    assert written.code.casefold() in offered
    [question] = [q for q in recognised.undecided if q.field == "code"]
    assert question.answers == recognised.fitting_codes
    for code in CODES:
        if code.name.casefold() not in offered:
            with pytest.raises(CheckpointError, match=f"code={code.name} contradicts the file"):
                recognise(checkpoint, NetworkChoices(code=code.name))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            NetworkChoices(code="junyanz", padding="replicate"),
            "padding=replicate contradicts setting",
        ),
        (
            NetworkChoices(code="junyanz", block_padding="constant:1"),
            "block-padding=constant:1 contra",
        ),
        (
            NetworkChoices(code="junyanz", end="none"),
            "end=none contradicts setting code=junyanz, whose",
        ),
        (NetworkChoices(code="junyanz", norm="group:2"), "norm=group:2 contradicts"),
        (NetworkChoices(code="junyanz", activation="elu"), "activation=elu contradicts"),
        (NetworkChoices(code="junyanz", residual="none"), "residual=none contradicts"),
        (NetworkChoices(code="junyanz", epsilon=1e-3), "epsilon=0.001 contradicts"),
        (NetworkChoices(code="pix2pix"), "code must be one of junyanz, .*, not 'pix2pix'"),
    ],
)
def test_fixed_choice_of_a_code_cannot_be_overridden(
    choices: NetworkChoices, words: str, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(save(made.padded_resnet(), tmp_path / "G.pth"))
    with pytest.raises(CheckpointError, match=words):
        recognise(checkpoint, choices)


def test_choice_computed_by_a_code_may_be_stated_too(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(save(made.padded_resnet(), tmp_path / "G.pth"))
    said = NetworkChoices(
        code="junyanz", padding="reflect", block_padding="reflect", end="tanh", activation="relu"
    )
    assert recognise(checkpoint, said).undecided == ()


def test_the_guide_shows_the_table() -> None:
    assert table_of_codes() in GUIDE.read_text("utf-8")


# --- the options file beside the checkpoint ---


def with_options(module: "torch.nn.Module", folder: Path, *lines: str) -> Path:
    (folder / "train_opt.txt").write_text("\n".join(["--- Options ---", *lines, ""]))
    return save(module, folder / "G.pth")


def test_options_are_evidence_only_beside_a_code(tmp_path: Path) -> None:
    path = with_options(
        made.padded_resnet(),
        tmp_path,
        "             padding_type: reflect                       \t[default: None]",
        "                     netG: resnet_2blocks                ",
    )
    checkpoint = read_checkpoint(path)
    for choices in (NetworkChoices(), NetworkChoices(unproven=True)):
        reported = recognise(checkpoint, choices).facts
        assert not [fact for fact in reported if "option" in fact.subject]
    reported = recognise(checkpoint, NetworkChoices(code="junyanz")).facts
    assert ("option netG", "resnet_2blocks") in {(fact.subject, fact.value) for fact in reported}


@pytest.mark.parametrize(
    ("code", "pad", "said", "block_padding"),
    [
        ("junyanz", "reflect", "replicate", "replicate"),
        ("junyanz", "reflect", "reflect", "reflect"),
        ("davidiommi", "replicate", "reflect", "replicate"),
    ],
)
def test_padding_type_is_read_as_the_code_reads_it(
    code: str, pad: str, said: str, block_padding: str, tmp_path: Path
) -> None:
    norm = made.tracked_instance if code == "davidiommi" else made.instance
    path = with_options(made.padded_resnet(norm=norm), tmp_path, f"padding_type: {said}")
    reading = recognise(read_checkpoint(path), NetworkChoices(code=code)).reading
    assert (reading.padding, reading.block_padding) == (pad, block_padding)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "ngf: 64",
            "train_opt.txt next to the checkpoint states ngf: 64, but the weights are of 4",
        ),
        ("input_nc: 3", "input_nc: 3, but the weights are of 1 input"),
        ("output_nc: 3", "output_nc: 3, but the weights are of 1 output"),
        ("netG: resnet_9blocks", "netG: resnet_9blocks, but the weights are of 2 blocks"),
        ("netG: unet_128", "netG: unet_128, but the weights are of a ResNet"),
        ("norm: batch", "norm: batch, but the weights are of another kind"),
        ("norm: none", "norm: none, but the weights are of another kind"),
        ("no_dropout: False", "no_dropout: False, but the weights are of one without dropout"),
        ("padding_type: zero", "padding_type: zero, but the blocks have pad layers"),
    ],
)
def test_options_that_the_tensors_contradict_are_an_error(
    line: str, words: str, tmp_path: Path
) -> None:
    path = with_options(made.padded_resnet(), tmp_path, line)
    with pytest.raises(CheckpointError, match=words):
        recognise(read_checkpoint(path), NetworkChoices(code="junyanz"))
    recognise(read_checkpoint(path), NetworkChoices(unproven=True, padding="reflect"))


@pytest.mark.parametrize(("used", "norm"), [("True", "stored"), ("False", "instance_affine")])
def test_options_of_the_test_run_show_the_statistics(used: str, norm: str, tmp_path: Path) -> None:
    path = save(batch_resnet(), tmp_path / "G.pth")
    (tmp_path / "test_opt.txt").write_text(f"   eval: {used} \t[default: False]\n")
    assert recognise(read_checkpoint(path), NetworkChoices(code="junyanz")).spec.norm == norm
    contrary = "patch" if used == "True" else "stored"
    said = NetworkChoices(code="junyanz", norm_statistics=contrary)
    assert recognise(read_checkpoint(path), said).spec.norm != norm


def test_unpadded_unet_of_the_options_is_refused(tmp_path: Path) -> None:
    path = with_options(made.UNet(levels=5, width=2), tmp_path, "netG: unet_32")
    with pytest.raises(CheckpointError, match="unet_32"):
        recognise(read_checkpoint(path), NetworkChoices(code="junyanz"))


# --- on the user's own word ---


def test_an_unproven_import_asks_what_differs_most_and_lists_the_rest(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(save(made.padded_resnet(dropout=True), tmp_path / "G.pth"))
    recognised = recognise(checkpoint, NetworkChoices(unproven=True))
    assert [question.field for question in recognised.undecided] == ["padding"]
    assumed = {fact.subject: fact.value for fact in recognised.assumptions}
    assert assumed["last activation"] == "tanh"
    assert assumed["norm"] == "instance norm of each patch"
    assert assumed["dropout"] == "off"
    assert recognised.established
    assert recognised.established.by == "unproven"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: variants.ResNet(end=None), {"end": "none"}),
        (lambda: variants.ResNet(end=nn.Sigmoid), {"end": "sigmoid"}),
        (
            lambda: variants.ResNet(activation=lambda: nn.LeakyReLU(0.1)),
            {"activation": "leaky:0.1"},
        ),
        (lambda: variants.ResNet(activation=nn.ELU), {"activation": "elu"}),
        (lambda: variants.ResNet(residual="activated-sum"), {"residual": "activated-sum"}),
        (lambda: variants.ResNet(block_pad="constant"), {"block_padding": "constant:-1"}),
        (lambda: variants.ResNet(4, norm=lambda n: nn.GroupNorm(2, n)), {"norm": "group:2"}),
        (lambda: variants.ResNet(norm=identity), {"norm": "none"}),
        (lambda: variants.ResNet(norm=lambda n: nn.InstanceNorm3d(n, eps=1e-2)), {"epsilon": 1e-2}),
    ],
)
def test_single_settings_are_obeyed(
    make: Callable[[], Any], said: dict[str, str], tmp_path: Path
) -> None:
    generator = made.trained(make().made())
    checkpoint = read_checkpoint(save(generator, tmp_path / "G.pth"))
    choices = NetworkChoices(**{"unproven": True, "padding": "reflect", **said})
    recognised = recognise(checkpoint, choices)
    assert recognised.undecided == ()
    patch, expected = pair_of(generator, 1, 16)
    assert distance(run(recognised.network, patch), expected) < 1e-4


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float64"])
def test_weights_of_every_precision_become_float32(precision: str, tmp_path: Path) -> None:
    module = made.trained(made.unpadded_resnet()).to(getattr(torch, precision))
    checkpoint = read_checkpoint(save(module, tmp_path / "G.pth"))
    network = recognise(checkpoint, NetworkChoices(code="mfazampour")).network
    patch, expected = pair_of(module.float(), 1, 16)
    assert all(array.dtype == np.float32 for array in network.weights.values())
    assert distance(run(network, patch), expected) < 1e-4


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda layer: nn.utils.spectral_norm(layer), "spectral norm"),
        (lambda layer: nn.utils.parametrizations.spectral_norm(layer), "spectral norm"),
        (lambda layer: nn.utils.parametrizations.weight_norm(layer), "weight norm"),
    ],
)
def test_norms_of_weights_show_that_a_code_was_changed(
    wrap: Callable[["torch.nn.Module"], "torch.nn.Module"], name: str, tmp_path: Path
) -> None:
    module = variants.ResNet(samplings=2, blocks=2, wrap=wrap).made()
    checkpoint = read_checkpoint(save(module, tmp_path / "G.pth"))
    assert recognise(checkpoint, NetworkChoices()).fitting_codes == ()
    with pytest.raises(CheckpointError, match=f"which has {name}, which it does not write"):
        recognise(checkpoint, NetworkChoices(code="junyanz"))
