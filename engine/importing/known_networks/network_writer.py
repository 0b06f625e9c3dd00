"""ONNX operators of a network whose layers are named after their weights.

Channels, kernels and biases follow from the weights; a definition states what these leave open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...decoding import Json
from ...errors import CheckpointError, quoted
from ...network.layers import FloatArray
from ..checkpoint_file import Checkpoint
from ..operators.operator_graph import STATED_OPSET, Array, Attribute, Operator, OperatorGraph
from ..torch_files import StoredTensor, check_amount

INPUT = "input"
"""Name of the network's input."""

_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Norm or activation of a definition, such as "PRELU" or ["GROUP", {"num_groups": 8}].

    name: in lower case. options: its arguments.
    """

    name: str
    options: Mapping[str, Json]

    @classmethod
    def of(cls, value: Json, what: str) -> "LayerKind | None":
        """Return the kind that a bundle states; None for none. what: for the error."""
        match value:
            case None | "":
                return None
            case str(name):
                return cls(name.lower(), {})
            case [str(name)]:
                return cls(name.lower(), {})
            case [str(name), dict() as options]:
                return cls(name.lower(), options)
            case _:
                raise CheckpointError(f"The network definition has a {what} that makes no sense.")

    def number(self, name: str, usual: float) -> float:
        """Return an option that is a number."""
        value = self.options.get(name, usual)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"Option {quoted(name)} of {quoted(self.name)} is not a number.")
        return value

    def check_options(self, *known: str) -> None:
        """Raise CheckpointError for options that change what the layer computes."""
        if unknown := self.options.keys() - {*known, "inplace", "init", "momentum"}:
            raise CheckpointError(
                f"Option {quoted(min(unknown))} of {quoted(self.name)} is not supported."
            )


_PLAIN_ACTIVATIONS = {
    "relu": "Relu",
    "selu": "Selu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "swish": "Swish",
    "memswish": "Swish",
    "mish": "Mish",
}


class NetworkWriter:
    """Operators so far, and the tensors that they use.

    stored: weights by name. tensors: those that operators use, and constants. operators: in order.
    """

    def __init__(self, stored: Mapping[str, FloatArray]) -> None:
        self._stored = stored
        self.tensors: dict[str, Array] = {}
        self.operators: list[Operator] = []

    @property
    def unused(self) -> list[str]:
        """Names of the tensors that no operator uses."""
        return [name for name in self._stored if name not in self.tensors]

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._stored

    def weight(self, name: str) -> str:
        """Use a tensor, which must be there; return its name."""
        if name not in self._stored:
            raise CheckpointError(
                f"The network definition needs the tensor {quoted(name)}, which the weights lack; "
                "the definition and the weights are not of the same network."
            )
        self.tensors[name] = self._stored[name]
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, which must be there."""
        return self.tensors[self.weight(name)].shape

    def constant(self, name: str, array: Array) -> str:
        """Add a constant; return its name."""
        self.tensors[f"constant {name}"] = array
        return f"constant {name}"

    def add(self, kind: str, name: str, *inputs: str, **attributes: Attribute) -> str:
        """Write an operator; return the name of its output."""
        output = f"{len(self.operators)}: {name}"
        self.operators.append(Operator(kind, name, inputs, (output,), attributes))
        return output

    def convolution(
        self,
        name: str,
        source: str,
        *,
        stride: Sequence[int] = (1, 1, 1),
        padding: Sequence[int] | None = None,
    ) -> str:
        """Write a convolution; without `padding` it keeps the extents."""
        pads = self.same(name) if padding is None else tuple(padding)
        return self.add(
            *("Conv", name, source, self.weight(f"{name}.weight"), *self._bias(name)),
            strides=tuple(stride),
            pads=pads * 2,
            dilations=(1, 1, 1),
        )

    def transposed(
        self,
        name: str,
        source: str,
        *,
        stride: Sequence[int],
        padding: Sequence[int] = (0, 0, 0),
        output_padding: Sequence[int] = (0, 0, 0),
    ) -> str:
        """Write a transposed convolution."""
        self.kernel(name)
        return self.add(
            *("ConvTranspose", name, source, self.weight(f"{name}.weight"), *self._bias(name)),
            strides=tuple(stride),
            pads=tuple(padding) * 2,
            output_padding=tuple(output_padding),
        )

    def kernel(self, name: str) -> tuple[int, ...]:
        """Return the kernel of a layer, which must be 3-D."""
        return self._shape(name)[2:]

    def channels(self, name: str) -> tuple[int, int]:
        """Return the output and input channels of a 3-D convolution."""
        return self._shape(name)[:2]

    def _shape(self, name: str) -> tuple[int, int, int, int, int]:
        match self.shape(f"{name}.weight"):
            case (_, _, _, _, _) as shape:
                return shape
            case _:
                raise CheckpointError(f"Tensor {name}.weight is not of a 3-D convolution.")

    def same(self, name: str) -> tuple[int, ...]:
        """Return the padding by which a layer keeps the extents."""
        kernel = self.kernel(name)
        if not all(taps % 2 for taps in kernel):
            raise CheckpointError(
                f"Layer {quoted(name)} has an even kernel, which does not keep the extents."
            )
        return tuple(taps // 2 for taps in kernel)

    def _bias(self, name: str) -> tuple[str, ...]:
        bias = f"{name}.bias"
        return (self.weight(bias),) if self.has(bias) else ()

    def norm(self, name: str, source: str, kind: LayerKind | None) -> str:
        """Write a norm; return the source for none."""
        if kind is None:
            return source
        epsilon = kind.number("eps", _EPSILON)
        if kind.name in ("batch", "syncbatch"):
            kind.check_options("eps", "affine", "num_features")
            stored = [self.weight(f"{name}.{part}") for part in ("running_mean", "running_var")]
            names = *self._scale_and_shift(name), *stored
            return self.add("BatchNormalization", name, source, *names, epsilon=epsilon)
        names = self._scale_and_shift(name)
        if kind.name in ("instance", "instance_nvfuser"):
            kind.check_options("eps", "affine", "num_features")
            return self.add("InstanceNormalization", name, source, *names, epsilon=epsilon)
        if kind.name == "group":
            kind.check_options("eps", "affine", "num_groups", "num_channels")
            groups = int(kind.number("num_groups", 0))
            return self.add(
                *("GroupNormalization", name, source, *names), epsilon=epsilon, num_groups=groups
            )
        raise CheckpointError(f"The network's norm {quoted(kind.name)} is not supported.")

    def _scale_and_shift(self, name: str) -> tuple[str, str]:
        if not self.has(f"{name}.weight"):
            return "", ""
        return self.weight(f"{name}.weight"), self.weight(f"{name}.bias")

    def activation(self, name: str, source: str, kind: LayerKind | None) -> str:
        """Write an activation; return the source for none."""
        if kind is None:
            return source
        if plain := _PLAIN_ACTIVATIONS.get(kind.name):
            kind.check_options()
            return self.add(plain, name, source)
        match kind.name:
            case "prelu":
                kind.check_options("num_parameters")
                slopes = self.weight(f"{name}.weight")
                shape = self.constant("shape of slopes", np.array([-1, 1, 1, 1], np.int64))
                return self.add("PRelu", name, source, self.add("Reshape", name, slopes, shape))
            case "leakyrelu":
                kind.check_options("negative_slope")
                alpha = kind.number("negative_slope", 0.01)
                return self.add("LeakyRelu", name, source, alpha=alpha)
            case "elu" | "celu":
                kind.check_options("alpha")
                operator = "Elu" if kind.name == "elu" else "Celu"
                return self.add(operator, name, source, alpha=kind.number("alpha", 1.0))
            case "gelu":
                kind.check_options()
                return self.add("Gelu", name, source)
            case _:
                raise CheckpointError(f"The activation {quoted(kind.name)} is not supported.")

    def together(self, name: str, first: str, second: str) -> str:
        """Write a concatenation of channels."""
        return self.add("Concat", name, first, second, axis=1)

    def graph(
        self,
        checkpoint: Checkpoint,
        output: str,
        *,
        channels: int,
        kind: str,
        layout: str,
        producer: str,
    ) -> OperatorGraph:
        """Return the network.

        checkpoint: file of the weights. output: name of the network's output. channels: of its
        input. kind, layout, producer: of the OperatorGraph.
        """
        return OperatorGraph(
            path=checkpoint.path,
            sha256=checkpoint.sha256,
            kind=kind,
            layout=layout,
            opset=STATED_OPSET,
            producer=producer,
            input=INPUT,
            output=output,
            dims=(1, channels, None, None, None),
            operators=tuple(self.operators),
            tensors=self.tensors,
            kinds=tuple(operator.kind for operator in self.operators),
        )


def weights(tensors: Mapping[str, StoredTensor]) -> dict[str, FloatArray]:
    """Read the weights of a network; raises CheckpointError for more than a model may have."""
    check_amount(tensors.values())
    return {name: tensor.read(quoted(name)) for name, tensor in tensors.items()}
