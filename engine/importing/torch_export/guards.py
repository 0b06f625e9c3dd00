"""Conditions on the extents of a patch under which an exported program is what its module computes.

torch.export follows one branch of code that depends on the extents, and states the condition under
which this is the right one: as a guard since PyTorch 2.9, before as an interval of each extent.
Guards are arithmetic on extents, which is read by its syntax tree; no code is executed.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, trunc
from typing import Any, TypeAlias

from ...network.layers import Triple
from ..operators.operator_graph import Condition

_Number: TypeAlias = int | float
_Term: TypeAlias = Callable[[Triple], _Number]

_LONGEST, _MOST = 4000, 2000
_UNBOUNDED = 1 << 31
"""Extents from which on an interval is open."""
_AXES = {"2": "D", "3": "H", "4": "W"}
_SIZE = re.compile(r"L\[[^\]]*\](?:\[\d+\])?\.size\(\)\[(\d)\]")

_ARITHMETIC: Mapping[type[ast.operator], Callable[[_Number, _Number], _Number]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
    ast.Mod: lambda a, b: a % b,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "int": int,
    "float": float,
    "torch.sym_float": float,
    "math.trunc": trunc,
    "math.floor": floor,
    "math.ceil": ceil,
}


class _UnknownFormError(Exception):
    """A guard of a form that is not known."""


def guard_conditions(guards: Sequence[str], exported: Triple | None) -> tuple[Condition, ...]:
    """Return the conditions that guards state, without those of the batch and the channels.

    exported: extents for which the program was exported, if it states them: the only ones for which
    a guard of an unknown form is known to hold.
    """
    of_extents = (one for one in guards[:_MOST] if {*_SIZE.findall(one)} & _AXES.keys())
    texts = dict.fromkeys(_shown(guard) for guard in of_extents)
    return tuple(Condition(text, _read(text) or _only(exported)) for text in texts)


def interval_conditions(
    names: Sequence[str], largest: Mapping[str, int | None]
) -> Iterator[Condition]:
    """Yield the conditions that the names of D, H and W and their intervals state.

    names: expressions, of which equal ones mean equal extents. largest: of an extent, by name.
    """
    for at, name in enumerate(names):
        letter, end = "DHW"[at], largest.get(name)
        if end is not None and end < _UNBOUNDED:
            yield Condition(f"{letter} <= {end}", lambda e, at=at, end=end: e[at] <= end)
        for other in range(at):
            if names[other] == name:
                text = f"{'DHW'[other]} == {letter}"
                yield Condition(text, lambda e, at=at, other=other: e[at] == e[other])


def _only(exported: Triple | None) -> Callable[[Triple], bool]:
    return lambda extents: exported in (None, extents)


def _shown(guard: str) -> str:
    """Return a guard with D, H and W for the extents."""
    return _SIZE.sub(lambda found: _AXES.get(found[1], found[0]), guard[:_LONGEST])


def _read(text: str) -> Callable[[Triple], bool] | None:
    """Return a guard as a function of the extents; None for a form that is not known."""
    try:
        tree = ast.parse(text, mode="eval").body
        term = _term(tree)
    except (_UnknownFormError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    def holds(extents: Triple) -> bool:
        try:
            return bool(term(extents))
        except (ArithmeticError, ValueError, TypeError):
            return False

    return holds


def _term(node: ast.expr) -> _Term:
    match node:
        case ast.Name(id=("D" | "H" | "W") as letter):
            at = "DHW".index(letter)
            return lambda extents: extents[at]
        case ast.Constant(value=int() | float() as number):
            return lambda _: number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            turned = _term(operand)
            return lambda extents: -turned(extents)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            denied = _term(operand)
            return lambda extents: not denied(extents)
        case ast.BinOp(left, op, right) if found := _ARITHMETIC.get(type(op)):
            first, second = _term(left), _term(right)
            return lambda extents: found(first(extents), second(extents))
        case ast.Compare(left, [op], [right]) if compared := _COMPARISONS.get(type(op)):
            first, second = _term(left), _term(right)
            return lambda extents: compared(first(extents), second(extents))
        case ast.BoolOp(op, values):
            joined = all if isinstance(op, ast.And) else any
            terms = _terms(values)
            return lambda extents: joined(term(extents) for term in terms)
        case ast.Call(func, arguments, []) if called := _FUNCTIONS.get(ast.unparse(func)):
            inputs = _terms(arguments)
            return lambda extents: called(*(term(extents) for term in inputs))
        case _:
            raise _UnknownFormError


def _terms(nodes: Iterable[ast.expr]) -> list[_Term]:
    return [_term(node) for node in nodes]
