"""A network as a graph of ONNX's operators, whatever file it came from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from ...errors import CheckpointError, quoted

Array: TypeAlias = npt.NDArray[Any]
Attribute: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | Array


@dataclass(frozen=True, slots=True)
class Operator:
    """A node of the graph.

    kind: operator type, such as Conv. name: of the node. inputs, outputs: names of values; empty if
    an optional one is omitted. attributes: by name. origin: the operator of the file that it
    stands for; empty if the file has it as it is.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(repr=False)
    origin: str = ""

    def refusal(self, reason: str) -> CheckpointError:
        """Return an error about this operator; reason: its predicate."""
        shown = self.origin or self.kind
        return CheckpointError(f"Operator {shown} (node {quoted(self.name)}) {reason}.")


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """Network of a file.

    path: of the file. sha256: of its bytes. kind: its format. layout: what the graph consists of,
    as a model card says it. opset: version of the operators. producer: program that wrote it.
    input, output: names of the network's input and output. dims: of the input; None for a dynamic
    one. operators: in topological order. tensors: by name. kinds: operator types of the file, one
    for each of its nodes.
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
