"""Calls of PyTorch's operators, and the ONNX operators that state them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...errors import CheckpointError, quoted
from ..operators.operator_graph import Array, Attribute, Operator, refusal
from .archive import Argument, ProgramNode, SymbolicNumber, TensorMeta, TensorName

_NAMESPACE = "torch.ops."
_IMMATERIAL = frozenset(
    (
        *("memory_format", "layout", "device", "pin_memory", "non_blocking", "copy"),
        *("cudnn_enabled", "momentum", "implicit", "p"),
    )
)
"""Arguments that change no number of a network in eval mode."""
_UNBOUNDED = {"Infinity": float("inf"), "-Infinity": -float("inf")}


@dataclass(frozen=True, slots=True)
class ValueName:
    """Reference to a value that another call makes. name: of the value."""

    name: str


@dataclass(frozen=True, slots=True)
class UnsupportedArgument:
    """Argument of a kind that no rule reads."""


ArgumentValue: TypeAlias = (
    bool
    | int
    | float
    | str
    | ValueName
    | UnsupportedArgument
    | tuple[int | float | ValueName, ...]
    | None
)
"""Argument of a call; None if it is left out."""


def _plain_value(argument: Argument) -> ArgumentValue:
    """Return an argument as a plain value."""
    match argument:
        case Argument(as_none=bool()):
            return None
        case Argument(as_tensor=TensorName(name)):
            return ValueName(name)
        case Argument(as_tensors=tuple() as tensors):
            return tuple(ValueName(one.name) for one in tensors)
        case (
            Argument(as_sym_int=SymbolicNumber() as symbol)
            | Argument(as_sym_float=SymbolicNumber() as symbol)
        ):
            return _symbol(symbol)
        case Argument(as_sym_ints=tuple() as symbols):
            return tuple(map(_symbol, symbols))
        case Argument(as_float=str() as text):
            return _UNBOUNDED.get(text, UnsupportedArgument())
        case _:
            plain = (
                *(argument.as_bool, argument.as_int, argument.as_float, argument.as_string),
                *(argument.as_ints, argument.as_floats, argument.as_scalar_type),
            )
            return next((one for one in plain if one is not None), UnsupportedArgument())


def _symbol(symbol: SymbolicNumber) -> int | float | ValueName:
    if symbol.as_name is not None:
        return ValueName(symbol.as_name)
    number = symbol.as_float if symbol.as_int is None else symbol.as_int
    return 0 if number is None else number


def _renamed(argument: ArgumentValue, renamed: Callable[[str], str]) -> ArgumentValue:
    """Return an argument with other names of values."""
    match argument:
        case ValueName(name):
            return ValueName(renamed(name))
        case tuple():
            return tuple(
                ValueName(renamed(one.name)) if isinstance(one, ValueName) else one
                for one in argument
            )
        case _:
            return argument


class Call:
    """Call of an operator.

    kind: the operator without its overload, such as aten.conv3d. name: of the node. outputs: names
    of its results. A rule reads the arguments that it knows; `check_read` refuses a call with
    others, as it would compute something else.

    node: of the program. renamed: returns the name by which a value goes at this call.
    """

    def __init__(self, node: ProgramNode, renamed: Callable[[str], str] = str) -> None:
        self.kind = kind_of(node)
        self.outputs = tuple(_results(node))
        self.name = node.name or next(iter(self.outputs), "")
        self._arguments = {
            one.name: _renamed(_plain_value(one.arg), renamed) for one in node.inputs
        }
        self._read: set[str] = set()

    @property
    def names_read(self) -> Iterator[str]:
        """Names of the values among the arguments."""
        for argument in self._arguments.values():
            for one in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(one, ValueName):
                    yield one.name

    def refusal(self, reason: str) -> CheckpointError:
        """Return an error about this call; reason: its predicate."""
        return refusal(self.kind, self.name, reason)

    def read_all(self) -> None:
        """Mark all arguments as read, as for a call that is refused anyway."""
        self._read.update(self._arguments)

    def check_read(self) -> None:
        """Raise CheckpointError if an argument that matters was not read."""
        for name, argument in self._arguments.items():
            is_off = argument is None or argument is False
            if not is_off and name not in self._read | _IMMATERIAL:
                raise self.refusal(f"has the argument {quoted(name)}, which is not supported")

    def argument(self, name: str) -> ArgumentValue:
        """Return an argument of any kind that is supported."""
        self._read.add(name)
        argument = self._arguments.get(name)
        if isinstance(argument, UnsupportedArgument):
            raise self.refusal(f"has an argument {name} of a kind that is not supported")
        return argument

    def tensor(self, name: str) -> str:
        """Return the name of a tensor."""
        argument = self.argument(name)
        if not isinstance(argument, ValueName):
            raise self.refusal(f"has no tensor for {name}")
        return argument.name

    def optional(self, name: str) -> str:
        """Return the name of a tensor; empty if it is left out."""
        return "" if self.argument(name) is None else self.tensor(name)

    def number(self, name: str, usual: float | None = None) -> float:
        """Return a constant number."""
        argument = self.argument(name)
        argument = usual if argument is None else argument
        if isinstance(argument, bool) or not isinstance(argument, int | float):
            raise self.refusal(f"has no number for {name}")
        return argument

    def flag(self, name: str, *, usual: bool = False) -> bool:
        """Return whether an argument is true."""
        argument = self.argument(name)
        return usual if argument is None else argument is True

    def text(self, name: str, usual: str) -> str:
        """Return an argument that is text."""
        argument = self.argument(name)
        return argument if isinstance(argument, str) else usual

    def several(self, name: str) -> tuple[int | float | ValueName, ...]:
        """Return numbers, of which some may depend on the patch, or tensors; a single one as one.

        Empty if they are left out.
        """
        match self.argument(name):
            case None:
                return ()
            case tuple() as items:
                return items
            case bool() | str() | UnsupportedArgument():
                raise self.refusal(f"has no numbers for {name}")
            case one:
                return (one,)

    def integers(self, name: str, *usual: int) -> tuple[int, ...]:
        """Return constant whole numbers."""
        items = self.several(name)
        found = tuple(one for one in items if isinstance(one, int))
        if len(found) != len(items):
            raise self.refusal(f"has other numbers for {name} than whole ones that are known")
        return found or usual

    def integer(self, name: str, *usual: int) -> int:
        """Return a constant whole number."""
        found = self.integers(name, *usual)
        if len(found) != 1:
            raise self.refusal(f"has no single number for {name}")
        return found[0]

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes along which a layer reads around each voxel: D, H and W, or those of slices."""
        return (2, 3) if "2d" in self.kind else (2, 3, 4)

    def along_axes(self, name: str, usual: int = 0) -> tuple[int, ...]:
        """Return constant numbers along the axes; a single one applies to all."""
        found = self.integers(name, usual)
        return found * len(self.axes) if len(found) == 1 else found


def kind_of(node: ProgramNode) -> str:
    """Return an operator's name without its overload, such as aten.conv3d."""
    name = node.target[:80].removeprefix(_NAMESPACE)
    return ".".join(name.split(".")[:2])


def _results(node: ProgramNode) -> Iterator[str]:
    """Yield the names of the results of a node; empty for those that are no values."""
    for output in node.outputs:
        argument = _plain_value(output)
        for one in argument if isinstance(argument, tuple) else (argument,):
            yield one.name if isinstance(one, ValueName) else ""


class OperatorWriter:
    """ONNX operators in the order of the calls that they state.

    metas: descriptions of tensors by name. tensors: constants, which calls add to. operators: so
    far.
    """

    def __init__(self, metas: Mapping[str, TensorMeta], tensors: dict[str, Array]) -> None:
        self.tensors = tensors
        self.operators: list[Operator] = []
        self._metas = metas
        self._count = 0

    def result(self, call: Call, kind: str, *inputs: str, **attributes: Attribute) -> None:
        """Write the operator whose outputs are the call's."""
        self._write(call, kind, inputs, call.outputs, attributes)

    def step(self, call: Call, kind: str, *inputs: str, **attributes: Attribute) -> str:
        """Write an operator of several that state a call; return the name of its output."""
        name = self._new_name(call)
        self._write(call, kind, inputs, (name,), attributes)
        return name

    def constant(self, call: Call, array: Array) -> str:
        """Add a constant; return its name."""
        name = self._new_name(call)
        self.tensors[name] = array
        return name

    def operand(self, call: Call, name: str) -> str:
        """Return the name of an argument that is a tensor or a number."""
        argument = call.argument(name)
        if isinstance(argument, ValueName):
            return argument.name
        return self.constant(call, np.array(call.number(name), np.float32))

    def sizes(self, call: Call, items: Sequence[int | float | ValueName]) -> str:
        """Return the name of a vector of whole numbers, of which some may depend on the patch."""
        parts = [
            one.name
            if isinstance(one, ValueName)
            else self.constant(call, np.array([one], np.int64))
            for one in items
        ]
        return self.step(call, "Concat", *parts, axis=0) if parts else self.empty(call)

    def empty(self, call: Call) -> str:
        """Return the name of a vector without numbers."""
        return self.constant(call, np.array([], np.int64))

    def rank(self, call: Call, name: str) -> int:
        """Return the number of axes of a tensor, as the file describes it."""
        return len(self._meta(call, name).sizes)

    def extent(self, call: Call, name: str, axis: int) -> int:
        """Return an extent of a tensor, which must be known, as the file describes it."""
        sizes = self._meta(call, name).sizes
        found = sizes[axis].as_int if -len(sizes) <= axis < len(sizes) else None
        if found is None:
            raise call.refusal("works on an axis whose extent the file does not state")
        return found

    def _meta(self, call: Call, name: str) -> TensorMeta:
        if name not in self._metas:
            raise call.refusal(f"reads {quoted(name)}, which the file does not describe")
        return self._metas[name]

    def _new_name(self, call: Call) -> str:
        self._count += 1
        return f"{call.name}:{self._count}"

    def _write(
        self,
        call: Call,
        kind: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        attributes: Mapping[str, Attribute],
    ) -> None:
        self.operators.append(Operator(kind, call.name, inputs, outputs, attributes, call.kind))
