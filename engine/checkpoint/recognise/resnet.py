"""The ResNet generators' two key namings: a sequence by number, and parts by name."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...errors import CheckpointError
from ...network.graph import times
from ...network.layers import Downsample
from .evidence import BY_ONNX
from .layers import KeyMapping, LayerTensors, NetworkTensors, common_bias, fits
from .match import NAMED_RESNET, NUMBERED_RESNET, NUMBERED_RESNET_OF_BLOCKS, Match, ResNetShape

_BLOCK = re.compile(r"model\.(\d+)\.((?:conv_)?block)\.(\d+)$")
_NAMED_BLOCK = re.compile(r"res_blocks\.(\d+)\.block\.[01]\.conv\.0$")
_NUMBERED = {"conv_block": NUMBERED_RESNET, "block": NUMBERED_RESNET_OF_BLOCKS}
"""Layouts by the name of a block's sequence."""

_MOST_BLOCKS, _MOST_SAMPLINGS = 64, 6
_UP_TAPS, _FILTER_TOLERANCE = 4, 1e-5


@dataclass(frozen=True, slots=True)
class _Numbering:
    """How layers without weights of their own shift the numbers of the others.

    behind: layers from a convolution to what follows its norm and activation; 2 without a norm.
    down_extra, up_extra: further layers there, a dropout or a filter. up_steps: layers before a
    convolution of the decoder: none, a sampling layer, and a pad layer too. block: name of a
    block's sequence. conv0, conv1: numbers of its convolutions.
    """

    pads: int
    behind: int
    down_extra: int
    up_steps: int
    up_extra: int
    block: str
    conv0: int
    conv1: int

    @property
    def dropout_in_blocks(self) -> int:
        return self.conv1 - self.conv0 - self.behind - self.conv0

    @property
    def is_possible(self) -> bool:
        """Whether pad, norm and dropout explain the distance of a block's convolutions."""
        return self.conv0 in (0, 1) and self.dropout_in_blocks in (0, 1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Slots in running order; down_filters, up_filters: places of fixed filters."""

    name: str
    slots: tuple[KeyMapping, ...]
    blocks: int
    samplings: int
    numbering: _Numbering | None = None
    down_filters: tuple[str, ...] = ()
    up_filters: tuple[str, ...] = ()

    def part(self, prefix: str) -> tuple[KeyMapping, ...]:
        """Slots whose canonical name begins so."""
        return tuple(slot for slot in self.slots if slot.name.startswith(prefix))

    @property
    def samples(self) -> bool:
        """Whether its decoder samples, and does not transpose."""
        return self.numbering is not None and self.numbering.up_steps > 0


def match_resnet(modules: NetworkTensors) -> Match | None:
    """The layout whose layers are exactly the generator's, if any is.

    Raises CheckpointError if only the shapes of its weights are those of no ResNet generator.
    """
    problems: list[CheckpointError] = []
    for layout in _layouts(modules):
        if fits(layout.slots, modules, (*layout.down_filters, *layout.up_filters)):
            try:
                return _matched(layout, modules)
            except CheckpointError as error:
                problems.append(error)
    if problems:
        raise problems[0]
    return None


def _layouts(modules: NetworkTensors) -> Iterator[_Layout]:
    found = len(modules.convolutions)
    places = [place for path in modules.convolutions if (place := _BLOCK.match(path))]
    named = {m[1] for path in modules.convolutions if (m := _NAMED_BLOCK.match(path))}
    blocks = len({place[1] for place in places}) or len(named)
    samplings = (found - 2 * blocks - 2) // 2
    if blocks > _MOST_BLOCKS:
        raise CheckpointError(
            f"The generator's blocks must lie from 0 to {_MOST_BLOCKS}, not at {blocks}."
        )
    if not 0 <= samplings <= _MOST_SAMPLINGS:
        return
    if not places:
        yield _named_layout(blocks, samplings)
        return
    for numbering in _numberings(places):
        yield _numbered_layout(blocks, samplings, numbering, modules)


def _numberings(places: Sequence[re.Match[str]]) -> Iterator[_Numbering]:
    convolutions = sorted({int(place[3]) for place in places})
    if len(convolutions) != 2 or len({place[2] for place in places}) != 1:
        return
    choices = product((0, 1), (3, 2), (0, 1), (0, 2, 1), (0, 1))
    for pads, behind, down_extra, up_steps, up_extra in choices:
        found = _Numbering(
            pads, behind, down_extra, up_steps, up_extra, places[0][2], *convolutions
        )
        if found.is_possible:
            yield found


def _numbered_layout(
    blocks: int, samplings: int, numbering: _Numbering, modules: NetworkTensors
) -> _Layout:
    """Slots of convolution, norm and activation with what lies between them."""
    slots: list[KeyMapping] = []
    behind, at = numbering.behind, numbering.pads
    filters: dict[str, list[str]] = {"down": [], "up": []}

    def add(name: str) -> None:
        slots.append(_numbered(name, f"model.{at}", f"model.{at + 1}", behind))

    def note(part: str, index: int) -> None:
        if f"model.{index}" in modules.filters:
            filters[part].append(f"model.{index}")

    add("first")
    at += behind
    for step in range(samplings):
        add(f"down{step}")
        note("down", at + behind)
        at += behind + numbering.down_extra
    for block in range(blocks):
        for which, index in enumerate((numbering.conv0, numbering.conv1)):
            path = f"model.{at}.{numbering.block}"
            slot = _numbered(
                f"block{block}.conv{which}", f"{path}.{index}", f"{path}.{index + 1}", behind
            )
            slots.append(replace(slot, norm_name=slot.norm and f"block{block}.norm{which}"))
        at += 1
    for step in range(samplings):
        note("up", at)
        at += numbering.up_steps
        add(f"up{step}")
        at += behind + numbering.up_extra
    slots.append(KeyMapping("last", f"model.{at + numbering.pads}"))
    name = _NUMBERED[numbering.block]
    return _Layout(name, tuple(slots), blocks, samplings, numbering, *map(tuple, filters.values()))


def _numbered(name: str, convolution: str, norm: str, behind: int) -> KeyMapping:
    if behind == 2:
        return KeyMapping(name, convolution)
    return KeyMapping(name, convolution, f"{name}.norm", norm)


def _named_layout(blocks: int, samplings: int) -> _Layout:
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
    return _Layout(NAMED_RESNET, tuple(slots), blocks, samplings)


def _matched(layout: _Layout, modules: NetworkTensors) -> Match:
    """The match; raises CheckpointError for shapes that no ResNet generator has."""
    first, last = layout.slots[0], layout.slots[-1]
    first_shape = modules.convolutions[first.convolution].shape
    last_shape = modules.convolutions[last.convolution].shape
    numbering = layout.numbering
    shape = ResNetShape(
        in_channels=first_shape[1],
        out_channels=last_shape[0],
        width=first_shape[0],
        blocks=layout.blocks,
        downsamplings=layout.samplings,
        first_kernel=_cubic(first_shape),
        last_kernel=_cubic(last_shape),
        norm_bias=common_bias(modules, (first, *layout.part("down"), *layout.part("block"))),
        up_bias=common_bias(modules, layout.part("up")),
        last_bias=modules.convolutions[last.convolution].has_bias,
        pads=numbering is not None and numbering.pads == 1,
        block_pads=numbering is not None and numbering.conv0 == 1,
        up_pads=numbering is not None and numbering.up_steps == 2,
        sampled=layout.samples,
        has_norms=numbering is None or numbering.behind == 3,
        drops_in_blocks=numbering is not None and numbering.dropout_in_blocks > 0,
        drops_outside=_drops_outside(layout),
        blur_taps=_blur_taps(layout, modules),
        blurs_up=bool(layout.up_filters),
        is_named=numbering is None,
    )
    match = Match(layout.name, _with_gain(layout, modules), modules, shape)
    match.check_shapes()
    return match


def _drops_outside(layout: _Layout) -> bool:
    numbering = layout.numbering
    if numbering is None:
        return False
    filtered = int(bool(layout.down_filters))
    return numbering.down_extra > filtered or numbering.up_extra > 0


def _blur_taps(layout: _Layout, modules: NetworkTensors) -> int:
    """Taps of the filters behind the encoder's convolutions, or 0 without any."""
    if not layout.down_filters:
        return 0
    if len(layout.down_filters) != layout.samplings:
        raise CheckpointError("Only some down-samplings of the generator have a filter.")
    taps = {modules.filters[path].tensors["filt"].shape[-1] for path in layout.down_filters}
    for path in layout.down_filters:
        if abs(_gain(modules.filters[path], min(taps)) - 1) > _FILTER_TOLERANCE:
            raise _strange(path)
    return taps.pop()


def _with_gain(layout: _Layout, modules: NetworkTensors) -> tuple[KeyMapping, ...]:
    """The slots; what an enlarging filter multiplies by goes into the convolution behind it."""
    if not layout.up_filters:
        return layout.slots
    if len(layout.up_filters) != layout.samplings or layout.numbering is None:
        raise CheckpointError("Only some up-samplings of the generator have a filter.")
    gains = {
        f"up{step}": _gain(modules.filters[path], _UP_TAPS) / 8
        for step, path in enumerate(layout.up_filters)
    }
    return tuple(replace(slot, gain=gains.get(slot.name, 1.0)) for slot in layout.slots)


def _gain(layer: LayerTensors, taps: int) -> float:
    """Sum of a binomial filter; raises CheckpointError for a filter of another form."""
    values = layer.read("filt")
    gain = float(values[:1].sum())
    if values.shape[1:] != (1, taps, taps, taps) or not np.allclose(
        values,
        gain * Downsample(taps, (2, 2, 2), "zero").weight(1),
        atol=_FILTER_TOLERANCE * abs(gain),
    ):
        raise _strange(layer.path)
    return gain


def _strange(path: str) -> CheckpointError:
    return CheckpointError(
        f"The fixed filter {path}.filt is not one of anti-aliasing as contrastive unpaired "
        f"translation has it; {BY_ONNX}."
    )


def _cubic(shape: tuple[int, ...]) -> int:
    edge = shape[-1]
    if set(shape[2:]) != {edge} or edge % 2 == 0:
        raise CheckpointError(
            f"The generator has a kernel of {times(shape[2:])}; only cubic kernels "
            f"of odd size are read from checkpoints; {BY_ONNX}."
        )
    return edge
