"""A torch.export archive as plain data: nodes of its JSON graph, and its tensors on demand.

PyTorch 2.9 and later store one entry per tensor, described by JSON; older versions a state_dict of
torch.save, and those before 2.8 all entries without a folder. The graph's JSON is the same but for
fields that were added: records have the names of PyTorch's schema (torch/_export/serde/schema.py),
whose major version says whether old readers still understand it, and fields that are not listed are
skipped unread. Symbolic expressions are never evaluated.
"""

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from ....io.files.regular import open_regular
from ...errors import CheckpointError, quoted
from ...network.layers import FloatArray
from ..foreign_files import FLAT_PROGRAM
from ..torch_files import (
    ZIP_FAULTS,
    ZIP_MAGIC,
    Archive,
    Storage,
    StoredTensor,
    check_amount,
    read_archive,
)


class TensorName(msgspec.Struct, frozen=True):
    """Reference to a tensor. name: of the value."""

    name: str


class SymbolicNumber(msgspec.Struct, frozen=True):
    """Number that may depend on the patch: a constant, or else the name of a value."""

    as_name: str | None = None
    as_int: int | None = None
    as_float: float | None = None


class SymbolicExpression(msgspec.Struct, frozen=True):
    """Symbolic expression. expr_str: its text. hint: its value for the exported patch."""

    expr_str: str = ""
    hint: SymbolicNumber | None = None


class ExtentMeta(msgspec.Struct, frozen=True):
    """Extent in the description of a tensor: a number, or else an expression."""

    as_int: int | None = None
    as_expr: SymbolicExpression | None = None


class Argument(msgspec.Struct, frozen=True):
    """Argument or result of a node: the one field that is not None is its kind.

    If all are None, its kind is not supported.
    """

    as_none: bool | None = None
    as_tensor: TensorName | None = None
    as_tensors: tuple[TensorName, ...] | None = None
    as_int: int | None = None
    as_ints: tuple[int, ...] | None = None
    as_float: float | str | None = None
    as_floats: tuple[float, ...] | None = None
    as_bool: bool | None = None
    as_string: str | None = None
    as_sym_int: SymbolicNumber | None = None
    as_sym_ints: tuple[SymbolicNumber, ...] | None = None
    as_sym_float: SymbolicNumber | None = None
    as_scalar_type: int | None = None


class NamedArgument(msgspec.Struct, frozen=True):
    """Argument of a node by its name in the operator's schema."""

    name: str
    arg: Argument


class ProgramNode(msgspec.Struct, frozen=True):
    """Call of an operator.

    target: its qualified name. inputs: arguments that differ from their defaults, or are required.
    outputs: results. name: of the node, which older files leave out.
    """

    target: str
    inputs: tuple[NamedArgument, ...]
    outputs: tuple[Argument, ...]
    name: str | None = None


class TensorMeta(msgspec.Struct, frozen=True):
    """Description of a tensor, as PyTorch's own."""

    dtype: int
    sizes: tuple[ExtentMeta, ...]
    strides: tuple[ExtentMeta, ...]
    storage_offset: ExtentMeta
    layout: int


class ParameterSpec(msgspec.Struct, frozen=True):
    """Input that is a parameter of the module.

    arg: the value. parameter_name: in the state_dict.
    """

    arg: TensorName
    parameter_name: str


class BufferSpec(msgspec.Struct, frozen=True):
    """Input or output that is a buffer of the module.

    arg: the value. buffer_name: in the state_dict.
    """

    arg: TensorName
    buffer_name: str


class ConstantSpec(msgspec.Struct, frozen=True):
    """Input that is a constant. arg: the value. tensor_constant_name: in the archive."""

    arg: TensorName
    tensor_constant_name: str


class UserSpec(msgspec.Struct, frozen=True):
    """Input or output of the program itself. arg: the value."""

    arg: Argument


class InputSpec(msgspec.Struct, frozen=True):
    """Kind of an input: the field that is not None; none for kinds that are not supported."""

    parameter: ParameterSpec | None = None
    buffer: BufferSpec | None = None
    tensor_constant: ConstantSpec | None = None
    user_input: UserSpec | None = None


class OutputSpec(msgspec.Struct, frozen=True):
    """Kind of an output: the field that is not None; none for kinds that are not supported."""

    user_output: UserSpec | None = None
    buffer_mutation: BufferSpec | None = None


class ProgramSignature(msgspec.Struct, frozen=True):
    """Kinds of inputs and outputs. input_specs, output_specs: in order."""

    input_specs: tuple[InputSpec, ...]
    output_specs: tuple[OutputSpec, ...]


class ProgramGraph(msgspec.Struct, frozen=True):
    """Nodes in order, and descriptions of tensors by the names of their values."""

    nodes: tuple[ProgramNode, ...]
    tensor_values: dict[str, TensorMeta]


class ProgramModule(msgspec.Struct, frozen=True):
    """Graph with its signature."""

    graph: ProgramGraph
    signature: ProgramSignature


class SchemaVersion(msgspec.Struct, frozen=True):
    """Version of the schema. major: part that changes when old readers fail."""

    major: int


class ExtentInterval(msgspec.Struct, frozen=True):
    """Interval of a symbol. max_val: its end; None if it is open."""

    max_val: int | None = None


class ExportedProgram(msgspec.Struct, frozen=True):
    """Program in the JSON of an archive.

    graph_module: graph and signature. schema_version: of the JSON. torch_version: of PyTorch, which
    older files leave out. range_constraints: intervals by symbol. guards_code: conditions on the
    input; None in older files, which state intervals only.
    """

    graph_module: ProgramModule
    schema_version: SchemaVersion
    torch_version: str = ""
    range_constraints: dict[str, ExtentInterval] = {}
    guards_code: tuple[str, ...] | None = None


class TensorEntry(msgspec.Struct, frozen=True):
    """Entry of a tensor.

    path_name: below the folder. use_pickle: whether the entry is a pickled object. tensor_meta: of
    the tensor.
    """

    path_name: str
    use_pickle: bool
    tensor_meta: TensorMeta | None = None


class TensorEntries(msgspec.Struct, frozen=True):
    """Description of the tensors in a folder. config: entries by the name of the tensor."""

    config: dict[str, TensorEntry]


Record = TypeVar("Record", bound=msgspec.Struct)

_GRAPHS, _GRAPH_SUFFIX = "models/", ".json"
_LARGEST_JSON = 16 << 20
_MOST_NODES = 20_000
_MAJOR_VERSIONS = range(1, 9)
_STRIDED = 7
ELEMENTS = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
"""Element types by their numbers in the schema."""


@dataclass(frozen=True)
class TorchProgram:
    """Contents of an archive.

    producer: program that wrote it. input, output: names of the network's input and output. nodes:
    in order. metas: descriptions of tensors by name. states: by the name of a value, the name of
    the parameter, buffer or constant that it is. guards, intervals: conditions on the input, as
    `ExportedProgram` has them.
    """

    producer: str
    input: str
    output: str
    nodes: tuple[ProgramNode, ...] = field(repr=False)
    metas: Mapping[str, TensorMeta] = field(repr=False)
    states: Mapping[str, str] = field(repr=False)
    guards: tuple[str, ...] | None = field(repr=False)
    intervals: Mapping[str, ExtentInterval] = field(repr=False)
    _archive: Archive = field(repr=False)
    _model: str

    def tensors(self, names: set[str]) -> dict[str, FloatArray]:
        """Return parameters, buffers and constants by the names of their values.

        Raises CheckpointError if one is missing, damaged, or not floating point.
        """
        wanted = {name: self._stored_tensor(self.states[name]) for name in names & {*self.states}}
        check_amount(wanted.values())
        return {name: one.read(quoted(self.states[name])) for name, one in wanted.items()}

    def _stored_tensor(self, state: str) -> StoredTensor:
        found = self._stored.get(state)
        if found is None:
            raise CheckpointError(f"The archive lacks its tensor {quoted(state)}; export it again.")
        return found

    @cached_property
    def _stored(self) -> Mapping[str, StoredTensor]:
        """Tensors of weights and constants."""
        found: dict[str, StoredTensor] = {}
        for folder, flat in (("weights", "state_dict"), ("constants", "constants")):
            place = f"data/{folder}/"
            config = f"{place}{self._model}_{folder}_config.json"
            pickled = f"{place}{self._model}.pt"
            if config in self._archive:
                found |= _described(self._archive, place, config)
            elif pickled in self._archive:
                found |= _pickled(self._archive, pickled)
            elif f"serialized_{flat}.pt" in self._archive:
                found |= _pickled(self._archive, f"serialized_{flat}.pt")
        return found


def _described(archive: Archive, place: str, config: str) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the tensors that a JSON entry describes, by name."""
    storages: dict[str, Storage] = {}
    for name, entry in _decoded(TensorEntries, archive, config).config.items():
        path, meta = f"{place}{entry.path_name}", entry.tensor_meta
        if entry.use_pickle or meta is None:
            raise CheckpointError(
                f"The archive stores {quoted(name)} as a pickled object, which is not read; export "
                "a module of plain tensors."
            )
        if path not in archive:
            raise CheckpointError(f"The archive lacks its entry {quoted(path)}; copy it again.")
        storage = storages.setdefault(path, _storage(archive, path))
        yield name, _tensor(name, meta, storage)


def _storage(archive: Archive, path: str) -> Storage:
    return Storage(archive.size(path), lambda: archive.read(path))


def _tensor(name: str, meta: TensorMeta, storage: Storage) -> StoredTensor:
    numbers = [size.as_int for size in (meta.storage_offset, *meta.sizes, *meta.strides)]
    known = [number for number in numbers if number is not None]
    element = ELEMENTS.get(meta.dtype)
    if element is None or meta.layout != _STRIDED or len(known) != len(numbers):
        raise CheckpointError(
            f"The archive stores {quoted(name)} in a form that is not supported; export a module "
            "of plain float32 tensors."
        )
    offset, rank = known[0], len(meta.sizes)
    return StoredTensor(
        element, storage, offset, tuple(known[1 : rank + 1]), tuple(known[rank + 1 :])
    )


def _pickled(archive: Archive, path: str) -> dict[str, StoredTensor]:
    """Return the tensors of a state_dict that torch.save wrote into the archive."""
    value, _ = read_archive(bytes(archive.read(path)))
    items = cast("dict[object, object]", value).items() if isinstance(value, dict) else ()
    return {str(name): item for name, item in items if isinstance(item, StoredTensor)}


def is_exported(path: Path) -> bool:
    """Whether a file is a torch.export archive, by its entries; False if unreadable."""
    try:
        with open_regular(path) as file:
            if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
                return False
            with zipfile.ZipFile(file) as archive:
                return holds_program(archive.namelist())
    except ZIP_FAULTS:
        return False


def holds_program(names: list[str]) -> bool:
    """Whether these are the entries of a torch.export archive."""
    return FLAT_PROGRAM in names or any(_is_graph(name.partition("/")[2]) for name in names)


def _is_graph(name: str) -> bool:
    return name.startswith(_GRAPHS) and name.endswith(_GRAPH_SUFFIX)


def read_program(data: bytes) -> TorchProgram:
    """Return the program of an archive; raises CheckpointError, which names the fault."""
    archive = Archive(data, is_program=True)
    if "byteorder" in archive and bytes(archive.read("byteorder")) != b"little":
        raise CheckpointError(
            "The archive was written on a big-endian machine; export it again on another."
        )
    graph = _graph_entry(archive)
    program = _decoded(ExportedProgram, archive, graph)
    if program.schema_version.major not in _MAJOR_VERSIONS:
        raise CheckpointError(
            f"The archive's schema has version {program.schema_version.major}, and this program "
            f"reads up to {_MAJOR_VERSIONS[-1]}; export it with an older PyTorch, or as ONNX."
        )
    module = program.graph_module
    if len(module.graph.nodes) > _MOST_NODES:
        raise CheckpointError(
            f"The network has {len(module.graph.nodes)} operators; no generator has so many."
        )
    states, input_name = _inputs(module.signature)
    return TorchProgram(
        producer=f"PyTorch {program.torch_version[:40]}".strip(),
        input=input_name,
        output=_output(module.signature),
        nodes=module.graph.nodes,
        metas=module.graph.tensor_values,
        states=states,
        guards=program.guards_code,
        intervals=program.range_constraints,
        _archive=archive,
        _model=graph.removeprefix(_GRAPHS).removesuffix(_GRAPH_SUFFIX),
    )


def _graph_entry(archive: Archive) -> str:
    """Return the name of the entry with the graph."""
    if FLAT_PROGRAM in archive:
        return FLAT_PROGRAM
    graphs = [name for name in archive.names if _is_graph(name)]
    if len(graphs) != 1:
        raise CheckpointError(
            f"The archive holds {len(graphs)} programs, and a generator is one; export it alone."
        )
    return graphs[0]


def _inputs(signature: ProgramSignature) -> tuple[dict[str, str], str]:
    """Return the names of states by those of their values, and the name of the input."""
    states: dict[str, str] = {}
    users: list[str] = []
    for spec in signature.input_specs:
        match spec:
            case InputSpec(parameter=ParameterSpec(arg, name)):
                states[arg.name] = name
            case InputSpec(buffer=BufferSpec(arg, name)):
                states[arg.name] = name
            case InputSpec(tensor_constant=ConstantSpec(arg, name)):
                states[arg.name] = name
            case InputSpec(user_input=UserSpec(Argument(as_tensor=TensorName(name)))):
                users.append(name)
            case InputSpec(user_input=UserSpec(Argument(as_none=True))):
                pass
            case _:
                raise CheckpointError(
                    "The program takes an input that is not a tensor; export the generator with "
                    "one "
                    "tensor as its input."
                )
    return states, _only("input", users)


def _output(signature: ProgramSignature) -> str:
    results: list[str] = []
    for spec in signature.output_specs:
        match spec:
            case OutputSpec(user_output=UserSpec(Argument(as_tensor=TensorName(name)))):
                results.append(name)
            case OutputSpec(buffer_mutation=BufferSpec(_, name)):
                raise CheckpointError(
                    f"The program changes its buffer {quoted(name)} while it computes, as norms do "
                    "in training; export the network in eval mode."
                )
            case _:
                raise CheckpointError(
                    "The program has an output that is not a tensor; export the generator with one "
                    "tensor as its output."
                )
    return _only("output", results)


def _only(what: str, names: list[str]) -> str:
    if len(names) != 1:
        raise CheckpointError(
            f"The network has {len(names)} {what}s, and a generator has one; export the generator "
            "alone, in eval mode."
        )
    return names[0]


def _decoded(kind: type[Record], archive: Archive, name: str) -> Record:
    if archive.size(name) > _LARGEST_JSON:
        raise CheckpointError(
            f"The archive's {quoted(name)} is larger than {_LARGEST_JSON >> 20} MiB; no generator "
            "has so many operators."
        )
    try:
        return msgspec.json.decode(archive.read(name), type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"The archive's {quoted(name)} is not what PyTorch writes ({error}); copy or export it "
            "again."
        ) from error
