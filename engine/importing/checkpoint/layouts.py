"""Layouts of generators: the key namings of ResNets and U-Nets, and a generator matched to one of
them.

A ResNet is named by number (`model.N`) or by part (`initial`, `down_blocks` ...), a U-Net by
nesting (`model.model.1.model.3.model` ...). `match_resnet` and `match_unet` return a `Match`: the
layout with its tensors, and what names and shapes determine.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

import numpy as np

from ...errors import CheckpointError
from ...network.architectures import (
    Blur,
    Groups,
    Norm,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
    out_of_bounds,
)
from ...network.graph import Graph, Network, times
from ...network.layers import Downsample, FloatArray, PadMode, Triple, triple
from .evidence import BY_EXPORT, U_NET, Reading, word
from .generator_layers import (
    AFFINE,
    TRACKED,
    KeyMapping,
    LayerTensors,
    NetworkTensors,
    common_bias,
    convolution_weights,
    fits,
)

_PLAIN_EPSILON = 1e-5
"""PyTorch's default epsilon; no checkpoint stores it."""

_MOST_GROUPS = 32

NUMBERED_RESNET = "numbered ResNet (model.N)"
NUMBERED_RESNET_OF_BLOCKS = "numbered ResNet (model.N.block)"
NAMED_RESNET = "named ResNet (initial, down_blocks, res_blocks, up_blocks, last)"
NESTED_U_NET = "nested U-Net (model.model.1.model)"
"""Layouts by the naming of keys; blocks of a numbered ResNet are usually named conv_block."""


@dataclass(frozen=True, slots=True)
class ResNetShape:
    """Properties of a ResNet that names and shapes determine.

    in_channels, out_channels: of the network. width: channels of the first convolution. blocks,
    downsamplings: how many. first_kernel, last_kernel: edges of the outer kernels. norm_bias,
    up_bias, last_bias: whether convolutions before a norm, those of the decoder, and the last one
    have a bias. pads, block_pads, up_pads: whether separate layers pad the outer convolutions,
    those of the blocks, and those after up-sampling. sampled: whether the decoder has up-sampling
    layers rather than transposed convolutions. has_norms: whether the numbering leaves space for
    norms. drops_in_blocks, drops_outside: whether it leaves space for dropout. blur_taps: of the
    anti-aliasing filters, or 0. blurs_up: whether such filters up-sample, which is trilinear.
    is_named: whether layers have names rather than numbers.
    """

    in_channels: int
    out_channels: int
    width: int
    blocks: int
    downsamplings: int
    first_kernel: int
    last_kernel: int
    norm_bias: bool
    up_bias: bool
    last_bias: bool
    pads: bool
    block_pads: bool
    up_pads: bool = False
    sampled: bool = False
    has_norms: bool = True
    drops_in_blocks: bool = False
    drops_outside: bool = False
    blur_taps: int = 0
    blurs_up: bool = False
    is_named: bool = False

    @property
    def drops(self) -> bool:
        """Whether the numbering leaves space for dropout anywhere."""
        return self.drops_in_blocks or self.drops_outside

    @property
    def usual(self) -> Reading:
        """The most common reading of such weights."""
        padding: PadMode = "reflect" if self.pads or self.is_named else "zero"
        return Reading(
            padding=padding,
            block_padding="reflect" if self.block_pads or self.is_named else "zero",
            down_padding="reflect" if self.is_named else "zero",
            up_padding=padding if self.up_pads else "zero",
            blur_padding="reflect" if self.pads else "replicate",
            upsampling="trilinear" if self.blurs_up else "nearest",
            norm="instance" if self.has_norms else "none",
        )


@dataclass(frozen=True, slots=True)
class UNetShape:
    """Properties of a U-Net that names and shapes determine.

    in_channels, out_channels: of the network. width: channels of the outermost level. levels: how
    many. norm_bias: whether convolutions inside the outermost level have a bias. stride: of each
    level along D, H and W, determined by the kernels.
    """

    in_channels: int
    out_channels: int
    width: int
    levels: int
    norm_bias: bool
    stride: Triple

    @property
    def usual(self) -> Reading:
        """The most common reading of such weights."""
        return replace(U_NET, stride=self.stride)


Shape: TypeAlias = ResNetShape | UNetShape


@dataclass(frozen=True, slots=True)
class Match:
    """A generator's tensors matched to a layout.

    layout: the key naming, in words. slots: its convolutions in order of execution. modules: the
    layers with their tensors. shape: properties that these determine.
    """

    layout: str
    slots: tuple[KeyMapping, ...]
    modules: NetworkTensors = field(repr=False)
    shape: Shape

    @property
    def norm_parameters(self) -> frozenset[str]:
        """Names of each norm's tensors."""
        return self.modules.norm_parameters

    @property
    def is_tracked(self) -> bool:
        """Whether running statistics are stored."""
        return self.norm_parameters >= TRACKED

    @property
    def has_affine_norms(self) -> bool:
        """Whether each norm has a scale and a shift."""
        return self.norm_parameters >= AFFINE

    def check_shapes(self) -> None:
        """Raise CheckpointError unless every convolution's weights have the expected shape."""
        family = "ResNet" if isinstance(self.shape, ResNetShape) else "U-Net"
        expected = dict(build(self.spec(self.shape.usual)).weight_shapes())
        for slot in self.slots:
            found = self.modules.convolutions[slot.convolution].shape
            wanted = expected[f"{slot.name}.weight"]
            if found != wanted:
                raise CheckpointError(
                    f"Layer {slot.convolution} has weights of {times(found)} but a {family} "
                    f"generator has {times(wanted)}; {BY_EXPORT}."
                )

    def norms(self) -> tuple[Norm, ...]:
        """Return the possible norms for such tensors, the usual one first."""
        shape = self.shape
        if isinstance(shape, ResNetShape) and not shape.has_norms:
            return ("none",)
        groups = tuple(
            Groups(groups)
            for groups in range(min(_MOST_GROUPS, shape.width - 1), 0, -1)
            if shape.width % groups == 0
        )
        if self.is_tracked:
            return ("instance", "stored")
        return ("instance", *groups) if self.has_affine_norms else ("instance", "none", *groups)

    def spec(self, reading: Reading) -> Spec:
        """Return the architecture; raises CheckpointError if it is out of bounds."""
        norm = self._norm(reading)
        shape = self.shape
        spec = (
            _resnet_spec(shape, reading, norm)
            if isinstance(shape, ResNetShape)
            else _unet_spec(shape, reading, norm)
        )
        for name, reason in out_of_bounds(spec):
            raise CheckpointError(f"The generator's {name.replace('_', ' ')} {reason}.")
        return spec

    def network(self, reading: Reading) -> Network:
        """Return graph and weights; raises CheckpointError if they do not fit together."""
        return joined(build(self.spec(reading)), self.weights(reading))

    def weights(self, reading: Reading) -> dict[str, FloatArray]:
        """Return all weights by canonical names; a norm with stored statistics is folded."""
        norm = self._norm(reading)
        return convolution_weights(self.slots, self.modules, norm, reading.epsilon)

    def _norm(self, reading: Reading) -> Norm:
        norm, possible = reading.norm, self.norms()
        fits_groups = isinstance(norm, Groups) and any(isinstance(one, Groups) for one in possible)
        if norm not in possible and not fits_groups:
            raise CheckpointError(
                f"A norm of kind {word(norm)} would have tensors other than those in the file; "
                f"it can be {', '.join(map(word, possible))}."
            )
        if isinstance(norm, Groups):
            return Groups(norm.groups, self.has_affine_norms)
        return "instance_affine" if norm == "instance" and self.has_affine_norms else norm


def joined(graph: Graph, weights: Mapping[str, FloatArray]) -> Network:
    """Join graph and weights; raises CheckpointError if they do not fit together."""
    try:
        return Network(graph, weights)
    except ValueError as error:
        raise CheckpointError(f"The weights do not fit together: {error}.") from error


def _resnet_spec(shape: ResNetShape, reading: Reading, norm: Norm) -> ResNetSpec:
    """Return the spec; a part's field is None if it equals that of the whole."""
    padding, activation = reading.padding, reading.activation
    block_padding, block = reading.block_padding, reading.block_activation
    up_padding, up = reading.up_padding, reading.up_activation
    return ResNetSpec(
        in_channels=shape.in_channels,
        out_channels=shape.out_channels,
        width=shape.width,
        blocks=shape.blocks,
        downsamplings=shape.downsamplings,
        padding=padding,
        down_padding=reading.down_padding,
        norm=norm,
        upsampling=reading.upsampling if shape.sampled else "transposed",
        norm_bias=shape.norm_bias,
        up_bias=shape.up_bias,
        last_bias=shape.last_bias,
        first_kernel=shape.first_kernel,
        last_kernel=shape.last_kernel,
        end=reading.end,
        block_padding=None if block_padding == padding else block_padding,
        up_padding=None if up_padding == padding or not shape.sampled else up_padding,
        activation=activation,
        block_activation=None if block == activation else block,
        up_activation=None if up == activation else up,
        residual=reading.residual,
        norm_epsilon=reading.epsilon if norm_uses_epsilon(norm) else _PLAIN_EPSILON,
        stride=reading.stride,
        block_dilation=reading.dilation,
        blur=Blur(shape.blur_taps, reading.blur_padding) if shape.blur_taps else None,
        adds_input=reading.adds_input,
    )


def _unet_spec(shape: UNetShape, reading: Reading, norm: Norm) -> UNetSpec:
    return UNetSpec(
        in_channels=shape.in_channels,
        out_channels=shape.out_channels,
        width=shape.width,
        levels=shape.levels,
        norm=norm,
        skip_first=reading.concat == "skip-first",
        inner_bias=shape.norm_bias,
        end=reading.end,
        padding=reading.padding,
        down_activation=reading.activation,
        up_activation=reading.up_activation,
        norm_epsilon=reading.epsilon if norm_uses_epsilon(norm) else _PLAIN_EPSILON,
        stride=reading.stride,
        adds_input=reading.adds_input,
    )


def norm_uses_epsilon(norm: Norm) -> bool:
    """Whether a norm has an epsilon in the graph; with stored statistics it is in the weights."""
    return norm not in ("none", "stored")


_BLOCK = re.compile(r"model\.(\d+)\.((?:conv_)?block)\.(\d+)$")
_NAMED_BLOCK = re.compile(r"res_blocks\.(\d+)\.block\.[01]\.conv\.0$")
_NUMBERED = {"conv_block": NUMBERED_RESNET, "block": NUMBERED_RESNET_OF_BLOCKS}
"""Layouts by the name of a block's sequence."""

_MOST_BLOCKS, _MOST_SAMPLINGS = 64, 6
_UP_TAPS, _FILTER_TOLERANCE = 4, 1e-5


@dataclass(frozen=True, slots=True)
class _Numbering:
    """Numbering of layers, which layers without weights shift.

    pads: outer pad layers. unit_length: a convolution, its norm and activation: 3 layers, or 2
    without a norm. down_extra, up_extra: further layers there: a dropout or a filter. up_steps:
    layers before a convolution of the decoder: none, an up-sampling layer, or that and a pad layer.
    block: name of a block's sequence. conv0, conv1: numbers of its convolutions.
    """

    pads: int
    unit_length: int
    down_extra: int
    up_steps: int
    up_extra: int
    block: str
    conv0: int
    conv1: int

    @property
    def dropout_in_blocks(self) -> int:
        return self.conv1 - self.conv0 - self.unit_length - self.conv0

    @property
    def is_possible(self) -> bool:
        """Whether pad, norm and dropout layers explain the numbers of a block's convolutions."""
        return self.conv0 in (0, 1) and self.dropout_in_blocks in (0, 1)


@dataclass(frozen=True, slots=True)
class _ResNetLayout:
    """Slots in order of execution; down_filters, up_filters: paths of fixed filters."""

    name: str
    slots: tuple[KeyMapping, ...]
    blocks: int
    samplings: int
    numbering: _Numbering | None = None
    down_filters: tuple[str, ...] = ()
    up_filters: tuple[str, ...] = ()

    def part(self, prefix: str) -> tuple[KeyMapping, ...]:
        """Return the slots whose canonical name starts with a prefix."""
        return tuple(slot for slot in self.slots if slot.name.startswith(prefix))

    @property
    def samples(self) -> bool:
        """Whether the decoder up-samples rather than transposes."""
        return self.numbering is not None and self.numbering.up_steps > 0


def match_resnet(modules: NetworkTensors) -> Match | None:
    """Match a ResNet whose layers are exactly the generator's; None if there is none.

    Raises CheckpointError if only the shapes of the weights do not match.
    """
    problems: list[CheckpointError] = []
    for layout in _resnet_layouts(modules):
        if fits(layout.slots, modules, (*layout.down_filters, *layout.up_filters)):
            try:
                return _matched_resnet(layout, modules)
            except CheckpointError as error:
                problems.append(error)
    if problems:
        raise problems[0]
    return None


def _resnet_layouts(modules: NetworkTensors) -> Iterator[_ResNetLayout]:
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
    for pads, unit_length, down_extra, up_steps, up_extra in choices:
        found = _Numbering(
            pads, unit_length, down_extra, up_steps, up_extra, places[0][2], *convolutions
        )
        if found.is_possible:
            yield found


def _numbered_layout(
    blocks: int, samplings: int, numbering: _Numbering, modules: NetworkTensors
) -> _ResNetLayout:
    """Return the slots of a numbered ResNet: the numbers follow from all layers in between."""
    slots: list[KeyMapping] = []
    unit_length, at = numbering.unit_length, numbering.pads
    filters: dict[str, list[str]] = {"down": [], "up": []}

    def add(name: str) -> None:
        slots.append(_numbered(name, f"model.{at}", f"model.{at + 1}", unit_length))

    def note(part: str, index: int) -> None:
        if f"model.{index}" in modules.filters:
            filters[part].append(f"model.{index}")

    add("first")
    at += unit_length
    for step in range(samplings):
        add(f"down{step}")
        note("down", at + unit_length)
        at += unit_length + numbering.down_extra
    for block in range(blocks):
        for which, index in enumerate((numbering.conv0, numbering.conv1)):
            path = f"model.{at}.{numbering.block}"
            slot = _numbered(
                f"block{block}.conv{which}", f"{path}.{index}", f"{path}.{index + 1}", unit_length
            )
            slots.append(replace(slot, norm_name=slot.norm and f"block{block}.norm{which}"))
        at += 1
    for step in range(samplings):
        note("up", at)
        at += numbering.up_steps
        add(f"up{step}")
        at += unit_length + numbering.up_extra
    slots.append(KeyMapping("last", f"model.{at + numbering.pads}"))
    name = _NUMBERED[numbering.block]
    return _ResNetLayout(
        name, tuple(slots), blocks, samplings, numbering, *map(tuple, filters.values())
    )


def _numbered(name: str, convolution: str, norm: str, unit_length: int) -> KeyMapping:
    if unit_length == 2:
        return KeyMapping(name, convolution)
    return KeyMapping(name, convolution, f"{name}.norm", norm)


def _named_layout(blocks: int, samplings: int) -> _ResNetLayout:
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
    return _ResNetLayout(NAMED_RESNET, tuple(slots), blocks, samplings)


def _matched_resnet(layout: _ResNetLayout, modules: NetworkTensors) -> Match:
    """Return the match; raises CheckpointError for shapes that no ResNet generator has."""
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
        has_norms=numbering is None or numbering.unit_length == 3,
        drops_in_blocks=numbering is not None and numbering.dropout_in_blocks > 0,
        drops_outside=_drops_outside(layout),
        blur_taps=_blur_taps(layout, modules),
        blurs_up=bool(layout.up_filters),
        is_named=numbering is None,
    )
    match = Match(layout.name, _with_gain(layout, modules), modules, shape)
    match.check_shapes()
    return match


def _drops_outside(layout: _ResNetLayout) -> bool:
    numbering = layout.numbering
    if numbering is None:
        return False
    filtered = int(bool(layout.down_filters))
    return numbering.down_extra > filtered or numbering.up_extra > 0


def _blur_taps(layout: _ResNetLayout, modules: NetworkTensors) -> int:
    """Return the taps of the filters after the encoder's convolutions, or 0."""
    if not layout.down_filters:
        return 0
    if len(layout.down_filters) != layout.samplings:
        raise CheckpointError("Only some down-samplings of the generator have a filter.")
    taps = {modules.filters[path].tensors["filt"].shape[-1] for path in layout.down_filters}
    for path in layout.down_filters:
        if abs(_gain(modules.filters[path], min(taps)) - 1) > _FILTER_TOLERANCE:
            raise _strange(path)
    return taps.pop()


def _with_gain(layout: _ResNetLayout, modules: NetworkTensors) -> tuple[KeyMapping, ...]:
    """Return the slots; the gain of an up-sampling filter is moved to the convolution after it."""
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
    """Return the sum of a binomial filter; raises CheckpointError for any other filter."""
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
        f"The fixed filter {path}.filt is not an anti-aliasing filter of contrastive unpaired "
        f"translation; {BY_EXPORT}."
    )


def _cubic(shape: tuple[int, ...]) -> int:
    edge = shape[-1]
    if set(shape[2:]) != {edge} or edge % 2 == 0:
        raise CheckpointError(
            f"The generator has a kernel of {times(shape[2:])}; only cubic kernels "
            f"of odd size are read from checkpoints; {BY_EXPORT}."
        )
    return edge


_FEWEST_LEVELS, _MOST_LEVELS = 2, 12


def match_unet(modules: NetworkTensors) -> Match | None:
    """Match a nested U-Net whose layers are exactly the generator's; None if there is none.

    Raises CheckpointError if only the shapes of the weights do not match.
    """
    levels, odd = divmod(len(modules.convolutions), 2)
    if odd or not _FEWEST_LEVELS <= levels <= _MOST_LEVELS:
        return None
    slots = _unet_slots(levels)
    return _matched_unet(slots, modules) if fits(slots, modules) else None


def _matched_unet(slots: tuple[KeyMapping, ...], modules: NetworkTensors) -> Match:
    outermost_up = slots[-1]
    first_shape = modules.convolutions[slots[0].convolution].shape
    shape = UNetShape(
        in_channels=first_shape[1],
        out_channels=modules.convolutions[outermost_up.convolution].shape[1],
        width=first_shape[0],
        levels=len(slots) // 2,
        norm_bias=common_bias(modules, slots[:-1]),
        stride=triple(edge - 2 for edge in first_shape[2:]),
    )
    kernel = first_shape[2:]
    if not set(kernel) <= {3, 4}:
        raise CheckpointError(
            f"The U-Net has kernels of {times(kernel)}; only those of 4, or of 3 "
            f"along an axis that is not sampled, are read from checkpoints; {BY_EXPORT}."
        )
    match = Match(NESTED_U_NET, slots, modules, shape)
    match.check_shapes()
    if any(modules.convolutions[slot.convolution].is_spectral for slot in slots):
        raise CheckpointError(f"This is a U-Net with spectral norm; {BY_EXPORT}.")
    if not modules.convolutions[outermost_up.convolution].has_bias:
        raise CheckpointError(f"The U-Net's last layer has no bias; {BY_EXPORT}.")
    return match


def _unet_slots(levels: int) -> tuple[KeyMapping, ...]:
    downs: list[KeyMapping] = []
    ups: list[KeyMapping] = []
    path = "model.model"
    for level in range(levels):
        outermost, innermost = level == 0, level == levels - 1
        down, up = f"down{level}", f"up{level}"
        if outermost:
            downs.append(KeyMapping(down, f"{path}.0"))
            ups.append(KeyMapping(up, f"{path}.3"))
            path = f"{path}.1.model"
        elif innermost:
            downs.append(KeyMapping(down, f"{path}.1"))
            ups.append(KeyMapping(up, f"{path}.3", f"{up}.norm", f"{path}.4"))
        else:
            downs.append(KeyMapping(down, f"{path}.1", f"{down}.norm", f"{path}.2"))
            ups.append(KeyMapping(up, f"{path}.5", f"{up}.norm", f"{path}.6"))
            path = f"{path}.3.model"
    return (*downs, *reversed(ups))
