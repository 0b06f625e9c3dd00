"""The networks of nnU-Net v2, PlainConvUNet and ResidualEncoderUNet, by the arguments in its plans.

Layers are those of dynamic_network_architectures 0.4; names are those of its state_dict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CheckpointError, quoted
from ...network.layers import Triple
from .network_writer import INPUT, LayerKind, NetworkWriter

PLAIN, RESIDUAL = "PlainConvUNet", "ResidualEncoderUNet"

Counts = int | tuple[int, ...]
_UNSTRIDED: Triple = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class NetworkArguments:
    """Arguments of a network (`arch_kwargs`), as plans.json states them.

    n_stages: levels of the encoder. features_per_stage, kernel_sizes, strides: of each.
    n_conv_per_stage, n_blocks_per_stage: convolutions or residual blocks of each; the other is
    None. n_conv_per_stage_decoder: of each level of the decoder. conv_op, norm_op, dropout_op,
    nonlin, block: classes of layers. norm_op_kwargs, nonlin_kwargs: arguments of these. conv_bias:
    whether convolutions have one. nonlin_first: whether it comes before the norm. pool, pool_type:
    how maps shrink. stem_channels: of the first convolution; None takes features_per_stage.
    squeeze_excitation: whether blocks have it.
    """

    n_stages: int
    features_per_stage: tuple[int, ...]
    kernel_sizes: tuple[Triple, ...]
    strides: tuple[Triple, ...]
    n_conv_per_stage_decoder: Counts
    conv_op: str
    n_conv_per_stage: Counts | None = None
    n_blocks_per_stage: Counts | None = None
    conv_bias: bool = False
    norm_op: str | None = None
    norm_op_kwargs: dict[str, Any] | None = None
    dropout_op: str | None = None
    nonlin: str | None = None
    nonlin_kwargs: dict[str, Any] | None = None
    nonlin_first: bool = False
    pool: str = "conv"
    pool_type: str = "conv"
    block: str | None = None
    stem_channels: int | None = None
    squeeze_excitation: bool = False


_MOST_STAGES, _MOST_BLOCKS, _MOST_CHANNELS = 12, 64, 1 << 14


def check_arguments(kind: str, arguments: NetworkArguments) -> None:
    """Raise CheckpointError for a network that is not one of the two, or goes beyond all bounds."""
    for is_wrong, what in (
        (
            not arguments.conv_op.endswith(".Conv3d"),
            f"convolves by {arguments.conv_op}, not Conv3d",
        ),
        (
            not (arguments.norm_op or "").endswith(".InstanceNorm3d"),
            f"normalises by {arguments.norm_op}",
        ),
        (
            _last(arguments.nonlin) not in ("LeakyReLU", "ReLU"),
            f"has the activation {arguments.nonlin}",
        ),
        (arguments.dropout_op is not None, "has dropout"),
        (arguments.nonlin_first, "activates before it normalises"),
        (arguments.pool != "conv" or arguments.pool_type != "conv", "shrinks by pooling"),
        (arguments.squeeze_excitation, "has squeeze and excitation, which sees the whole patch"),
        (
            _last(arguments.block) not in ("", "BasicBlockD"),
            f"has blocks of the kind {arguments.block}",
        ),
        (not 2 <= arguments.n_stages <= _MOST_STAGES, f"has {arguments.n_stages} stages"),
        (
            (arguments.n_blocks_per_stage is None) == (kind == RESIDUAL),
            "has other arguments than it",
        ),
    ):
        if is_wrong:
            raise CheckpointError(
                f"plans.json describes a {kind} that {what}; export the network as ONNX and import "
                "that."
            )
    for values, count in (
        (arguments.features_per_stage, arguments.n_stages),
        (arguments.kernel_sizes, arguments.n_stages),
        (arguments.strides, arguments.n_stages),
        (_each(_blocks(arguments), arguments.n_stages), arguments.n_stages),
        (_each(arguments.n_conv_per_stage_decoder, arguments.n_stages - 1), arguments.n_stages - 1),
    ):
        if len(values) != count:
            raise CheckpointError("plans.json describes a network with lists of unequal lengths.")
    numbers = [*arguments.features_per_stage, arguments.stem_channels or 1]
    repeats = [*_each(_blocks(arguments), 1), *_each(arguments.n_conv_per_stage_decoder, 1)]
    edges = [edge for each in (*arguments.kernel_sizes, *arguments.strides) for edge in each]
    if not (
        all(1 <= number <= _MOST_CHANNELS for number in numbers)
        and all(1 <= number <= _MOST_BLOCKS for number in repeats)
        and all(1 <= edge <= _MOST_BLOCKS for edge in edges)
        and all(edge % 2 for kernel in arguments.kernel_sizes for edge in kernel)
    ):
        raise CheckpointError("plans.json describes a network with sizes that make no sense.")


def _last(name: str | None) -> str:
    return (name or "").rpartition(".")[-1]


def _each(counts: Counts, length: int) -> tuple[int, ...]:
    return (counts,) * length if isinstance(counts, int) else counts


def _blocks(arguments: NetworkArguments) -> Counts:
    blocks = arguments.n_blocks_per_stage
    return blocks if blocks is not None else arguments.n_conv_per_stage or 0


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The layers of one network.

    writer: receives the operators. arguments: of the network.
    """

    writer: NetworkWriter
    arguments: NetworkArguments

    def check(self, name: str, shape: tuple[int, ...] | None) -> None:
        """Raise CheckpointError unless a tensor has a shape; None: unless it is absent."""
        found = self.writer.shape(name) if self.writer.has(name) else None
        if found != shape:
            raise CheckpointError(
                f"The checkpoint has {quoted(name)} {_of(found)}, and plans.json describes it "
                f"{_of(shape)}; plans and checkpoint are of different trainings."
            )

    def check_layer(self, name: str, shape: tuple[int, ...], bias: int | None) -> None:
        """Raise CheckpointError unless a layer's tensors are those that plans.json describes.

        shape: of the weight. bias: numbers of the bias; None for no bias.
        """
        self.check(f"{name}.weight", shape)
        self.check(f"{name}.bias", None if bias is None else (bias,))

    def block(
        self,
        name: str,
        source: str,
        channels: tuple[int, int],
        kernel: Triple,
        stride: Triple = _UNSTRIDED,
        *,
        is_skip: bool = False,
        activates: bool = True,
    ) -> str:
        """Write a ConvDropoutNormReLU."""
        settings = self.arguments.norm_op_kwargs or {}
        conv, norm, features = f"{name}.conv", f"{name}.norm", channels[1]
        has_bias = self.arguments.conv_bias and not is_skip
        self.check_layer(conv, (features, channels[0], *kernel), features if has_bias else None)
        for part in ("weight", "bias"):
            self.check(f"{norm}.{part}", (features,) if settings.get("affine") else None)
        output = self.writer.convolution(conv, source, stride=stride)
        output = self.writer.norm(norm, output, LayerKind("instance", settings))
        return self.activated(f"{name}.nonlin", output) if activates else output

    def activated(self, name: str, source: str) -> str:
        """Write the network's activation."""
        kind = LayerKind(_last(self.arguments.nonlin).lower(), self.arguments.nonlin_kwargs or {})
        return self.writer.activation(name, source, kind)

    def residual(
        self, name: str, source: str, channels: tuple[int, int], kernel: Triple, stride: Triple
    ) -> str:
        """Write a BasicBlockD."""
        output = self.block(f"{name}.conv1", source, channels, kernel, stride)
        within = channels[1], channels[1]
        output = self.block(f"{name}.conv2", output, within, kernel, activates=False)
        at = 0
        if stride != _UNSTRIDED:
            pool = f"{name}.skip.0"
            source = self.writer.add(
                "AveragePool", pool, source, kernel_shape=stride, strides=stride
            )
            at = 1
        if channels[0] != channels[1]:
            skip = f"{name}.skip.{at}"
            source = self.block(skip, source, channels, (1, 1, 1), is_skip=True, activates=False)
        total = self.writer.add("Add", f"{name}.sum", output, source)
        return self.activated(f"{name}.nonlin2", total)

    def encoder(self, kind: str, channels: int) -> list[str]:
        """Write the encoder; return the output of each stage."""
        arguments, output, skips = self.arguments, INPUT, list[str]()
        if kind == RESIDUAL:
            stem = arguments.stem_channels or arguments.features_per_stage[0]
            sizes = channels, stem
            output = self.block("encoder.stem.convs.0", output, sizes, arguments.kernel_sizes[0])
            channels = stem
        counts = _each(_blocks(arguments), arguments.n_stages)
        for stage, features in enumerate(arguments.features_per_stage):
            for number in range(counts[stage]):
                stride = _UNSTRIDED if number else arguments.strides[stage]
                sizes, kernel = (channels, features), arguments.kernel_sizes[stage]
                if kind == RESIDUAL:
                    name = f"encoder.stages.{stage}.blocks.{number}"
                    output = self.residual(name, output, sizes, kernel, stride)
                else:
                    name = f"encoder.stages.{stage}.0.convs.{number}"
                    output = self.block(name, output, sizes, kernel, stride)
                channels = features
            skips.append(output)
        return skips

    def decoder(self, skips: Sequence[str]) -> str:
        """Write the decoder and the last convolution; return its output."""
        arguments, output = self.arguments, skips[-1]
        counts = _each(arguments.n_conv_per_stage_decoder, arguments.n_stages - 1)
        for step, count in enumerate(counts):
            level = arguments.n_stages - 2 - step
            features, below = arguments.features_per_stage[level : level + 2]
            stride, name = arguments.strides[level + 1], f"decoder.transpconvs.{step}"
            bias = features if arguments.conv_bias else None
            self.check_layer(name, (below, features, *stride), bias)
            output = self.writer.transposed(name, output, stride=stride)
            output = self.writer.together(f"decoder.concat.{step}", output, skips[level])
            for number in range(count):
                sizes = (features if number else 2 * features), features
                name = f"decoder.stages.{step}.convs.{number}"
                output = self.block(name, output, sizes, arguments.kernel_sizes[level])
        last = last_layer(arguments)
        heads, _ = self.writer.channels(last)
        self.check_layer(last, (heads, arguments.features_per_stage[0], 1, 1, 1), heads)
        return self.writer.convolution(last, output)


def _of(shape: tuple[int, ...] | None) -> str:
    return "as absent" if shape is None else f"of the shape {shape}"


def last_layer(arguments: NetworkArguments) -> str:
    """Return the name of the last convolution; those of other levels are for training alone."""
    return f"decoder.seg_layers.{arguments.n_stages - 2}"


def write_network(writer: NetworkWriter, kind: str, arguments: NetworkArguments) -> tuple[int, str]:
    """Write the network of plans; return its input channels and the name of its output.

    arguments: those that `check_arguments` accepts. Raises CheckpointError if a tensor is missing,
    or not as they describe it.
    """
    inner = "stem" if kind == RESIDUAL else "stages.0.0"
    channels = writer.channels(f"encoder.{inner}.convs.0.conv")[1]
    blocks = _Blocks(writer, arguments)
    return channels, blocks.decoder(blocks.encoder(kind, channels))
