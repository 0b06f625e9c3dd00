"""A generator whose layers were found: what its weights tell, apart from what they do not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ...errors import CheckpointError
from ...network.architectures import Blur, Norm, ResNetSpec, Spec, UNetSpec, build, out_of_bounds
from ...network.graph import Graph, Network, times
from ...network.layers import FloatArray
from .evidence import BY_ONNX
from .layers import AFFINE, TRACKED, KeyMapping, NetworkTensors, convolution_weights
from .reading import (
    RESIDUALS,
    UPSAMPLINGS,
    Reading,
    norm_kind,
    pad_mode,
    rectifier,
    stride_of,
)

PLAIN_EPSILON = 1e-5
"""PyTorch's default; no checkpoint stores it."""

_MOST_GROUPS = 32

NUMBERED_RESNET = "numbered ResNet (model.N)"
NUMBERED_RESNET_OF_BLOCKS = "numbered ResNet (model.N.block)"
NAMED_RESNET = "named ResNet (initial, down_blocks, res_blocks, up_blocks, last)"
NESTED_U_NET = "nested U-Net (model.model.1.model)"
"""Layouts, by how tensors are named; blocks of a numbered ResNet are mostly called conv_block."""


@dataclass(frozen=True, slots=True)
class ResNetShape:
    """What names and shapes tell about a ResNet.

    in_channels, out_channels: of the network. width: channels of the first convolution. blocks,
    downsamplings: how many. first_kernel, last_kernel: edges of the outer kernels. norm_bias,
    up_bias, last_bias: whether convolutions before a norm, those that enlarge, and the last one
    have a bias. is_named: whether its layers have names, and no numbers.
    pads, block_pads, up_pads: whether layers of their own pad around the outer convolutions, those
    of the blocks, and those behind sampling. sampled: whether sampling layers enlarge. has_norms:
    whether there is room for normalisations. drops_in_blocks, drops_outside: whether there is room
    for dropout. blur_taps: of anti-aliasing filters, or 0. blurs_up: whether such filters enlarge,
    which is trilinear sampling.
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
        """Whether there is room for dropout anywhere."""
        return self.drops_in_blocks or self.drops_outside

    @property
    def usual(self) -> Reading:
        """How code of this family computes with such weights, most often."""
        padding = "reflect" if self.pads or self.is_named else "zero"
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
    """What names and shapes tell about a U-Net.

    in_channels, out_channels: of the network. width: channels of the outermost level. levels: how
    many. inner_bias: whether convolutions inside the outermost level have a bias. stride: by which
    each level shrinks D, H and W, as its kernels say.
    """

    in_channels: int
    out_channels: int
    width: int
    levels: int
    inner_bias: bool
    stride: str

    @property
    def usual(self) -> Reading:
        """How code of this family computes with such weights, most often."""
        return Reading(padding="zero", activation="leaky:0.2", stride=self.stride)


Shape: TypeAlias = ResNetShape | UNetShape


@dataclass(frozen=True, slots=True)
class Match:
    """A layout with the generator's tensors in it.

    layout: the key naming, in words. slots: its convolutions in running order. modules: their
    tensors. shape: what these tell.
    """

    layout: str
    slots: tuple[KeyMapping, ...]
    modules: NetworkTensors = field(repr=False)
    shape: Shape

    @property
    def norm_parameters(self) -> frozenset[str]:
        """Tensors of each normalisation."""
        return self.modules.norm_parameters

    @property
    def is_tracked(self) -> bool:
        """Whether statistics of the training are stored."""
        return self.norm_parameters >= TRACKED

    @property
    def has_affine_norms(self) -> bool:
        """Whether each normalisation has a scale and a shift."""
        return self.norm_parameters >= AFFINE

    def check_shapes(self) -> None:
        """Raise CheckpointError unless every convolution's weights are those of such a network."""
        family = "ResNet" if isinstance(self.shape, ResNetShape) else "U-Net"
        expected = dict(build(self.spec(self.shape.usual)).weight_shapes())
        for slot in self.slots:
            found = self.modules.convolutions[slot.convolution].shape
            wanted = expected[f"{slot.name}.weight"]
            if found != wanted:
                raise CheckpointError(
                    f"Layer {slot.convolution} has weights of {times(found)} where a {family} "
                    f"generator has {times(wanted)}; {BY_ONNX}."
                )

    def norms(self) -> tuple[str, ...]:
        """All norms that may hold such tensors, the usual one first."""
        shape = self.shape
        if isinstance(shape, ResNetShape) and not shape.has_norms:
            return ("none",)
        groups = tuple(
            f"group:{groups}"
            for groups in range(min(_MOST_GROUPS, shape.width - 1), 0, -1)
            if shape.width % groups == 0
        )
        if self.is_tracked:
            return ("instance", "stored")
        return ("instance", *groups) if self.has_affine_norms else ("instance", "none", *groups)

    def spec(self, reading: Reading) -> Spec:
        """The architecture; raises CheckpointError if such a generator cannot be."""
        norm = self._norm(reading)
        shape = self.shape
        spec = (
            _resnet(shape, reading, norm)
            if isinstance(shape, ResNetShape)
            else _unet(shape, reading, norm)
        )
        for name, reason in out_of_bounds(spec):
            raise CheckpointError(f"The generator's {name.replace('_', ' ')} {reason}.")
        return spec

    def network(self, reading: Reading) -> Network:
        """Graph and weights; raises CheckpointError if they do not fit together."""
        return joined(build(self.spec(reading)), self.weights(reading))

    def weights(self, reading: Reading) -> dict[str, FloatArray]:
        """All under canonical names; those of a norm are alike unless it is a stored one."""
        norm = self._norm(reading)
        return convolution_weights(self.slots, self.modules, norm, reading.epsilon)

    def _norm(self, reading: Reading) -> Norm:
        possible = self.norms()
        if reading.norm not in possible and not (
            reading.norm.startswith("group:") and any("group" in norm for norm in possible)
        ):
            raise CheckpointError(
                f"A norm of the kind {reading.norm} would hold other tensors than the file's; "
                f"it can be {', '.join(possible)}."
            )
        return norm_kind(reading.norm, affine=self.has_affine_norms)


def joined(graph: Graph, weights: Mapping[str, FloatArray]) -> Network:
    """The network of both; raises CheckpointError if they do not fit together."""
    try:
        return Network(graph, weights)
    except ValueError as error:
        raise CheckpointError(f"The weights do not fit together: {error}.") from error


def _resnet(shape: ResNetShape, reading: Reading, norm: Norm) -> ResNetSpec:
    """The spec, in which a part that is as the whole is not said for itself."""
    padding, up_padding = pad_mode(reading.padding), pad_mode(reading.up_padding)
    block_padding = pad_mode(reading.block_padding)
    activation, block, up = map(
        rectifier, (reading.activation, reading.block_activation, reading.up_activation)
    )
    blurred = Blur(shape.blur_taps, pad_mode(reading.blur_padding))
    return ResNetSpec(
        in_channels=shape.in_channels,
        out_channels=shape.out_channels,
        width=shape.width,
        blocks=shape.blocks,
        downsamplings=shape.downsamplings,
        padding=padding,
        down_padding=pad_mode(reading.down_padding),
        norm=norm,
        upsampling=UPSAMPLINGS[reading.upsampling] if shape.sampled else "transposed",
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
        residual=RESIDUALS[reading.residual],
        norm_epsilon=reading.epsilon if norm_uses_epsilon(norm) else PLAIN_EPSILON,
        stride=stride_of(reading.stride),
        block_dilation=reading.dilation,
        blur=blurred if shape.blur_taps else None,
        adds_input=reading.adds_input,
    )


def _unet(shape: UNetShape, reading: Reading, norm: Norm) -> UNetSpec:
    return UNetSpec(
        in_channels=shape.in_channels,
        out_channels=shape.out_channels,
        width=shape.width,
        levels=shape.levels,
        norm=norm,
        skip_first=reading.concat == "skip-first",
        inner_bias=shape.inner_bias,
        end=reading.end,
        padding=pad_mode(reading.padding),
        down_activation=rectifier(reading.activation),
        up_activation=rectifier(reading.up_activation),
        norm_epsilon=reading.epsilon if norm_uses_epsilon(norm) else PLAIN_EPSILON,
        stride=stride_of(reading.stride),
        adds_input=reading.adds_input,
    )


def norm_uses_epsilon(norm: Norm) -> bool:
    """Whether it stands in the graph; stored statistics have theirs folded into the weights."""
    return norm not in ("none", "stored")
