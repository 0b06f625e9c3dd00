"""Layers of MONAI's networks as ONNX operators, named after the weights that they use.

Channels and kernels follow from the weights; a definition says only what these leave open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...decoding import Json
from ...errors import CheckpointError, quoted
from ...network.layers import FloatArray
from ..onnx.operator_graph import Array, Attribute, Operator

OPSET = 21
"""Opset in which the operators are stated."""

_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Norm or activation of a definition, such as "PRELU" or ["GROUP", {"num_groups": 8}].

    name: in lower case. options: its arguments.
    """

    name: str
    options: Mapping[str, Json]

    @classmethod
    def of(cls, given: Json, what: str) -> "LayerKind | None":
        """Return the kind that a definition gives; None for none. what: for the error."""
        match given:
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

    tensors: weights of the network by name. operators: in order.
    """

    def __init__(self, tensors: Mapping[str, FloatArray]) -> None:
        self._given = tensors
        self.tensors: dict[str, Array] = {}
        self.operators: list[Operator] = []

    @property
    def unused(self) -> list[str]:
        """Names of the tensors that no operator uses."""
        return [name for name in self._given if name not in self.tensors]

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._given

    def weight(self, name: str) -> str:
        """Use a tensor, which must be there; return its name."""
        if name not in self._given:
            raise CheckpointError(
                f"The network definition needs the tensor {quoted(name)}, which the weights lack; "
                "the definition and the weights are not of the same network."
            )
        self.tensors[name] = self._given[name]
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
        made = f"{len(self.operators)}: {name}"
        self.operators.append(Operator(kind, name, inputs, (made,), attributes))
        return made

    def convolution(
        self,
        name: str,
        source: str,
        *,
        stride: Sequence[int] = (1, 1, 1),
        padding: Sequence[int] | None = None,
        dilation: int = 1,
    ) -> str:
        """Write a convolution; without `padding` it keeps the extents, as MONAI's does."""
        weight = self.weight(f"{name}.weight")
        kernel = self._kernel(weight)
        pads = self._same(name, kernel, dilation) if padding is None else tuple(padding)
        return self.add(
            *("Conv", name, source, weight, *self._bias(name)),
            strides=tuple(stride),
            pads=pads * 2,
            dilations=(dilation,) * 3,
        )

    def transposed(
        self,
        name: str,
        source: str,
        *,
        stride: Sequence[int],
        padding: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
    ) -> str:
        """Write a transposed convolution, by default with MONAI's padding."""
        weight = self.weight(f"{name}.weight")
        pads = self._same(name, self._kernel(weight), 1) if padding is None else tuple(padding)
        extra = [step - 1 for step in stride] if output_padding is None else output_padding
        return self.add(
            *("ConvTranspose", name, source, weight, *self._bias(name)),
            strides=tuple(stride),
            pads=pads * 2,
            output_padding=tuple(extra),
        )

    def _kernel(self, weight: str) -> tuple[int, ...]:
        kernel = self.shape(weight)[2:]
        if len(kernel) != 3:
            raise CheckpointError(f"Tensor {quoted(weight)} is not of a 3-D convolution.")
        return kernel

    def _bias(self, name: str) -> tuple[str, ...]:
        bias = f"{name}.bias"
        return (self.weight(bias),) if self.has(bias) else ()

    def _same(self, name: str, kernel: Sequence[int], dilation: int) -> tuple[int, ...]:
        if any((taps - 1) * dilation % 2 for taps in kernel):
            raise CheckpointError(f"Layer {quoted(name)} has an even kernel, which MONAI refuses.")
        return tuple((taps - 1) * dilation // 2 for taps in kernel)

    def norm(self, name: str, source: str, kind: LayerKind | None, channels: int) -> str:
        """Write a norm of so many channels; return the source for none."""
        if kind is None:
            return source
        epsilon = kind.number("eps", _EPSILON)
        if kind.name in ("batch", "syncbatch"):
            kind.check_options("eps", "affine", "num_features")
            stored = [self.weight(f"{name}.{part}") for part in ("running_mean", "running_var")]
            names = *self._scale_and_shift(name, channels), *stored
            return self.add("BatchNormalization", name, source, *names, epsilon=epsilon)
        names = self._scale_and_shift(name, channels)
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

    def _scale_and_shift(self, name: str, channels: int) -> tuple[str, str]:
        if self.has(f"{name}.weight"):
            return self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        return self.constant(f"{name} ones", ones), self.constant(f"{name} zeros", zeros)

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
