"""An ONNX file as plain data: its operators in order, and its tensors. Nothing is executed.

The size of the graph is found in the file's bytes before they are parsed: a few bytes of a protocol
buffer can become a hundred times as many, and counting first keeps a hostile file from exhausting
memory.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import prod
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)

from ...io.files.regular import open_regular
from ..errors import CheckpointError, naming, quoted
from ..network.graph import LARGEST_WEIGHTS
from .checkpoint_file import file_bytes
from .foreign_files import is_onnx_start
from .operators.operator_graph import (
    HALVES,
    Array,
    Attribute,
    Operator,
    OperatorGraph,
    checked_dims,
    multiplies_halves,
)

Value = TypeVar("Value")

_Message: TypeAlias = Mapping[int, "_Message | None"]

_TENSOR: dict[int, "_Message | None"] = {4: None, 9: None, 10: None}
_ATTRIBUTE: dict[int, "_Message | None"] = {5: _TENSOR, 7: None, 8: None}
_NODE: dict[int, "_Message | None"] = {5: _ATTRIBUTE}
_GRAPH: dict[int, "_Message | None"] = {1: _NODE, 5: _TENSOR}
_MODEL: dict[int, "_Message | None"] = {7: _GRAPH}
"""Fields of onnx.proto, by number, that lead to tensors; None: packed numbers."""

MOST_FIELDS = 500_000
MOST_BYTES = 16 << 20
"""Limit for everything but the numbers of tensors."""


def check_size(data: bytes) -> None:
    """Raise CheckpointError if a file is no protocol buffer, or if its graph is too large."""
    view = memoryview(data)
    fields, size = 0, 0
    waiting: list[tuple[int, int, _Message]] = [(0, len(view), _MODEL)]
    while waiting:
        start, stop, known = waiting.pop()
        for number, first, last in _fields(view, start, stop):
            fields += 1
            inner = known.get(number, {})
            if inner:
                waiting.append((first, last, inner))
            elif inner is not None:
                size += last - first
            if fields > MOST_FIELDS or size > MOST_BYTES:
                raise CheckpointError(
                    "The ONNX file describes more operators than any network has; export the "
                    "generator alone."
                )


def _once(what: str, pairs: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """Return values by name; raises CheckpointError for a duplicate name.

    what: such as "tensors", for the error.
    """
    found: dict[str, Value] = {}
    for name, value in pairs:
        if name in found:
            raise CheckpointError(
                f"The ONNX file has two {what} named {quoted(name)}; export it again."
            )
        found[name] = value
    return found


def _fields(view: memoryview, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and stop of each field of a message."""
    while at < stop:
        key, at = _varint(view, at, stop)
        length = 0
        match key & 7:
            case 0:
                _, end = _varint(view, at, stop)
                length = end - at
            case 1:
                length = 8
            case 2:
                length, at = _varint(view, at, stop)
            case 5:
                length = 4
            case _:
                raise _damaged()
        if length > stop - at:
            raise _damaged()
        yield key >> 3, at, at + length
        at += length


def _varint(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise _damaged()


def _damaged() -> CheckpointError:
    """Return the error for a file that cannot be parsed."""
    return CheckpointError("The ONNX file is damaged, or the file is not ONNX; export it again.")


_ELEMENT_BYTES: dict[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
    TensorProto.DOUBLE: 8,
    TensorProto.INT64: 8,
    TensorProto.INT32: 4,
    TensorProto.INT16: 2,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
    TensorProto.BOOL: 1,
}
"""Bytes per element of each supported type."""


class TensorReader:
    """Reader of the tensors of a file; together they may be no larger than a model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = LARGEST_WEIGHTS

    def read(self, tensor: TensorProto) -> Array:
        """Return a tensor as float32, int64 or bool; raises CheckpointError."""
        name, shape = quoted(tensor.name), tuple(tensor.dims)
        width = _ELEMENT_BYTES.get(tensor.data_type)
        if width is None:
            raise CheckpointError(f"Tensor {name} is of an element type that is not supported.")
        if any(extent < 0 for extent in shape) or len(shape) > 8:
            raise CheckpointError(f"Tensor {name} has an invalid shape.")
        count = prod(shape)
        self._left -= count * max(width, 4)
        if self._left < 0:
            raise CheckpointError(
                f"The tensors take more than {LARGEST_WEIGHTS >> 30} GiB, the limit for models."
            )
        array = self._external(tensor, count * width) if _is_external(tensor) else tensor
        return _plain(_array(array, tensor, name))

    def _external(self, tensor: TensorProto, size: int) -> bytes:
        name = quoted(tensor.name)
        entries = ((one.key, one.value) for one in tensor.external_data)
        place = _once(f"entries for the numbers of {name}", entries)
        path = self._beside(place.get("location", ""), name)
        try:
            offset, length = int(place.get("offset", "0")), int(place.get("length", str(size)))
            if offset < 0 or length != size or offset + size > path.stat().st_size:
                raise ValueError
            with open_regular(path) as file:
                file.seek(offset)
                content = file.read(size)
        except (OSError, ValueError, OverflowError) as error:
            raise _cut_short(name, path) from error
        if len(content) != size:
            raise _cut_short(name, path)
        return content

    def _beside(self, location: str, name: str) -> Path:
        """Return the path of a file in the folder of the ONNX file, or below it."""
        refusal = CheckpointError(
            f"The data of {name} are in {quoted(location)}, which is not in the folder of the "
            "ONNX file; put it there, or export into one file."
        )
        if "\0" in location or not location:
            raise refusal
        folder = self._folder.resolve()
        path = (folder / location).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise refusal
        return path


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _cut_short(name: str, path: Path) -> CheckpointError:
    return CheckpointError(
        f"The data of {name} are not at their declared place in {path.name}; copy or export it "
        "again."
    )


def _array(source: TensorProto | bytes, tensor: TensorProto, name: str) -> Array:
    if isinstance(source, bytes):
        held = TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=source)
        return _array(held, held, name)
    try:
        return numpy_helper.to_array(source)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"Tensor {name} has more or fewer numbers than its shape states."
        ) from error


def _plain(array: Array) -> Array:
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


_SUFFIX = ".onnx"
_OLDEST_OPSET, _NEWEST_OPSET = 7, 26
_MOST_OPERATORS = 20_000
_DOMAINS = ("", "ai.onnx")
_FLOATING = (TensorProto.FLOAT, TensorProto.DOUBLE, *HALVES)


def is_onnx(path: Path) -> bool:
    """Whether a file claims to be ONNX by its name or its first bytes; False if unreadable."""
    if path.suffix.lower() == _SUFFIX:
        return True
    try:
        with open_regular(path) as file:
            return is_onnx_start(file.read(128))
    except OSError:
        return False


def read_onnx(path: Path) -> OperatorGraph:
    """Read and check a file; raises CheckpointError, which names the fault."""
    data = file_bytes(path)
    with naming(path):
        return _read(path, data)


def _read(path: Path, data: bytes) -> OperatorGraph:
    if not data:
        raise CheckpointError("The file is empty; copy it again.")
    check_size(data)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise _damaged() from error
    opset = _opset(model)
    reader = TensorReader(path.parent)
    stored = _once("tensors", ((one.name, one) for one in model.graph.initializer))
    if model.graph.sparse_initializer:
        raise CheckpointError("The ONNX file contains sparse tensors, which are not supported.")
    input_info, output_info = _ends(model.graph, stored)
    operators = _operators(model.graph, reader, {input_info.name, *stored})
    used = {name for operator in operators for name in operator.inputs}
    tensors = {name: reader.read(one) for name, one in stored.items() if name in used}
    halves = frozenset(name for name in tensors if stored[name].data_type in HALVES)
    return OperatorGraph(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        kind="ONNX",
        layout=f"layers of an ONNX graph, opset {opset}",
        opset=opset,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        input=input_info.name,
        output=output_info.name,
        dims=_dims(input_info),
        operators=operators,
        tensors=tensors,
        kinds=tuple(operator.kind for operator in operators),
        is_half=input_info.type.tensor_type.elem_type in HALVES
        or multiplies_halves(operators, halves),
        halves=halves,
    )


def _opset(model: ModelProto) -> int:
    if model.functions:
        raise CheckpointError(
            f"The ONNX file defines a custom operator, {quoted(model.functions[0].name)}; export "
            "it with plain operators."
        )
    versions = _once("opsets", {(one.domain, one.version) for one in model.opset_import})
    opset = versions.get("", versions.get("ai.onnx", 0))
    if not _OLDEST_OPSET <= opset <= _NEWEST_OPSET:
        raise CheckpointError(
            f"The ONNX file has opset {opset}, but this program supports {_OLDEST_OPSET} to "
            f"{_NEWEST_OPSET}; export it again with one of these."
        )
    return opset


def _ends(graph: GraphProto, tensors: Collection[str]) -> tuple[ValueInfoProto, ValueInfoProto]:
    input_info = [value for value in graph.input if value.name not in tensors]
    for what, values in (("input", input_info), ("output", list(graph.output))):
        if len(values) != 1:
            raise CheckpointError(
                f"The network has {len(values)} {what}s instead of one; export the generator alone."
            )
    return input_info[0], graph.output[0]


def _dims(value: ValueInfoProto) -> tuple[int | None, ...]:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        raise CheckpointError(
            "The file does not state the shape of the network's input; export it again with five "
            "axes, [N, C, D, H, W]."
        )
    if kind.elem_type not in _FLOATING:
        raise CheckpointError("The network's input is not a tensor of floating-point numbers.")
    return checked_dims(
        one.dim_value if one.HasField("dim_value") and one.dim_value > 0 else None
        for one in kind.shape.dim
    )


def _operators(graph: GraphProto, reader: TensorReader, known: set[str]) -> tuple[Operator, ...]:
    """Return the operators that the output depends on, in an order in which each value is written
    before it is read.
    """
    if len(graph.node) > _MOST_OPERATORS:
        raise CheckpointError(
            f"The network has {len(graph.node)} operators, more than any generator."
        )
    makers: dict[str, NodeProto] = {}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in known or name in makers:
                raise _bare(node).refusal(f"defines {quoted(name)}, which already exists")
            makers[name] = node
    output = graph.output[0].name
    if output not in known | makers.keys():
        raise CheckpointError("No operator produces the network's output; the file is damaged.")
    needed = _leading_to(output, makers)
    found = [_operator(node, reader) for node in graph.node if needed.intersection(node.output)]
    places = {name: at for at, operator in enumerate(found) for name in operator.outputs if name}
    return tuple(found[at] for at in _in_order(found, places, known))


def _leading_to(output: str, makers: Mapping[str, NodeProto]) -> set[str]:
    """Return the names of the values that an output depends on, and its own."""
    needed, left = set[str](), [output]
    while left:
        name = left.pop()
        if name in makers and name not in needed:
            needed.add(name)
            left += makers[name].input
    return needed


def _in_order(
    operators: Sequence[Operator], makers: Mapping[str, int], known: set[str]
) -> Iterator[int]:
    """Yield the indices of operators in a topological order, the file's own if it is one.

    makers: index of the operator that makes each value. known: values that none makes.
    """
    readers: dict[int, list[int]] = {}
    missing: list[int] = []
    for at, operator in enumerate(operators):
        names = {name for name in operator.inputs if name and name not in known}
        missing.append(len(names))
        for name in names & makers.keys():
            readers.setdefault(makers[name], []).append(at)
    ready = [at for at, count in enumerate(missing) if not count]
    while ready:
        at = heappop(ready)
        yield at
        missing[at] = -1
        for reader in readers.get(at, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    left = [operator for operator, count in zip(operators, missing, strict=True) if count > 0]
    for operator in left:
        unmade = {name for one in left for name in one.outputs}
        never = [name for name in operator.inputs if name and name not in known | makers.keys()]
        if awaited := never or [name for name in operator.inputs if name in unmade]:
            raise operator.refusal(
                f"reads {quoted(awaited[0])} before it is computed, so the graph is cyclic or "
                "damaged"
            )


def _bare(node: NodeProto) -> Operator:
    """Return the operator of a node without its attributes."""
    name = node.name or (node.output[0] if node.output else "")
    return Operator(node.op_type[:80], name, tuple(node.input), tuple(node.output), {})


def _operator(node: NodeProto, reader: TensorReader) -> Operator:
    plain = _bare(node)
    if node.domain not in _DOMAINS:
        raise plain.refusal(f"is of the domain {quoted(node.domain)}, which is not supported")
    read = ((one.name, _attribute(plain, one, reader)) for one in node.attribute)
    attributes = _once(f"attributes of node {quoted(plain.name)}", read)
    return replace(plain, attributes=attributes)


def _attribute(operator: Operator, proto: AttributeProto, reader: TensorReader) -> Attribute:
    match proto.type:
        case AttributeProto.INT:
            return proto.i
        case AttributeProto.FLOAT:
            return proto.f
        case AttributeProto.STRING:
            return proto.s.decode("utf-8", "replace")
        case AttributeProto.INTS:
            return tuple(proto.ints)
        case AttributeProto.FLOATS:
            return tuple(proto.floats)
        case AttributeProto.TENSOR:
            return reader.read(proto.t)
        case AttributeProto.GRAPH | AttributeProto.GRAPHS:
            return proto.name  # no operator with a branch of its own is converted
        case _:
            raise operator.refusal(f"has an attribute {quoted(proto.name)} of an unsupported kind")
