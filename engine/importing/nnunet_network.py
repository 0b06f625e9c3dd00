"""The networks of nnU-Net v2, PlainConvUNet and ResidualEncoderUNet, by the arguments in its plans.

Layers are those of dynamic_network_architectures 0.4; names are those of its state_dict. Of several
folds the last convolutions are averaged, as nnU-Net averages their outputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError, quoted
from ..network.ensemble import mean_network
from ..network.graph import INPUT, Graph, Network, Node
from ..network.layers import (
    Add,
    Concat,
    Conv3d,
    ConvTranspose3d,
    FloatArray,
    InstanceNorm,
    Layer,
    LeakyRelu,
    Pool,
    Relu,
    Triple,
    triple,
)
from .torch_files import StoredTensor

PLAIN, RESIDUAL = "PlainConvUNet", "ResidualEncoderUNet"

Counts = int | tuple[int, ...]


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


@dataclass(slots=True)
class _Writer:
    """Nodes of a network as they are added."""

    arguments: NetworkArguments
    nodes: list[Node] = field(default_factory=list[Node])

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        self.nodes.append(Node(name, layer, inputs))
        return name

    def block(
        self,
        name: str,
        source: str,
        channels: tuple[int, int],
        kernel: Triple,
        stride: Triple = (1, 1, 1),
        *,
        bias: bool | None = None,
        activates: bool = True,
    ) -> str:
        """Add a ConvDropoutNormReLU."""
        has_bias = self.arguments.conv_bias if bias is None else bias
        here, norm = f"{name}.conv", f"{name}.norm"
        output = self.add(
            here,
            Conv3d(
                *channels,
                kernel,
                f"{here}.weight",
                f"{here}.bias" if has_bias else None,
                stride,
                triple((edge - 1) // 2 for edge in kernel),
            ),
            source,
        )
        settings = self.arguments.norm_op_kwargs or {}
        scale, shift = (
            (f"{norm}.weight", f"{norm}.bias") if settings.get("affine") else (None, None)
        )
        epsilon = float(settings.get("eps", 1e-5))
        output = self.add(norm, InstanceNorm(channels[1], scale, shift, epsilon), output)
        return self.activated(f"{name}.nonlin", output) if activates else output

    def activated(self, name: str, source: str) -> str:
        if _last(self.arguments.nonlin) == "ReLU":
            return self.add(name, Relu(), source)
        slope = float((self.arguments.nonlin_kwargs or {}).get("negative_slope", 0.01))
        return self.add(name, LeakyRelu(slope), source)

    def residual(
        self, name: str, source: str, channels: tuple[int, int], kernel: Triple, stride: Triple
    ) -> str:
        """Add a BasicBlockD."""
        output = self.block(f"{name}.conv1", source, channels, kernel, stride)
        within = channels[1], channels[1]
        output = self.block(f"{name}.conv2", output, within, kernel, activates=False)
        at = 0
        if stride != (1, 1, 1):
            source = self.add(f"{name}.skip.0", Pool("mean", stride, stride), source)
            at = 1
        if channels[0] != channels[1]:
            source = self.block(
                f"{name}.skip.{at}", source, channels, (1, 1, 1), bias=False, activates=False
            )
        return self.activated(f"{name}.nonlin2", self.add(f"{name}.sum", Add(), output, source))

    def encoder(self, kind: str, channels: int) -> list[str]:
        """Add the encoder; return the output of each stage."""
        arguments, output, skips = self.arguments, INPUT, list[str]()
        if kind == RESIDUAL:
            stem = arguments.stem_channels or arguments.features_per_stage[0]
            output = self.block(
                "encoder.stem.convs.0", output, (channels, stem), arguments.kernel_sizes[0]
            )
            channels = stem
        counts = _each(_blocks(arguments), arguments.n_stages)
        for stage, features in enumerate(arguments.features_per_stage):
            for number in range(counts[stage]):
                stride = arguments.strides[stage] if number == 0 else (1, 1, 1)
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

    def decoder(self, skips: Sequence[str], heads: int) -> str:
        """Add the decoder and the last convolution; return its output."""
        arguments, output = self.arguments, skips[-1]
        counts = _each(arguments.n_conv_per_stage_decoder, arguments.n_stages - 1)
        for step, count in enumerate(counts):
            level = arguments.n_stages - 2 - step
            below, features = (
                arguments.features_per_stage[level + 1],
                arguments.features_per_stage[level],
            )
            stride, name = arguments.strides[level + 1], f"decoder.transpconvs.{step}"
            output = self.add(
                name,
                ConvTranspose3d(
                    below,
                    features,
                    stride,
                    f"{name}.weight",
                    f"{name}.bias" if arguments.conv_bias else None,
                    stride,
                ),
                output,
            )
            output = self.add(f"decoder.concat.{step}", Concat(), output, skips[level])
            for number in range(count):
                sizes = (features if number else 2 * features), features
                name = f"decoder.stages.{step}.convs.{number}"
                output = self.block(name, output, sizes, arguments.kernel_sizes[level])
        last = f"decoder.seg_layers.{arguments.n_stages - 2}"
        conv = Conv3d(
            arguments.features_per_stage[0],
            heads,
            (1, 1, 1),
            f"{last}.weight",
            f"{last}.bias",
        )
        return self.add(last, conv, output)


def nnunet_network(
    kind: str, arguments: NetworkArguments, folds: Sequence[Mapping[str, StoredTensor]]
) -> Network:
    """Return the network of plans and one or more folds, whose outputs are averaged.

    Raises CheckpointError if a tensor is missing, has another shape or is of no known layer.
    """
    check_arguments(kind, arguments)
    return mean_network([_fold_network(kind, arguments, fold) for fold in folds], "fold")


def _fold_network(
    kind: str, arguments: NetworkArguments, tensors: Mapping[str, StoredTensor]
) -> Network:
    first = _tensor(tensors, _first_weight(kind))
    heads = _tensor(tensors, f"decoder.seg_layers.{arguments.n_stages - 2}.weight").shape[0]
    writer = _Writer(arguments)
    writer.decoder(writer.encoder(kind, first.shape[1]), heads)
    graph, weights = Graph(first.shape[1], tuple(writer.nodes)), dict[str, FloatArray]()
    for name, shape in graph.weight_shapes():
        found = _tensor(tensors, name)
        if found.shape != shape:
            raise CheckpointError(
                f"{quoted(name)} has the shape {found.shape}, and plans.json describes "
                f"{shape}; plans and checkpoint are of different trainings."
            )
        weights[name] = found.read(name)
    for name in _strange(tensors, set(weights)):
        raise CheckpointError(
            f"The checkpoint has {quoted(name)}, which no {kind} has; the trainer changed the "
            "network, so export it as ONNX and import that."
        )
    return Network(graph, weights)


def _first_weight(kind: str) -> str:
    inner = "stem" if kind == RESIDUAL else "stages.0.0"
    return f"encoder.{inner}.convs.0.conv.weight"


def _tensor(tensors: Mapping[str, StoredTensor], name: str) -> StoredTensor:
    found = tensors.get(name)
    if found is None or not found.shape or (name.endswith("conv.weight") and len(found.shape) != 5):
        raise CheckpointError(
            f"The checkpoint has no {quoted(name)} of a 3D network, which plans.json describes; "
            "plans and checkpoint are of different trainings."
        )
    return found


def _strange(tensors: Mapping[str, StoredTensor], known: set[str]) -> Iterator[str]:
    """Yield names that are neither of a layer nor of its repetitions in the state_dict."""
    for name in tensors:
        is_repeated = ".all_modules." in name or name.startswith("decoder.encoder.")
        if name not in known and not is_repeated and not name.startswith("decoder.seg_layers."):
            yield name
