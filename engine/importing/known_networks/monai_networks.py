"""MONAI's networks as ONNX operators, a definition each.

Written from monai.networks.nets of MONAI 1.6.1. A definition with an argument that is not read here
is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ...decoding import Json
from ...errors import CheckpointError, quoted
from .network_writer import INPUT, LayerKind, NetworkWriter

_UNSTRIDED = (1, 1, 1)
_IMMATERIAL = frozenset(
    (
        *("spatial_dims", "in_channels", "out_channels", "channels", "features", "filters"),
        *("init_filters", "kernel_size", "up_kernel_size", "bias", "trans_bias"),
        *("dropout", "dropout_prob", "deep_supervision", "deep_supr_num"),
    )
)
"""Arguments that matter in training alone, or that follow from the weights."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a network definition.

    values: by name. Those that nothing read are refused by `check_read`.
    """

    values: Mapping[str, Json]
    _read: set[str] = field(default_factory=set[str])

    def get(self, name: str, usual: Json = None) -> Json:
        """Return an argument."""
        self._read.add(name)
        return self.values.get(name, usual)

    def kind(self, name: str, usual: Json) -> LayerKind | None:
        """Return an argument that is a norm or an activation."""
        return LayerKind.of(self.get(name, usual), name)

    def integer(self, name: str, usual: int) -> int:
        """Return an argument that is a whole number."""
        value = self.get(name, usual)
        if isinstance(value, bool) or not isinstance(value, int):
            raise CheckpointError(f"The definition's {quoted(name)} is not a whole number.")
        return value

    def items(self, name: str, *usual: Json) -> list[Json]:
        """Return an argument that is a list."""
        value = self.get(name, usual)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise CheckpointError(f"The definition's {quoted(name)} is not a list.")
        return list(value)

    def triples(self, name: str) -> list[tuple[int, ...]]:
        """Return an argument that is a list of numbers or of three numbers each."""
        return [_triple(name, item) for item in self.items(name)]

    def check_read(self) -> None:
        """Raise CheckpointError for arguments that may change what is computed."""
        if unread := self.values.keys() - self._read - _IMMATERIAL:
            raise CheckpointError(
                f"The definition's argument {quoted(min(unread))} is not supported."
            )


def _triple(name: str, item: Json) -> tuple[int, ...]:
    numbers = item if isinstance(item, Sequence) and not isinstance(item, str) else (item,) * 3
    found = tuple(one for one in numbers if isinstance(one, int) and not isinstance(one, bool))
    if len(found) != 3 or len(numbers) != 3 or min(found) < 1:
        raise CheckpointError(f"The definition's {quoted(name)} has other than three numbers.")
    return found


Definition: TypeAlias = Callable[[NetworkWriter, Arguments], str]
"""Function that writes a network for the input; returns the name of its output."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """MONAI's Convolution and ResidualUnit with the norm and activation of one network.

    writer: receives the operators. norm, act: layers after each convolution; None for none. order:
    of norm (N), dropout (D) and activation (A).
    """

    writer: NetworkWriter
    norm: LayerKind | None
    act: LayerKind | None
    order: str = "NDA"

    def finished(self, name: str, source: str) -> str:
        """Write what follows a convolution."""
        for part in self.order.upper():
            if part == "N":
                source = self.writer.norm(f"{name}.adn.N", source, self.norm)
            elif part == "A":
                source = self.writer.activation(f"{name}.adn.A", source, self.act)
        return source

    def convolution(
        self, name: str, source: str, *, stride: Sequence[int] = _UNSTRIDED, alone: bool = False
    ) -> str:
        """Write a convolution and what follows it, unless it stands alone."""
        output = self.writer.convolution(f"{name}.conv", source, stride=stride)
        return output if alone else self.finished(name, output)

    def transposed(self, name: str, source: str, stride: Sequence[int], *, alone: bool) -> str:
        """Write a transposed convolution and what follows it, unless it stands alone."""
        output = self.writer.transposed(
            f"{name}.conv",
            source,
            stride=stride,
            padding=self.writer.same(f"{name}.conv"),
            output_padding=[step - 1 for step in stride],
        )
        return output if alone else self.finished(name, output)

    def residual(
        self,
        name: str,
        source: str,
        units: int,
        *,
        stride: Sequence[int] = _UNSTRIDED,
        last_alone: bool = False,
    ) -> str:
        """Write a unit of several convolutions and what is added to them."""
        output = source
        for at in range(units):
            output = self.convolution(
                f"{name}.conv.unit{at}",
                output,
                stride=_UNSTRIDED if at else stride,
                alone=last_alone and at == units - 1,
            )
        skip = source
        if self.writer.has(f"{name}.residual.weight"):
            skip = self.writer.convolution(f"{name}.residual", source, stride=stride)
        return self.writer.add("Add", name, output, skip)


def _unet(writer: NetworkWriter, arguments: Arguments) -> str:
    units = max(0, arguments.integer("num_res_units", 0))
    order = arguments.get("adn_ordering", "NDA")
    if not isinstance(order, str):
        raise CheckpointError("The definition's 'adn_ordering' is not text.")
    blocks = Blocks(
        writer, arguments.kind("norm", "INSTANCE"), arguments.kind("act", "PRELU"), order
    )
    levels = len(arguments.items("channels")) - 1
    strides = arguments.triples("strides")[:levels]
    if levels < 1 or len(strides) != levels:
        raise CheckpointError("The definition's 'strides' do not fit its 'channels'.")

    def down(name: str, source: str, stride: Sequence[int]) -> str:
        if units > 0:
            return blocks.residual(name, source, units, stride=stride)
        return blocks.convolution(name, source, stride=stride)

    def level(name: str, source: str, at: int) -> str:
        if at == levels:
            return down(name, source, _UNSTRIDED)
        inner = down(f"{name}.0", source, strides[at])
        below = level(f"{name}.1.submodule", inner, at + 1)
        joined = writer.together(name, inner, below)
        is_top = at == 0
        if units > 0:
            grown = blocks.transposed(f"{name}.2.0", joined, strides[at], alone=False)
            return blocks.residual(f"{name}.2.1", grown, 1, last_alone=is_top)
        return blocks.transposed(f"{name}.2", joined, strides[at], alone=is_top)

    return level("model", INPUT, 0)


def _auto_encoder(writer: NetworkWriter, arguments: Arguments) -> str:
    units = max(0, arguments.integer("num_res_units", 0))
    blocks = Blocks(writer, arguments.kind("norm", "INSTANCE"), arguments.kind("act", "PRELU"))
    if arguments.get("inter_channels") or arguments.get("padding"):
        raise CheckpointError("An AutoEncoder with 'inter_channels' or 'padding' is not supported.")
    for name in ("inter_dilations", "num_inter_units"):
        arguments.get(name)
    strides = arguments.triples("strides")
    output = INPUT
    for at, stride in enumerate(strides):
        name = f"encode.encode_{at}"
        output = (
            blocks.residual(name, output, units, stride=stride)
            if units > 0
            else blocks.convolution(name, output, stride=stride)
        )
    for at, stride in enumerate(strides[::-1]):
        name, is_last = f"decode.decode_{at}", at == len(strides) - 1
        output = blocks.transposed(f"{name}.conv", output, stride, alone=is_last and not units)
        if units > 0:
            output = blocks.residual(f"{name}.resunit", output, 1, last_alone=is_last)
    return output


def _basic_unet(writer: NetworkWriter, arguments: Arguments) -> str:
    norm = arguments.kind("norm", ["instance", {"affine": True}])
    act = arguments.kind("act", ["LeakyReLU", {"negative_slope": 0.1}])
    blocks = Blocks(writer, norm, act)
    if arguments.get("upsample", "deconv") != "deconv":
        raise CheckpointError("A BasicUNet is supported with the upsample mode deconv alone.")

    def twice(name: str, source: str) -> str:
        return blocks.convolution(f"{name}.conv_1", blocks.convolution(f"{name}.conv_0", source))

    two: tuple[int, ...] = (2, 2, 2)
    skips = [twice("conv_0", INPUT)]
    for at in range(1, 5):
        small = writer.add("MaxPool", f"down_{at}", skips[-1], kernel_shape=two, strides=two)
        skips.append(twice(f"down_{at}.convs", small))
    output = skips.pop()
    for at in range(4, 0, -1):
        name = f"upcat_{at}"
        grown = writer.transposed(f"{name}.upsample.deconv", output, stride=two)
        output = twice(f"{name}.convs", writer.together(name, skips.pop(), grown))
    return writer.convolution("final_conv", output)


def _seg_res_net(writer: NetworkWriter, arguments: Arguments) -> str:
    groups = arguments.integer("num_groups", 8)
    norm = arguments.kind("norm", ["GROUP", {"num_groups": 8}])
    if name := arguments.get("norm_name", ""):
        norm = LayerKind.of([str(name), {"num_groups": groups}], "norm_name")
    act = arguments.kind("act", "RELU")
    if arguments.get("upsample_mode", "nontrainable") != "nontrainable":
        raise CheckpointError("A SegResNet is supported with the upsample mode nontrainable alone.")
    downs, ups = arguments.items("blocks_down", 1, 2, 2, 4), arguments.items("blocks_up", 1, 1, 1)
    if not 1 <= len(ups) < len(downs):
        raise CheckpointError("The definition's 'blocks_up' do not fit its 'blocks_down'.")

    def block(name: str, source: str) -> str:
        output = source
        for half in (1, 2):
            output = writer.norm(f"{name}.norm{half}", output, norm)
            output = writer.activation(f"{name}.act", output, act)
            output = writer.convolution(f"{name}.conv{half}.conv", output)
        return writer.add("Add", name, output, source)

    def several(name: str, source: str, count: Json, first: int) -> str:
        for at in range(count if isinstance(count, int) else 0):
            source = block(f"{name}.{first + at}", source)
        return source

    output = writer.convolution("convInit.conv", INPUT)
    skips: list[str] = []
    for at, count in enumerate(downs):
        if at:
            output = writer.convolution(f"down_layers.{at}.0.conv", output, stride=(2, 2, 2))
        output = several(f"down_layers.{at}", output, count, 1)
        skips.append(output)
    skips.pop()
    doubling = writer.constant("factors", np.array([2, 2, 2], np.float32))
    for at, count in enumerate(ups):
        thin = writer.convolution(f"up_samples.{at}.0.conv", output)
        grown = writer.add(
            *("Resize", f"up_samples.{at}.1", thin, "", doubling), mode="linear", axes=(2, 3, 4)
        )
        output = several(f"up_layers.{at}", writer.add("Add", "skip", grown, skips.pop()), count, 0)
    if arguments.get("use_conv_final", True) is not True:
        return output
    output = writer.norm("conv_final.0", output, norm)
    return writer.convolution("conv_final.2.conv", writer.activation("conv_final.1", output, act))


def _dyn_unet(writer: NetworkWriter, arguments: Arguments) -> str:
    norm = arguments.kind("norm_name", ["INSTANCE", {"affine": True}])
    act = arguments.kind("act_name", ["leakyrelu", {"negative_slope": 0.01}])
    is_residual = arguments.get("res_block", False) is True
    strides, growths = arguments.triples("strides"), arguments.triples("upsample_kernel_size")
    if len(strides) < 2 or len(growths) != len(strides) - 1:
        raise CheckpointError("The definition's 'upsample_kernel_size' do not fit its 'strides'.")

    def convolution(name: str, source: str, stride: Sequence[int]) -> str:
        kernel = writer.kernel(f"{name}.conv")
        padding = [(taps - step + 1) // 2 for taps, step in zip(kernel, stride, strict=True)]
        return writer.convolution(f"{name}.conv", source, stride=stride, padding=padding)

    def normed(name: str, at: int, source: str, stride: Sequence[int]) -> str:
        output = convolution(f"{name}.conv{at}", source, stride)
        return writer.norm(f"{name}.norm{at}", output, norm)

    def block(name: str, source: str, stride: Sequence[int], *, adds: bool) -> str:
        output = writer.activation(f"{name}.lrelu", normed(name, 1, source, stride), act)
        output = normed(name, 2, output, _UNSTRIDED)
        if adds:
            is_changed = writer.has(f"{name}.conv3.conv.weight")
            skip = normed(name, 3, source, stride) if is_changed else source
            output = writer.add("Add", name, output, skip)
        return writer.activation(f"{name}.lrelu", output, act)

    last = len(strides) - 1
    names = ["input_block", *(f"downsamples.{at}" for at in range(last - 1)), "bottleneck"]
    output, skips = INPUT, list[str]()
    for name, stride in zip(names, strides, strict=True):
        output = block(name, output, stride, adds=is_residual)
        skips.append(output)
    skips.pop()
    for at, growth in enumerate(growths[::-1]):
        grown = writer.transposed(f"upsamples.{at}.transp_conv.conv", output, stride=growth)
        joined = writer.together(f"upsamples.{at}", grown, skips.pop())
        output = block(f"upsamples.{at}.conv_block", joined, _UNSTRIDED, adds=False)
    return convolution("output_block.conv", output, _UNSTRIDED)


def _attention_unet(writer: NetworkWriter, arguments: Arguments) -> str:
    batch, relu = LayerKind("batch", {}), LayerKind("relu", {})
    plain = Blocks(writer, batch, relu)
    usual = Blocks(writer, LayerKind("instance", {}), LayerKind("prelu", {}))
    strides = arguments.triples("strides")
    levels = len(arguments.items("channels")) - 1
    if not 1 <= levels <= len(strides):
        raise CheckpointError("The definition's 'strides' do not fit its 'channels'.")

    def twice(name: str, source: str, stride: Sequence[int]) -> str:
        half = plain.convolution(f"{name}.conv.0", source, stride=stride)
        return plain.convolution(f"{name}.conv.1", half)

    def weighed(name: str, source: str) -> str:
        output = writer.convolution(f"{name}.0.conv", source)
        return writer.norm(f"{name}.1", output, batch)

    def level(name: str, source: str, at: int) -> str:
        inner = f"{name}.submodule"
        if at == levels - 1:
            below = twice(inner, source, strides[at])
        else:
            below = level(f"{inner}.1", twice(f"{inner}.0", source, strides[at]), at + 1)
        lower = plain.transposed(f"{name}.upconv.up", below, strides[at], alone=False)
        gate = writer.add(
            *("Add", name),
            *(weighed(f"{name}.attention.W_g", lower), weighed(f"{name}.attention.W_x", source)),
        )
        gate = weighed(f"{name}.attention.psi", writer.add("Relu", name, gate))
        gated = writer.add("Mul", name, source, writer.add("Sigmoid", name, gate))
        return usual.convolution(f"{name}.merge", writer.together(name, gated, lower))

    output = level("model.1", twice("model.0", INPUT, _UNSTRIDED), 0)
    return writer.convolution("model.2.conv", output)


DEFINITIONS: Mapping[str, Definition] = {
    "UNet": _unet,
    "AutoEncoder": _auto_encoder,
    "BasicUNet": _basic_unet,
    "SegResNet": _seg_res_net,
    "DynUNet": _dyn_unet,
    "AttentionUnet": _attention_unet,
}
"""Networks by the name of their class."""
