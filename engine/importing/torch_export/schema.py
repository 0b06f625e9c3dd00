"""Records of the JSON in a torch.export archive, as far as a network needs them.

Fields that are not listed are skipped unread. Names are those of PyTorch's schema
(torch/_export/serde/schema.py), whose major version says whether old readers still understand it.
"""

import msgspec


class TensorName(msgspec.Struct, frozen=True):
    """Reference to a tensor. name: of the value."""

    name: str


class SymbolicExpression(msgspec.Struct, frozen=True):
    """Symbolic expression, of which nothing is read."""


class ExtentMeta(msgspec.Struct, frozen=True):
    """Extent in the description of a tensor: a number, or else an expression."""

    as_int: int | None = None
    as_expr: SymbolicExpression | None = None


class SymbolicNumber(msgspec.Struct, frozen=True):
    """Number that may depend on the patch: a constant, or else the name of a value."""

    as_name: str | None = None
    as_int: int | None = None
    as_float: float | None = None


class Argument(msgspec.Struct, frozen=True):
    """Argument or result of a node: the one field that is not None says of which kind.

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


class ExportedProgram(msgspec.Struct, frozen=True):
    """Program in the JSON of an archive.

    graph_module: graph and signature. schema_version: of the JSON. torch_version: of PyTorch, which
    older files leave out.
    """

    graph_module: ProgramModule
    schema_version: SchemaVersion
    torch_version: str = ""


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
