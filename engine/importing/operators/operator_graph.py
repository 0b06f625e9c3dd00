"""A network as a graph of ONNX's operators, or of those of a dialect, whatever it came from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError, quoted
from ...network.layers import Triple

STATED_OPSET = 21
"""Opset of the dialect in which importers of other files than ONNX state operators.

It is ONNX but for four points, which save operators that only the converter would read: a norm may
omit scale and shift; Squeeze, Unsqueeze and reductions have their axes as an attribute; Swish is an
operator; and ReduceMax and ReduceMin may have a second output that nothing reads.
"""

Array: TypeAlias = npt.NDArray[Any]
Attribute: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | Array


def integers(values: Any) -> tuple[int, ...]:
    """Return the integers of an attribute or of an array with at most one axis."""
    return tuple(int(value) for value in np.asarray(values).reshape(-1))


def single(array: Array) -> float | None:
    """Return the only number of an array; None if it has several."""
    return float(array.reshape(-1)[0]) if array.size == 1 else None


@dataclass(frozen=True, slots=True)
class Operator:
    """A node of the graph.

    kind: operator type, such as Conv. name: of the node. inputs, outputs: names of values; empty if
    an optional one is omitted. attributes: by name. origin: the operator of the file that it
    replaces; empty if it is the file's own.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(repr=False)
    origin: str = ""

    def number(self, name: str, usual: float) -> float:
        """Return an attribute that must be a finite number."""
        value = self.attributes.get(name, usual)
        if not isinstance(value, int | float):
            raise self.refusal(f"has no number for {name}")
        if not isfinite(value):
            raise self.refusal(f"has {value} for {name}, which no trained network has")
        return value

    def text(self, name: str, usual: str) -> str:
        """Return a text attribute."""
        return str(self.attributes.get(name, usual))

    def integer(self, name: str, usual: int) -> int:
        """Return an attribute of a single integer; raises ValueError for several."""
        [value] = self.integers(name, usual)
        return value

    def integers(self, name: str, usual: int | tuple[int, ...]) -> tuple[int, ...]:
        """Return an attribute of integers."""
        return integers(self.attributes.get(name, usual))

    def triple(self, name: str, usual: Triple) -> Triple:
        """Return an attribute of three integers, along D, H and W."""
        values = self.integers(name, usual)
        if len(values) != 3:
            raise self.refusal(f"has {len(values)} numbers for {name} instead of three")
        return values[0], values[1], values[2]

    def refusal(self, reason: str) -> CheckpointError:
        """Return an error about this operator; reason: its predicate."""
        return refusal(self.origin or self.kind, self.name, reason)


@dataclass(frozen=True, slots=True)
class ConstantInputs:
    """Constant inputs of an operator, in their places.

    operator: that reads them. arrays: None for an input that is left out, or is not constant.
    """

    operator: Operator
    arrays: Sequence[Array | None]

    def optional(self, at: int) -> Array | None:
        """Return an input; None if it is left out."""
        return self.arrays[at] if at < len(self.arrays) else None

    def __getitem__(self, at: int) -> Array:
        """Return an input that must not be left out."""
        if (array := self.optional(at)) is None:
            raise self.operator.refusal(f"lacks its input {at + 1}")
        return array

    def all(self) -> list[Array]:
        """Return all inputs, of which none may be left out."""
        return [self[at] for at in range(len(self.arrays))]


HALVES = (10, 16)
"""ONNX's numbers of float16 and bfloat16."""

_MULTIPLYING = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""Operators that autocast computes in half precision."""


def multiplies_halves(operators: Iterable[Operator], halves: frozenset[str]) -> bool:
    """Return whether convolutions have weights in half precision, as those under autocast have.

    halves: names of tensors of that precision, apart from what operators cast to it.
    """
    operators = tuple(operators)
    casts = (one for one in operators if one.kind == "Cast" and one.attributes.get("to") in HALVES)
    rounded = halves.union(*(cast.outputs for cast in casts))
    return any(
        one.kind in _MULTIPLYING and rounded.issuperset(one.inputs[1:2]) for one in operators
    )


def refusal(kind: str, node: str, reason: str) -> CheckpointError:
    """Return an error about an operator; reason: its predicate."""
    return CheckpointError(f"Operator {kind} (node {quoted(node)}) {reason}.")


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on a patch under which the operators compute what the network does.

    text: with D, H and W for the extents. holds: function of them.
    """

    text: str
    holds: Callable[[Triple], bool]


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """Network of a file.

    path: of the file. sha256: of its bytes. kind: its format. layout: what the graph consists of,
    for the model card. opset: version of the operators; `STATED_OPSET` for the dialect. producer:
    program that wrote the file. input, output: names of the network's input and output. dims: of
    the input; None for a dynamic one. operators: in topological order. tensors: by name. kinds:
    operator types of the file, one for each of its nodes. is_half: whether the file computes in
    half precision, fp16 or bf16, at least its convolutions. halves: names of tensors of that
    precision. conditions: on patches, as far as the file states them. exported: extents of the
    patch that it was exported for, if it states them and takes others.
    """

    path: Path
    sha256: str
    kind: str
    layout: str
    opset: int
    producer: str
    input: str
    output: str
    dims: tuple[int | None, ...]
    operators: tuple[Operator, ...] = field(repr=False)
    tensors: Mapping[str, Array] = field(repr=False)
    kinds: tuple[str, ...] = field(repr=False)
    is_half: bool = False
    halves: frozenset[str] = frozenset()
    conditions: tuple[Condition, ...] = ()
    exported: Triple | None = None


def checked_dims(dims: Iterable[int | None]) -> tuple[int | None, ...]:
    """Return the extents of a network's input; raises CheckpointError unless it has five axes."""
    found = tuple(dims)
    if len(found) == 4:
        raise CheckpointError("The network is 2-D; only 3-D generators are supported.")
    if len(found) != 5:
        raise CheckpointError(
            f"The network's input has {len(found)} axes instead of five, [N, C, D, H, W]."
        )
    return found
