"""The options file that a training left beside its checkpoint, held against the tensors.

It is evidence only where the training code is named: the same words mean different things to
different codes.
"""

import re
from collections.abc import Iterator

from ...errors import CheckpointError
from ..read.checkpoint import Options
from .evidence import Evidence
from .layers import AFFINE, TRACKED
from .match import Match, ResNetShape, UNetShape

_GENERATORS = ("netG", "which_model_netG")
_SHOWN = (*_GENERATORS, "norm", "padding_type", "direction", "ngf", "no_dropout")
_BLOCKS = re.compile(r"resnet_(\d+)blocks")


def tell_options(options: Options, match: Match, evidence: Evidence) -> None:
    """Record what the options say; raises CheckpointError where the tensors contradict them."""
    for name, said, held in _contradictions(options, match):
        raise CheckpointError(
            f"{' and '.join(options.files)} beside the checkpoint says {name}: {said}, but the "
            f"weights are of {held}; the file is of another run: take it away, or name the "
            "checkpoint that it belongs to."
        )
    for name in _SHOWN:
        if value := options.values.get(name):
            evidence.tell(f"option {name}", value, f"written in {', '.join(options.files)}")


def _contradictions(options: Options, match: Match) -> Iterator[tuple[str, str, str]]:
    """Options that the tensors contradict: name, what it says, and what the weights are of."""
    values, shape = options.values, match.shape
    for name, number, what in (
        ("ngf", shape.width, "ngf"),
        ("input_nc", shape.in_channels, "input channels"),
        ("output_nc", shape.out_channels, "output channels"),
        ("n_downsampling", getattr(shape, "downsamplings", None), "down-samplings"),
    ):
        said = values.get(name, "")
        if number is not None and said.isdecimal() and int(said) != number:
            yield name, said, f"{number} {what}"
    yield from _of_the_generator(values.get(_GENERATORS[0]) or values.get(_GENERATORS[1]), match)
    norm = values.get("norm", "")
    if norm and not _norm_can_be(norm, match):
        yield "norm", norm, "another kind of norm"
    if isinstance(shape, ResNetShape):
        drops = {"True": False, "False": True}.get(values.get("no_dropout", ""))
        if drops is not None and drops != shape.drops:
            held = "a generator with dropout" if shape.drops else "one without dropout"
            yield "no_dropout", values["no_dropout"], held


def _of_the_generator(said: str | None, match: Match) -> Iterator[tuple[str, str, str]]:
    shape = match.shape
    if not said:
        return
    if isinstance(shape, UNetShape):
        if said.startswith("resnet"):
            yield "netG", said, "a U-Net"
        elif said == "unet_32":
            raise CheckpointError(
                "The training options name unet_32, whose convolutions do not pad; such U-Nets "
                "are not supported."
            )
    elif said.startswith("unet"):
        yield "netG", said, "a ResNet"
    elif (blocks := _BLOCKS.fullmatch(said)) and int(blocks[1]) != shape.blocks:
        yield "netG", said, f"{shape.blocks} blocks"


def _norm_can_be(said: str, match: Match) -> bool:
    parameters = match.norm_parameters
    bias = match.shape.inner_bias if isinstance(match.shape, UNetShape) else match.shape.norm_bias
    match said:
        case "batch":
            return parameters == TRACKED | AFFINE
        case "instance":
            return parameters != TRACKED | AFFINE
        case "none":
            return not parameters and not bias
        case _:
            return True
