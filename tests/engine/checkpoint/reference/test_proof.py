"""A reference proves the one reading that computes it, whatever the training code had changed."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from support import torch_generators as made  # noqa: E402
from support.torch_pairs import distance, pair_of, run, save  # noqa: E402
from support.torch_variants import Adding, ResNet, anti_aliased, unet  # noqa: E402

from cuda_cyclegan.engine.checkpoint.read.checkpoint import read_checkpoint  # noqa: E402
from cuda_cyclegan.engine.checkpoint.recognise.evidence import NetworkChoices  # noqa: E402
from cuda_cyclegan.engine.checkpoint.recognise.recognition import Recognised, recognise  # noqa: E402
from cuda_cyclegan.engine.checkpoint.reference.proof import resolve  # noqa: E402
from cuda_cyclegan.engine.checkpoint.reference.search import MOST_SECONDS  # noqa: E402
from cuda_cyclegan.engine.errors import CheckpointError  # noqa: E402

nn = torch.nn
SMALL, LARGE = 8, 16
"""The least that networks of one sampling and of three take."""
Make = Callable[[], "torch.nn.Module"]


def group(groups: int, affine: bool = True) -> made.Norm:
    return lambda channels: nn.GroupNorm(groups, channels, affine=affine)


def no_norm(_: int) -> "torch.nn.Module":
    return nn.Identity()


def epsilon(value: float) -> made.Norm:
    return lambda channels: nn.InstanceNorm3d(channels, eps=value)


def leaky(slope: float) -> Callable[[], "torch.nn.Module"]:
    return lambda: nn.LeakyReLU(slope)


@dataclass(frozen=True)
class Good:
    """A generator that must be imported with a reference.

    evaluate: whether its test calls eval. extent: of the reference patch along each axis.
    """

    make: Make
    evaluate: bool = True
    extent: int = SMALL


def resnet(**changes: object) -> Good:
    return Good(lambda: ResNet(**changes).made())


PADS = ("reflect", "replicate", "zero", "constant")
INSIDE = {"pad": "", "block_pad": "", "up_pad": ""}
BLUR = Good(anti_aliased)
WEIGHT_NORMS = {
    "weight norm": torch.nn.utils.weight_norm,
    "parametrized weight norm": torch.nn.utils.parametrizations.weight_norm,
    "weight norm of whole weights": lambda one: torch.nn.utils.weight_norm(one, dim=None),
    "parametrized weight norm of whole weights": (
        lambda one: torch.nn.utils.parametrizations.weight_norm(one, dim=None)
    ),
    "weight norm of the second axis": lambda one: torch.nn.utils.weight_norm(one, dim=1),
    "spectral norm": torch.nn.utils.spectral_norm,
    "parametrized spectral norm": torch.nn.utils.parametrizations.spectral_norm,
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
    "ELU": resnet(activation=nn.ELU),
    "leaky blocks": resnet(block_activation=leaky(0.2)),
    "ELU in the decoder": resnet(up_activation=nn.ELU),
    "leaky encoder": resnet(activation=leaky(0.2), block_activation=nn.ReLU, up_activation=nn.ReLU),
    "ReLU behind the sum": resnet(residual="activated-sum"),
    "blocks without skip": resnet(residual="none"),
    "no end": resnet(end=None),
    "sigmoid": resnet(end=nn.Sigmoid),
    "x + G(x)": Good(lambda: Adding(ResNet().made())),
    "x + G(x) without tanh": Good(lambda: Adding(ResNet(end=None).made())),
    "group norm of 2": resnet(norm=group(2), width=4),
    "group norm of 1": resnet(norm=group(1), width=4),
    "group norm without affine": resnet(norm=group(2, affine=False), width=4),
    "affine instance norm": resnet(norm=made.affine_instance),
    "identity for norm": resnet(norm=no_norm),
    "no norm layers": resnet(norm=None),
    "epsilon 1e-3": resnet(norm=epsilon(1e-3)),
    "tracked, in eval": resnet(norm=made.tracked_instance),
    "tracked, never in eval": Good(
        lambda: ResNet(norm=made.tracked_instance).made(), evaluate=False
    ),
    "batch norm": resnet(norm=made.batch, bias=False),
    "batch norm, never in eval": Good(
        lambda: ResNet(norm=made.batch, bias=False).made(), evaluate=False
    ),
    "in-plane": resnet(stride=(1, 2, 2)),
    "dilated blocks": resnet(dilation=2),
    "nearest": resnet(up="nearest"),
    "trilinear": resnet(up="trilinear", pad="replicate", up_pad="replicate"),
    "trilinear with corners": resnet(up="trilinear-corners"),
    "sampling without a pad layer": resnet(up="nearest", up_pad=""),
    "block for conv_block": resnet(block_name="block"),
    **{name: resnet(wrap=wrap) for name, wrap in WEIGHT_NORMS.items()},
    "leaky, replicate in blocks, no end": resnet(
        activation=leaky(0.2), block_pad="replicate", end=None
    ),
    "anti-aliasing": BLUR,
    "anti-aliasing, reflecting": Good(lambda: anti_aliased(mode="reflect")),
    "dhaberl": Good(partial(made.NamedResNet, 2, 1)),
    "two channels to three": resnet(inputs=2, outputs=3),
    "three samplings": Good(lambda: ResNet(samplings=3).made(), extent=LARGE),
    "dropout": Good(lambda: made.padded_resnet(width=2, blocks=1, dropout=True)),
    "U-Net": Good(unet),
    "U-Net of three levels, deeper first": Good(lambda: unet(3, skip_first=False)),
    "U-Net with group norm": Good(lambda: unet(3, 4, norm=group(2))),
    "U-Net without norm": Good(lambda: unet(3, norm=no_norm)),
    "U-Net with another slope": Good(lambda: unet(slope=0.01)),
    "U-Net with ELU": Good(lambda: unet(up_activation=nn.ELU)),
    "U-Net with a sigmoid": Good(lambda: unet(end=nn.Sigmoid)),
    "U-Net with replication": Good(lambda: unet(mode="replicate")),
    "U-Net in-plane": Good(lambda: unet(stride=(1, 2, 2))),
    "U-Net with batch norm": Good(lambda: unet(3, norm=made.batch)),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", GOOD)
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


def reference_case(
    module: "torch.nn.Module", tmp_path: Path, choices: NetworkChoices
) -> Recognised:
    """A checkpoint with nothing settled but the choices."""
    return recognise(read_checkpoint(save(module, tmp_path / "G.pth")), choices)


def test_what_fits_and_the_second_best_are_named(tmp_path: Path) -> None:
    module = made.trained(ResNet(block_pad="replicate").made())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    told = {fact.subject: fact for fact in resolve(recognised, *pair_of(module, 1, SMALL)).told}
    assert told["padding"].value == "reflect"
    assert told["padding in blocks"].value == "replicate"
    assert re.search(r"next best reading \(.*\) is 0\.\d+ away", told["reference"].reason)


def test_a_reference_of_other_weights_is_refused_with_the_closest_single_change(
    tmp_path: Path,
) -> None:
    recognised = reference_case(ResNet().made(), tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError, match="computes the reference") as raised:
        resolve(recognised, *pair_of(made.trained(ResNet().made()), 1, SMALL))
    assert re.search(
        r"the closest \(.*\) is \d.* away .* single changes to the usual network, \d.* away, this "
        r"came closest: .*, \d.* away",
        str(raised.value),
    )


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_of_the_weights_alone_is_told_before_all_else_is_tried(
    half: "torch.dtype", tmp_path: Path
) -> None:
    module = made.trained(ResNet(block_pad="replicate").made())
    in_full = pair_of(module, 1, LARGE)
    module.to(half)
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError, match="stored in half precision, whose rounding") as raised:
        resolve(recognised, *in_full)
    tried = re.search(r"of (\d+) networks .* the closest \(padding in blocks", str(raised.value))
    assert tried
    assert int(tried[1]) < 200
    in_half = pair_of(module.float(), 1, LARGE)
    resolved = resolve(recognised, *in_half)
    assert resolved.reading.block_padding == "replicate"


class Softened(nn.Module):
    """A generator whose blocks are squashed, which no reading computes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ResNet(block_pad="replicate", activation=nn.SiLU).made().model

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.model(x)


UNKNOWN = {
    "another activation": Softened,
    "circular padding": lambda: ResNet(**INSIDE, mode="circular").made(),
    "two patches are one": lambda: Sandwiched(nn.AvgPool3d(3, 1, 1)),
    "a constant factor": lambda: Sandwiched(Times(0.5)),
    "a constant offset": lambda: Sandwiched(nn.Hardtanh(-0.3, 0.3)),
    "activation before norm": lambda: ResNet(
        norm=lambda channels: nn.Sequential(nn.ReLU(), nn.InstanceNorm3d(channels))
    ).made(),
}


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return x * self.factor


class Sandwiched(nn.Module):
    """A generator with a layer without weights behind it."""

    def __init__(self, behind: "torch.nn.Module") -> None:
        super().__init__()
        self.model = ResNet().made().model
        self.behind = behind

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.behind(self.model(x))


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_reading_computes_is_refused(name: str, tmp_path: Path) -> None:
    module = made.trained(UNKNOWN[name]())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError, match=r"No reading .* Either the training code computes"):
        resolve(recognised, *pair_of(module, 1, SMALL))


def passing(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is asked."""
    return partial(next, itertools.count(0.0, seconds))


def test_a_search_that_takes_too_long_ends_and_says_what_it_found_until_then(
    tmp_path: Path,
) -> None:
    module = made.trained(UNKNOWN["circular padding"]())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError) as raised:
        resolve(recognised, *pair_of(module, 1, SMALL), clock=passing(MOST_SECONDS / 4))
    tried = re.search(r"of (\d) networks that it can be, the closest \(", str(raised.value))
    assert tried
    assert 1 <= int(tried[1]) <= 4
    assert re.search(r"ended there, after \d{3} s; with a smaller reference", str(raised.value))


def test_a_reading_that_is_found_in_time_is_compared_with_others_all_the_same(
    tmp_path: Path,
) -> None:
    module = made.trained(ResNet().made())
    recognised = reference_case(module, tmp_path, NetworkChoices())
    for clock in (passing(0.0), passing(MOST_SECONDS)):
        resolved = resolve(recognised, *pair_of(module, 1, SMALL), clock=clock)
        [told] = [fact.reason for fact in resolved.told if fact.subject == "reference"]
        assert "the next best reading (" in told


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            NetworkChoices(block_padding="zero"),
            "contradicts setting block-padding=zero: it was computed with setting "
            "block-padding=replicate",
        ),
        (
            NetworkChoices(end="none"),
            "contradicts setting end=none: it was computed with setting end=tanh",
        ),
        (
            NetworkChoices(code="ganslate"),
            "contradicts setting code=ganslate: it was computed with padding reflect; leave",
        ),
    ],
)
def test_a_reference_shows_what_a_user_says_wrong(
    choices: NetworkChoices, words: str, tmp_path: Path
) -> None:
    module = made.trained(ResNet(block_pad="replicate", samplings=2).made())
    recognised = reference_case(module, tmp_path, choices)
    with pytest.raises(CheckpointError, match=words):
        resolve(recognised, *pair_of(module, 1, SMALL))


def test_a_reference_agrees_with_the_code_that_made_it(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet(pad="replicate", norm=made.tracked_instance))
    recognised = reference_case(module, tmp_path, NetworkChoices(code="davidiommi"))
    resolved = resolve(recognised, *pair_of(module, 1, SMALL, evaluate=False))
    assert resolved.established
    assert resolved.established.by == "reference"


def test_reference_that_does_not_tell_readings_apart_is_refused(tmp_path: Path) -> None:
    module = made.trained(made.padded_resnet())
    with torch.no_grad():
        module.model[-2].weight.mul_(1e-5)
    recognised = reference_case(module, tmp_path, NetworkChoices())
    with pytest.raises(CheckpointError, match=r"Several readings .* or say setting "):
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


def test_resolving_picks_the_direction(tmp_path: Path) -> None:
    forward, backward = made.trained(made.unpadded_resnet()), made.unpadded_resnet()
    path = tmp_path / "30.pth"
    torch.save({"G_AB": backward.state_dict(), "G_BA": forward.state_dict()}, path)
    recognised = recognise(read_checkpoint(path), NetworkChoices())
    assert {question.field for question in recognised.undecided} == {"direction", "code"}
    assert resolve(recognised, *pair_of(forward, 1, SMALL)).choices.direction == "BtoA"
