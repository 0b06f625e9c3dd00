"""The ResNet generators' two key namings: a sequence by number, and parts by name."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...errors import CheckpointError
from ...network.architectures import Norm, ResNetSpec, Upsampling
from ...network.graph import PadMode
from .layers import KeyMapping, NetworkTensors, common_bias, fits
from .recognition import Evidence

_BLOCK = re.compile(r"model\.(\d+)\.conv_block\.\d+$")
_NAMED_BLOCK = re.compile(r"res_blocks\.(\d+)\.block\.[01]\.conv\.0$")
_UPSAMPLINGS: dict[str, Upsampling] = {
    "nearest": "nearest",
    "trilinear": "trilinear",
    "trilinear-corners": "trilinear_corners",
}
_PAD_MODES: dict[str, PadMode] = {"reflect": "reflect", "replicate": "replicate", "zero": "zero"}


@dataclass(frozen=True, slots=True)
class ResNetLayout:
    """A ResNet's slots in running order, and what the numbering of its layers tells.

    pad_layers: whether layers of their own pad. sampled: whether sampling layers enlarge. name: of
    the training code. blocks: residual blocks. samplings: layers that halve the grid, and as many
    that double it. dropout: whether there are dropout layers, which count in the numbering.
    """

    name: str
    slots: tuple[KeyMapping, ...]
    blocks: int
    samplings: int
    pad_layers: bool
    sampled: bool
    dropout: bool = False

    def part(self, prefix: str) -> tuple[KeyMapping, ...]:
        """Slots whose canonical name begins so."""
        return tuple(slot for slot in self.slots if slot.name.startswith(prefix))


def match_resnet(modules: NetworkTensors) -> ResNetLayout | None:
    """The layout whose layers are exactly the generator's, if any is."""
    blocks = {m[1] for path in modules.convolutions if (m := _BLOCK.match(path))}
    named_blocks = {m[1] for path in modules.convolutions if (m := _NAMED_BLOCK.match(path))}
    found = len(modules.convolutions)
    if blocks:
        samplings = (found - 2 * len(blocks) - 2) // 2
        candidates = _numbered_layouts(len(blocks), samplings)
    else:
        samplings = (found - 2 * len(named_blocks) - 2) // 2
        candidates = iter([_named_layout(len(named_blocks), samplings)])
    return next((layout for layout in candidates if fits(layout.slots, modules)), None)


def resnet_spec(
    layout: ResNetLayout, modules: NetworkTensors, norm: Norm, evidence: Evidence
) -> ResNetSpec:
    """The spec of a matched ResNet; asks for what its numbering and shapes do not tell."""
    first, last = layout.slots[0], layout.slots[-1]
    first_shape = modules.convolutions[first.convolution].shape
    last_shape = modules.convolutions[last.convolution].shape
    spec = ResNetSpec(
        in_channels=first_shape[1],
        out_channels=last_shape[0],
        width=first_shape[0],
        blocks=layout.blocks,
        downsamplings=layout.samplings,
        padding=_padding(layout, evidence),
        down_padding="reflect" if layout.name == _NAMED else "zero",
        norm=norm,
        upsampling=_upsampling(layout, evidence),
        norm_bias=common_bias(modules, (first, *layout.part("down"), *layout.part("block"))),
        up_bias=common_bias(modules, layout.part("up")),
        last_bias=modules.convolutions[last.convolution].has_bias,
        first_kernel=_cubic(first_shape),
        last_kernel=_cubic(last_shape),
        end="none" if evidence.choose("tanh") is False else "tanh",
    )
    _check_widths(layout, modules, spec.width)
    _report(layout, spec, evidence)
    return spec


_NUMBERED = "numbered ResNet (model.N)"
_NAMED = "named ResNet (initial, down_blocks, res_blocks, up_blocks, last)"


def _numbered_layouts(blocks: int, samplings: int) -> Iterator[ResNetLayout]:
    """Every way in which pad, dropout and sampling layers shift the numbers of the others."""
    booleans = (False, True)
    for pad, sampled, dropout, block_dropout in product(booleans, repeat=4):
        slots = tuple(_numbered_slots(blocks, samplings, pad, sampled, dropout, block_dropout))
        yield ResNetLayout(
            _NUMBERED, slots, blocks, samplings, pad, sampled, dropout or block_dropout
        )


def _numbered_slots(
    blocks: int, samplings: int, pad: bool, sampled: bool, dropout: bool, block_dropout: bool
) -> Iterator[KeyMapping]:
    """Slots of convolution, norm, activation (and dropout) triples behind optional pad layers."""
    at = int(pad)
    yield _numbered("first", at)
    at += 3
    for step in range(samplings):
        yield _numbered(f"down{step}", at)
        at += 3 + dropout
    inner = int(pad)
    outer = inner + 3 + block_dropout + int(pad)
    for block in range(blocks):
        for which, index in enumerate((inner, outer)):
            path = f"model.{at}.conv_block"
            yield KeyMapping(
                f"block{block}.conv{which}",
                f"{path}.{index}",
                f"block{block}.norm{which}",
                f"{path}.{index + 1}",
            )
        at += 1
    for step in range(samplings):
        at += int(sampled) * (1 + pad)
        yield _numbered(f"up{step}", at)
        at += 3 + dropout
    yield KeyMapping("last", f"model.{at + pad}")


def _numbered(name: str, index: int) -> KeyMapping:
    return KeyMapping(name, f"model.{index}", f"{name}.norm", f"model.{index + 1}")


def _named_layout(blocks: int, samplings: int) -> ResNetLayout:
    def slot(name: str, norm_name: str, path: str) -> KeyMapping:
        return KeyMapping(name, f"{path}.0", norm_name, f"{path}.1")

    slots = [slot("first", "first.norm", "initial")]
    for step in range(samplings):
        slots.append(slot(f"down{step}", f"down{step}.norm", f"down_blocks.{step}.conv"))
    for block, which in product(range(blocks), range(2)):
        name = f"block{block}"
        path = f"res_blocks.{block}.block.{which}.conv"
        slots.append(slot(f"{name}.conv{which}", f"{name}.norm{which}", path))
    for step in range(samplings):
        slots.append(slot(f"up{step}", f"up{step}.norm", f"up_blocks.{step}.conv"))
    slots.append(KeyMapping("last", "last"))
    return ResNetLayout(_NAMED, tuple(slots), blocks, samplings, pad_layers=False, sampled=False)


def _padding(layout: ResNetLayout, evidence: Evidence) -> PadMode:
    if layout.pad_layers:
        answer = evidence.ask(
            "padding",
            ("reflect", "replicate"),
            "pad layers leave no trace but their place, and 3-D code that says reflect often "
            "replicates; the wrong one spoils the border of every patch",
        )
        return _PAD_MODES[answer]
    if chosen := evidence.choose("padding"):
        return _PAD_MODES[str(chosen)]
    if layout.name == _NAMED:
        evidence.assume("padding", "reflect", "training code with these names pads so everywhere")
        return "reflect"
    evidence.assume("padding", "zero", "there are no pad layers, so the convolutions pad")
    return "zero"


def _upsampling(layout: ResNetLayout, evidence: Evidence) -> Upsampling:
    if not layout.sampled:
        return "transposed"
    return _UPSAMPLINGS[
        evidence.ask(
            "upsampling",
            _UPSAMPLINGS,
            "sampling layers hold no weights; the wrong one smooths or shifts fine structure",
        )
    ]


def _cubic(shape: tuple[int, ...]) -> int:
    edge = shape[-1]
    if set(shape[2:]) != {edge} or edge % 2 == 0:
        raise CheckpointError(
            f"The generator has a kernel of {'x'.join(map(str, shape[2:]))}; only cubic kernels "
            "of odd size are supported, not those of anisotropic networks."
        )
    return edge


def _check_widths(layout: ResNetLayout, modules: NetworkTensors, width: int) -> None:
    """Raise CheckpointError unless channels double on the way down and kernels are 3x3x3."""
    for slot in (*layout.part("down"), *layout.part("block"), *layout.part("up")):
        shape = modules.convolutions[slot.convolution].shape
        before = width
        if slot.name.startswith("down"):
            width *= 2
        elif slot.name.startswith("up"):
            width //= 2
        transposed = slot.name.startswith("up") and not layout.sampled
        expected = (before, width) if transposed else (width, before)
        if shape != (*expected, 3, 3, 3):
            raise CheckpointError(
                f"Layer {slot.convolution} has weights of {'x'.join(map(str, shape))} where a "
                f"ResNet generator has {'x'.join(map(str, (*expected, 3, 3, 3)))}; this network "
                "is a variant that is not supported."
            )


def _report(layout: ResNetLayout, spec: ResNetSpec, evidence: Evidence) -> None:
    channels = f"{spec.in_channels} in, {spec.out_channels} out"
    evidence.tell("channels", channels, "shapes of the first and last convolution")
    evidence.tell("width", spec.width, "shape of the first convolution")
    evidence.tell("blocks", spec.blocks, "number of residual blocks")
    decoder = "sampling and convolution" if layout.sampled else "transposed convolution"
    evidence.tell("decoder", decoder, "shapes and places of its layers")
    evidence.assume(
        "stride", 2**spec.downsamplings, "each doubling of the channels halves the grid"
    )
    if layout.dropout:
        evidence.assume("dropout", "off", "places of dropout layers; they only act in training")
    if evidence.choices.tanh is None:
        evidence.assume(
            "last activation", "tanh", "it has no weights; setting no-tanh leaves it out"
        )
