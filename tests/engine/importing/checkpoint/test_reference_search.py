"""A reference proves the one reading that computes it, whatever the training code had changed."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
from support.lazy_modules import nn, torch
from support.lazy_modules import torch_generators as made
from support.lazy_modules import torch_variants as variants
from support.torch_pairs import distance, pair_of, run, save

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.checkpoint.evidence import NetworkChoices
from cuda_cyclegan.engine.importing.checkpoint.recognise import Recognised, recognise
from cuda_cyclegan.engine.importing.checkpoint.reference_search import MOST_SECONDS, resolve
from cuda_cyclegan.engine.importing.checkpoint_file import read_checkpoint

SMALL, LARGE = 8, 16
"""The least that networks of one sampling and of three take."""
Make = Callable[[], "torch.nn.Module"]
Norm = Callable[[int], "torch.nn.Module"]


def group(groups: int, affine: bool = True) -> Norm:
    return lambda channels: nn.GroupNorm(groups, channels, affine=affine)


def epsilon(value: float) -> Norm:
    return lambda channels: nn.InstanceNorm3d(channels, eps=value)


def no_norm(_: int) -> "torch.nn.Module":
    return nn.Identity()


def instance(channels: int) -> "torch.nn.Module":
    return made.affine_instance(channels)


def tracked(channels: int) -> "torch.nn.Module":
    return made.tracked_instance(channels)


def batch(channels: int) -> "torch.nn.Module":
    return made.batch(channels)


def leaky(slope: float) -> Make:
    return lambda: nn.LeakyReLU(slope)


def relu() -> "torch.nn.Module":
    return nn.ReLU()


def elu() -> "torch.nn.Module":
    return nn.ELU()


def sigmoid() -> "torch.nn.Module":
    return nn.Sigmoid()


@dataclass(frozen=True)
class Good:
    """A generator that must be imported with a reference.

    evaluate: whether its test calls eval. extent: of the reference patch along each axis.
    """

    make: Make
    evaluate: bool = True
    extent: int = SMALL


def resnet(**changes: object) -> Good:
    return Good(lambda: variants.ResNet(**changes).made())


PADS = ("reflect", "replicate", "zero", "constant")
INSIDE = {"pad": "", "block_pad": "", "up_pad": ""}
WEIGHT_NORMS: dict[str, Callable[["torch.nn.Module"], "torch.nn.Module"]] = {
    "weight norm": lambda one: nn.utils.weight_norm(one),
    "parametrized weight norm": lambda one: nn.utils.parametrizations.weight_norm(one),
    "weight norm of whole weights": lambda one: nn.utils.weight_norm(one, dim=None),
    "parametrized weight norm of whole weights": (
        lambda one: nn.utils.parametrizations.weight_norm(one, dim=None)
    ),
    "weight norm of the second axis": lambda one: nn.utils.weight_norm(one, dim=1),
    "spectral norm": lambda one: nn.utils.spectral_norm(one),
    "parametrized spectral norm": lambda one: nn.utils.parametrizations.spectral_norm(one),
}
GOOD: dict[str, Good] = {
    **{
        f"padding {outer}, in blocks {inner}": resnet(pad=outer, block_pad=inner)
        for outer in PADS
        for inner in PADS
    },
    "blocks pad zeros inside": resnet(block_pad=""),
    "zeros inside": resnet(**INSIDE),
    "reflection inside": resnet(**INSIDE, mode="reflect"),
    "replication inside, of all": resnet(**INSIDE, mode="replicate", down_mode="replicate"),
    "strided convolutions reflect": resnet(down_mode="reflect"),
    "leaky": resnet(activation=leaky(0.2)),
    "slightly leaky": resnet(activation=leaky(0.01)),
    "ELU": resnet(activation=elu),
    "leaky blocks": resnet(block_activation=leaky(0.2)),
    "ELU in the decoder": resnet(up_activation=elu),
    "leaky encoder": resnet(activation=leaky(0.2), block_activation=relu, up_activation=relu),
    "ReLU behind the sum": resnet(residual="activated-sum"),
    "blocks without skip": resnet(residual="none"),
    "no end": resnet(end=None),
    "sigmoid": resnet(end=sigmoid),
    "x + G(x)": Good(lambda: variants.Adding(variants.ResNet().made())),
    "x + G(x) without tanh": Good(lambda: variants.Adding(variants.ResNet(end=None).made())),
    "group norm of 2": resnet(norm=group(2), width=4),
    "group norm of 1": resnet(norm=group(1), width=4),
    "group norm without affine": resnet(norm=group(2, affine=False), width=4),
    "affine instance norm": resnet(norm=instance),
    "identity for norm": resnet(norm=no_norm),
    "no norm layers": resnet(norm=None),
    "epsilon 1e-3": resnet(norm=epsilon(1e-3)),
    "tracked, in eval": resnet(norm=tracked),
    "tracked, never in eval": Good(lambda: variants.ResNet(norm=tracked).made(), evaluate=False),
    "batch norm": resnet(norm=batch, bias=False),
    "batch norm, never in eval": Good(
        lambda: variants.ResNet(norm=batch, bias=False).made(), evaluate=False
    ),
    "in-plane": resnet(stride=(1, 2, 2)),
    "dilated blocks": resnet(dilation=2),
    "nearest": resnet(up="nearest"),
    "trilinear": resnet(up="trilinear"),
    "trilinear, replicating": resnet(up="trilinear", pad="replicate", up_pad="replicate"),
    "trilinear with corners": resnet(up="trilinear-corners"),
    "sampling without a pad layer": resnet(up="nearest", up_pad=""),
    "block for conv_block": resnet(block_name="block"),
    **{name: resnet(wrap=wrap) for name, wrap in WEIGHT_NORMS.items()},
    "leaky, replicate in blocks, no end": resnet(
        activation=leaky(0.2), block_pad="replicate", end=None
    ),
    "anti-aliasing": Good(lambda: variants.anti_aliased()),
    "anti-aliasing, doubling with zeros": Good(lambda: variants.anti_aliased(up_mode="constant")),
    "anti-aliasing, reflecting": Good(lambda: variants.anti_aliased(mode="reflect")),
    "dhaberl": Good(lambda: made.NamedResNet(2, 1)),
    "two channels to three": resnet(inputs=2, outputs=3),
    "three samplings": Good(lambda: variants.ResNet(samplings=3).made(), extent=LARGE),
    "dropout": Good(lambda: made.padded_resnet(width=2, blocks=1, dropout=True)),
    "U-Net": Good(lambda: variants.unet()),
    "U-Net of three levels, deeper first": Good(lambda: variants.unet(3, skip_first=False)),
    "U-Net with group norm": Good(lambda: variants.unet(3, 4, norm=group(2))),
    "U-Net without norm": Good(lambda: variants.unet(3, norm=no_norm)),
    "U-Net with another slope": Good(lambda: variants.unet(slope=0.01)),
    "U-Net with ELU": Good(lambda: variants.unet(up_activation=elu)),
    "U-Net with a sigmoid": Good(lambda: variants.unet(end=sigmoid)),
    "U-Net with replication": Good(lambda: variants.unet(mode="replicate")),
    "U-Net in-plane": Good(lambda: variants.unet(stride=(1, 2, 2))),
    "U-Net with batch norm": Good(lambda: variants.unet(3, norm=batch)),
}
SLOW = {
    *(f"padding {outer}, in blocks {inner}" for outer, inner in itertools.permutations(PADS, 2)),
    "ReLU behind the sum",
    "anti-aliasing, reflecting",
    "dilated blocks",
    "epsilon 1e-3",
    "group norm of 1",
    "group norm of 2",
    "group norm without affine",
    "in-plane",
    "leaky, replicate in blocks, no end",
    "slightly leaky",
    "trilinear, replicating",
}
"""Networks whose search is long, each part of which others show."""


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in GOOD]
)
def test_a_reference_proves_what_is_computed(name: str, tmp_path: Path) -> None:
    good = GOOD[name]
    module = made.trained(good.make())
    recognised = recognise(read_checkpoint(save(module, tmp_path / "G.pth")), NetworkChoices())
    assert recognised.established is None
    assert {"code", "reference"} & {question.field for question in recognised.undecided}
    channels = recognised.spec.in_channels
    patch, expected = pair_of(module, channels, good.extent, good.evaluate)
    resolved = resolve(recognised, patch, expected)
    assert resolved.established
    assert resolved.established.by == "reference"
    assert resolved.undecided == ()
    assert distance(run(resolved.network, patch), expected) < 1e-4
    other, expected = pair_of(module, channels, LARGE + SMALL, good.evaluate)
    assert distance(run(resolved.network, other), expected) < 1e-4


BOTH_KINDS = [
    pytest.param(lambda: variants.unet(), id="U-Net"),
    pytest.param(lambda: variants.ResNet().made(), id="ResNet", marks=pytest.mark.slow),
]
"""A ResNet may compute in so many more ways that a search through all of them takes seconds."""


def reference_case(
    module: "torch.nn.Module", tmp_path: Path, choices: NetworkChoices
) -> Recognised:
    """A checkpoint with nothing settled but the choices."""
    return recognise(read_checkpoint(save(module, tmp_path / "G.pth")), choices)


def test_fitting_reading_and_the_second_best_are_named(tmp_path: Path) -> None:
    module = made.trained(variants.ResNet(block_pad="replicate").made())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    reported = {
        fact.subject: fact for fact in resolve(recognised, *pair_of(module, 1, SMALL)).facts
    }
    assert reported["padding"].value == "reflect"
    assert reported["padding in blocks"].value == "replicate"
    assert re.search(
        r"next best interpretation \(.*\) is 0\.\d+ away", reported["reference"].reason
    )


@pytest.mark.parametrize("make", BOTH_KINDS)
def test_a_reference_of_other_weights_is_refused_with_the_closest_single_change(
    make: Make, tmp_path: Path
) -> None:
    recognised = reference_case(make(), tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError, match="reproduces the reference") as raised:
        resolve(recognised, *pair_of(made.trained(make()), 1, SMALL))
    assert re.search(
        r"the closest \(.*\) is \d.* away .* single changes to the usual network, \d.* away, this "
        r"came closest: .*, \d.* away",
        str(raised.value),
    )


@pytest.mark.parametrize(
    ("make", "choices", "advice"),
    [
        pytest.param(
            lambda: variants.unet(),
            NetworkChoices(),
            "It tries epsilons 1e-05, 0.001; if your code uses another, add setting epsilon.",
            id="U-Net",
        ),
        pytest.param(
            lambda: variants.ResNet().made(),
            NetworkChoices(),
            "It tries leaky slopes 0.2, 0.01 and epsilons 1e-05, 0.001; if your code uses another, "
            "add setting activation=leaky:SLOPE or setting epsilon.",
            id="ResNet",
        ),
        pytest.param(
            lambda: variants.ResNet().made(),
            NetworkChoices(epsilon=1e-4),
            "It tries leaky slopes 0.2, 0.01; if your code uses another, add setting "
            "activation=leaky:SLOPE.",
            id="epsilon is given",
        ),
    ],
)
def test_a_failed_search_names_the_options_for_other_numbers(
    make: Make, choices: NetworkChoices, advice: str, tmp_path: Path
) -> None:
    module = make()
    recognised = reference_case(module, tmp_path, choices)
    other = pair_of(made.trained(make()), 1, SMALL)
    with pytest.raises(CheckpointError) as raised:
        resolve(recognised, *other, clock=passing(MOST_SECONDS))
    assert advice in str(raised.value)


def passing(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is asked."""
    return partial(next, itertools.count(0.0, seconds))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "field"),
    [
        pytest.param(lambda: variants.unet(mode="replicate"), "padding", id="U-Net"),
        pytest.param(
            lambda: variants.ResNet(block_pad="replicate").made(),
            "block_padding",
            id="ResNet",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_half_precision_of_the_weights_alone_is_reported_before_all_else_is_tried(
    make: Make, field: str, half: str, tmp_path: Path
) -> None:
    module: Any = made.trained(make())
    in_full = pair_of(module, 1, LARGE)
    module.to(getattr(torch, half))
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError, match="stored in half precision, whose rounding") as raised:
        resolve(recognised, *in_full)
    words = {"padding": "padding", "block_padding": "padding in blocks"}[field]
    tried = re.search(
        rf"of (\d+) possible networks, the closest \({words} replicate", str(raised.value)
    )
    assert tried
    assert int(tried[1]) < 200
    in_half = pair_of(module.float(), 1, LARGE)
    resolved = resolve(recognised, *in_half)
    assert getattr(resolved.reading, field) == "replicate"


UNKNOWN: dict[str, Make] = {
    "another activation": lambda: variants.ResNet(
        block_pad="replicate", activation=lambda: nn.SiLU()
    ).made(),
    "circular padding": lambda: variants.ResNet(**INSIDE, mode="circular").made(),
    "two patches are one": lambda: followed_by(nn.AvgPool3d(3, 1, 1)),
    "U-Net and a constant factor": lambda: variants.Followed(variants.unet(), variants.Times(0.5)),
    "U-Net and a constant offset": (
        lambda: variants.Followed(variants.unet(), nn.Hardtanh(-0.3, 0.3))
    ),
    "U-Net and circular padding": lambda: variants.unet(mode="circular"),
    "a constant factor": lambda: followed_by(variants.Times(0.5)),
    "a constant offset": lambda: followed_by(nn.Hardtanh(-0.3, 0.3)),
    "activation before norm": lambda: variants.ResNet(
        norm=lambda channels: nn.Sequential(nn.ReLU(), nn.InstanceNorm3d(channels))
    ).made(),
}


def followed_by(layer: "torch.nn.Module") -> "torch.nn.Module":
    return variants.Followed(variants.ResNet().made(), layer)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith("U-Net") else pytest.mark.slow)
        for name in UNKNOWN
    ],
)
def test_reference_that_no_reading_computes_is_refused(name: str, tmp_path: Path) -> None:
    module = made.trained(UNKNOWN[name]())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(
        CheckpointError, match=r"No interpretation .* Either the training code computes"
    ):
        resolve(recognised, *pair_of(module, 1, SMALL))


@pytest.mark.parametrize(
    ("choices", "subject", "reason"),
    [
        (NetworkChoices(concat="skip-first"), "concat", "set with setting concat"),
        (NetworkChoices(end="tanh"), "last activation", "set with setting end"),
    ],
)
def test_an_option_that_the_reference_proves_has_one_row(
    choices: NetworkChoices, subject: str, reason: str, tmp_path: Path
) -> None:
    module = made.trained(variants.unet())
    recognised = reference_case(module, tmp_path, choices)
    reported = resolve(recognised, *pair_of(module, 1, SMALL), clock=passing(MOST_SECONDS)).facts
    found = [fact.reason for fact in reported if fact.reason.startswith(reason)]
    assert found == [f"{reason}; the reference agrees"]
    assert [fact.reason for fact in reported if fact.subject == subject] == found


def test_a_search_that_takes_too_long_ends_and_says_what_it_found_until_then(
    tmp_path: Path,
) -> None:
    module = made.trained(UNKNOWN["circular padding"]())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError) as raised:
        resolve(recognised, *pair_of(module, 1, SMALL), clock=passing(MOST_SECONDS / 4))
    tried = re.search(r"of (\d) possible networks, the closest \(", str(raised.value))
    assert tried
    assert 1 <= int(tried[1]) <= 4
    assert re.search(r"stopped after \d{3} s; with a smaller reference", str(raised.value))


def test_a_search_reports_each_network_before_it_tries_it(tmp_path: Path) -> None:
    module = made.trained(UNKNOWN["circular padding"]())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    trials: list[tuple[int, float, str]] = []
    with pytest.raises(CheckpointError) as raised:
        resolve(
            recognised,
            *pair_of(module, 1, SMALL),
            clock=passing(MOST_SECONDS / 4),
            on_trial=lambda tried, closest, now: trials.append((tried, closest, now)),
        )
    assert [tried for tried, _, _ in trials] == list(range(len(trials)))
    distances = [closest for _, closest, _ in trials]
    assert distances[0] == inf
    assert distances == sorted(distances, reverse=True)
    assert trials[0][2] == "as usual"
    assert any("padding" in now for _, _, now in trials)
    found = re.search(r"is (\S+) away \(relative L2\)", str(raised.value))
    assert found
    assert float(found[1]) <= float(f"{distances[-1]:.2g}")


def test_a_reading_that_is_found_in_time_is_compared_with_others_nevertheless(
    tmp_path: Path,
) -> None:
    module = made.trained(variants.ResNet().made())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    for clock in (passing(0.0), passing(MOST_SECONDS)):
        resolved = resolve(recognised, *pair_of(module, 1, SMALL), clock=clock)
        [reported] = [fact.reason for fact in resolved.facts if fact.subject == "reference"]
        assert "the next best interpretation (" in reported


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            NetworkChoices(end="none"),
            "contradicts setting end=none: it was computed with setting end=tanh",
        ),
        (
            NetworkChoices(concat="skip-first", padding="reflect"),
            "contradicts setting padding=reflect: it was computed with setting padding=zero",
        ),
    ],
)
def test_a_reference_of_a_u_net_shows_what_a_user_says_wrong(
    choices: NetworkChoices, words: str, tmp_path: Path
) -> None:
    module = made.trained(variants.unet())
    recognised = reference_case(module, tmp_path, choices)
    with pytest.raises(CheckpointError, match=words):
        resolve(recognised, *pair_of(module, 1, SMALL))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        pytest.param(
            NetworkChoices(block_padding="zero"),
            "contradicts setting block-padding=zero: it was computed with setting "
            "block-padding=replicate",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            NetworkChoices(end="none"),
            "contradicts setting end=none: it was computed with setting end=tanh",
            marks=pytest.mark.slow,
        ),
        (
            NetworkChoices(code="ganslate"),
            "contradicts setting code=ganslate: it was computed with padding reflect; omit",
        ),
    ],
)
def test_a_reference_shows_what_a_user_says_wrong(
    choices: NetworkChoices, words: str, tmp_path: Path
) -> None:
    module = made.trained(variants.ResNet(block_pad="replicate", samplings=2).made())
    recognised = reference_case(module, tmp_path, choices)
    with pytest.raises(CheckpointError, match=words):
        resolve(recognised, *pair_of(module, 1, SMALL))


def test_a_reference_agrees_with_the_code_that_made_it(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet(pad="replicate", norm=made.tracked_instance))
    recognised = reference_case(module, tmp_path, NetworkChoices(code="davidiommi"))
    resolved = resolve(recognised, *pair_of(module, 1, SMALL, evaluate=False))
    assert resolved.established
    assert resolved.established.by == "reference"


def test_reference_that_does_not_show_readings_apart_is_refused(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet())
    with torch.no_grad():
        module.model[-2].weight.mul_(1e-5)
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError, match=r"Several interpretations .* or set setting "):
        resolve(recognised, *pair_of(module, 1, SMALL))


def test_readings_with_equal_outputs_are_one(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet())
    with torch.no_grad():
        module.model[-2].weight.zero_()
    recognised = reference_case(module, tmp_path, NetworkChoices(end="tanh"))
    assert resolve(recognised, *pair_of(module, 1, SMALL)).undecided == ()


def test_reference_of_another_shape_is_refused(tmp_path: Path) -> None:
    module = made.unpadded_resnet()
    recognised = reference_case(module, tmp_path, NetworkChoices())
    patch, output = pair_of(module, 1, SMALL)
    with pytest.raises(CheckpointError, match="has the shape"):
        resolve(recognised, patch, output[..., :4])


@pytest.mark.parametrize(
    ("make", "asked"),
    [
        pytest.param(lambda: variants.unet(), "reference", id="U-Net"),
        pytest.param(lambda: made.unpadded_resnet(), "code", id="ResNet", marks=pytest.mark.slow),
    ],
)
def test_resolving_picks_the_direction(make: Make, asked: str, tmp_path: Path) -> None:
    forward, backward = made.trained(make()), make()
    path = tmp_path / "30.pth"
    torch.save({"G_AB": backward.state_dict(), "G_BA": forward.state_dict()}, path)
    recognised = recognise(read_checkpoint(path), NetworkChoices())
    assert {question.field for question in recognised.undecided} == {"direction", asked}
    assert resolve(recognised, *pair_of(forward, 1, SMALL)).choices.direction == "BtoA"
