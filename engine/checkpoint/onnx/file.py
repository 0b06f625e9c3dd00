"""An ONNX file as plain data: its operators in order, and its tensors. Nothing is executed."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from ....io.files.regular import open_regular, read_regular
from ...errors import CheckpointError, quoted
from ...network.graph import LARGEST_WEIGHTS
from ..read.checkpoint import is_onnx_start
from .tensors import Array, TensorReader
from .wire import check_size, damaged, once

Attribute: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | Array

_SUFFIX = ".onnx"
_OLDEST_OPSET, _NEWEST_OPSET = 7, 26
_MOST_OPERATORS = 20_000
_DOMAINS = ("", "ai.onnx")
_FLOATING = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
)


@dataclass(frozen=True, slots=True)
class Operator:
    """One node of the file.

    kind: of ONNX, such as Conv. name: of the node. inputs, outputs: names of values; empty where an
    optional one is left out. attributes: by name.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(repr=False)

    def refusal(self, reason: str) -> CheckpointError:
        """The error of this operator; reason: what is said of it."""
        return CheckpointError(f"Operator {self.kind} (node {quoted(self.name)}) {reason}.")


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """What a file holds.

    path: of the file. sha256: of its bytes. opset: version of its operators. producer: program that
    wrote it. input, output: names of the one value that goes in, and out. dims: of the input, None
    where the file leaves it open. operators: in an order in which they can run. tensors: by name.
    """

    path: Path
    sha256: str
    opset: int
    producer: str
    input: str
    output: str
    dims: tuple[int | None, ...]
    operators: tuple[Operator, ...] = field(repr=False)
    tensors: Mapping[str, Array] = field(repr=False)


def is_onnx(path: Path) -> bool:
    """Whether a file claims to be ONNX by its name or its first bytes; False if unreadable."""
    if path.suffix.lower() == _SUFFIX:
        return True
    try:
        with open_regular(path) as file:
            return is_onnx_start(file.read(128))
    except OSError:
        return False


def read_onnx(path: Path) -> OnnxFile:
    """Read and check a file; raises CheckpointError, which says what is wrong."""
    data = _bytes(path)
    try:
        return _read(path, data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise CheckpointError(f"{path} is no file; check the name of the ONNX file.")
        if path.stat().st_size > LARGEST_WEIGHTS:
            raise CheckpointError(
                f"{path} is larger than {LARGEST_WEIGHTS >> 30} GiB, and no ONNX file is."
            )
        return read_regular(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


def _read(path: Path, data: bytes) -> OnnxFile:
    if not data:
        raise CheckpointError("The file is empty; copy it again.")
    check_size(data)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise damaged() from error
    opset = _opset(model)
    reader = TensorReader(path.parent)
    tensors = once("tensors", ((one.name, reader.read(one)) for one in model.graph.initializer))
    if model.graph.sparse_initializer:
        raise CheckpointError("The ONNX file holds sparse tensors, which are not supported.")
    entering, leaving = _ends(model.graph, tensors)
    return OnnxFile(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        opset=opset,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        input=entering.name,
        output=leaving.name,
        dims=_dims(entering),
        operators=_operators(model.graph, reader, {entering.name, *tensors}),
        tensors=tensors,
    )


def _opset(model: ModelProto) -> int:
    if model.functions:
        raise CheckpointError(
            f"The ONNX file defines an operator of its own, {quoted(model.functions[0].name)}; "
            "export it with plain operators."
        )
    versions = once("opsets", {(one.domain, one.version) for one in model.opset_import})
    opset = versions.get("", versions.get("ai.onnx", 0))
    if not _OLDEST_OPSET <= opset <= _NEWEST_OPSET:
        raise CheckpointError(
            f"The ONNX file has opset {opset}, and this program reads {_OLDEST_OPSET} to "
            f"{_NEWEST_OPSET}; export it again with another."
        )
    return opset


def _ends(graph: GraphProto, tensors: Mapping[str, Array]) -> tuple[ValueInfoProto, ValueInfoProto]:
    entering = [value for value in graph.input if value.name not in tensors]
    for what, values in (("input", entering), ("output", list(graph.output))):
        if len(values) != 1:
            raise CheckpointError(
                f"The network has {len(values)} {what}s, and a generator has one; export the "
                "generator alone."
            )
    return entering[0], graph.output[0]


def _dims(value: ValueInfoProto) -> tuple[int | None, ...]:
    kind = value.type.tensor_type
    if kind.elem_type not in _FLOATING:
        raise CheckpointError("The network's input is not a tensor of floating-point numbers.")
    dims = tuple(
        one.dim_value if one.HasField("dim_value") and one.dim_value > 0 else None
        for one in kind.shape.dim
    )
    if len(dims) == 4:
        raise CheckpointError("The network is 2-D; only 3-D generators are supported.")
    if len(dims) != 5:
        raise CheckpointError(
            f"The network's input has {len(dims)} axes where [N, C, D, H, W] has five."
        )
    return dims


def _operators(graph: GraphProto, reader: TensorReader, known: set[str]) -> tuple[Operator, ...]:
    """The nodes; raises CheckpointError unless each reads what is there before it."""
    if len(graph.node) > _MOST_OPERATORS:
        raise CheckpointError(
            f"The network has {len(graph.node)} operators; no generator has so many."
        )
    found: list[Operator] = []
    for node in graph.node:
        operator = _operator(node, reader)
        if missing := [name for name in operator.inputs if name and name not in known]:
            raise operator.refusal(
                f"reads {quoted(missing[0])} before it is made, so the graph is cyclic or damaged"
            )
        for name in filter(None, operator.outputs):
            if name in known:
                raise operator.refusal(f"makes {quoted(name)}, which is there already")
            known.add(name)
        found.append(operator)
    if graph.output[0].name not in known:
        raise CheckpointError("No operator makes the network's output; the file is damaged.")
    return tuple(found)


def _operator(node: NodeProto, reader: TensorReader) -> Operator:
    name = node.name or (node.output[0] if node.output else "")
    plain = Operator(node.op_type[:80], name, tuple(node.input), tuple(node.output), {})
    if node.domain not in _DOMAINS:
        raise plain.refusal(f"is of the domain {quoted(node.domain)}, which is not supported")
    read = ((one.name, _attribute(plain, one, reader)) for one in node.attribute)
    attributes = once(f"attributes of node {quoted(name)}", read)
    return Operator(plain.kind, name, plain.inputs, plain.outputs, attributes)


def _attribute(operator: Operator, given: AttributeProto, reader: TensorReader) -> Attribute:
    match given.type:
        case AttributeProto.INT:
            return given.i
        case AttributeProto.FLOAT:
            return given.f
        case AttributeProto.STRING:
            return given.s.decode("utf-8", "replace")
        case AttributeProto.INTS:
            return tuple(given.ints)
        case AttributeProto.FLOATS:
            return tuple(given.floats)
        case AttributeProto.TENSOR:
            return reader.read(given.t)
        case _:
            raise operator.refusal(
                f"has an attribute {quoted(given.name)} of a kind that is not supported"
            )
