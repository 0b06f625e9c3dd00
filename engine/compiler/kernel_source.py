"""Argument structures and constants of the kernels, read from their CUDA sources."""

import ast
import ctypes
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "cuda" / "kernels"
"""Folder of the .cu files and their headers."""

_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "unsigned long long": ctypes.c_ulonglong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "Index": ctypes.c_longlong,
}
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left // right,  # as C++ divides what is not negative
}
_NAME = r"\w+(?:\[\d+\])?"
_FIELDS = re.compile(rf"(?:const )?(\w+(?: \w+)*?)(\*?) ({_NAME}(?:, {_NAME})*);")
_CONSTANTS = re.compile(r"^(?:constexpr int|enum \w+ {) ([^;}]*?)(?: })?;", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


class KernelSourceError(Exception):
    """A source that this module cannot read; its text names the file and the line."""


@cache
def structure(file: str, name: str, *, in_blocks: bool = False) -> type[ctypes.Structure]:
    """Return the struct `name` of a .cu or .cuh file, or of a header that it includes.

    Arrays and nested structures take tuples. in_blocks: whether it is compiled with -DIN_BLOCKS.
    Raises KernelSourceError for an unknown type or layout.
    """
    for candidate in _with_headers(file):
        before, head, _ = _text(candidate).partition(f"\nstruct {name} {{\n")
        if head:
            fields = _fields(candidate, len(before) + len(head), in_blocks)
            return _class(candidate, name, tuple(fields))
    raise KernelSourceError(f"{file}: there is no struct {name}")


def size_of(file: str, name: str) -> int:
    """Return the bytes of a struct of a .cu or .cuh file."""
    return ctypes.sizeof(structure(file, name))


def most_of(file: str, name: str, field: str) -> int:
    """Return how many elements an array in a struct has."""
    return len(getattr(structure(file, name)(), field))


@cache
def _class(_file: str, name: str, fields: tuple[tuple[str, type], ...]) -> type[ctypes.Structure]:
    """Return one class for a struct that is the same with and without -DIN_BLOCKS."""
    return type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})


def _fields(file: str, begin: int, in_blocks: bool) -> Iterator[tuple[str, type]]:
    """Yield names and types up to the struct's first function, or its end."""
    is_read, text = [True], _text(file)
    body = text[begin : text.index("\n};", begin - 1)]
    for number, whole in enumerate(body.split("\n"), text.count("\n", 0, begin)):
        line = whole.partition("//")[0].strip()
        if line.startswith("__device__"):
            return
        if line == "#ifdef IN_BLOCKS":
            is_read.append(in_blocks)
        elif line == "#else" and len(is_read) > 1:
            is_read[-1] = not is_read[-1]
        elif line == "#endif" and len(is_read) > 1:
            is_read.pop()
        elif line and all(is_read):
            if not (found := _FIELDS.fullmatch(line)):
                raise KernelSourceError(f"{file}:{number}: '{line}' declares no known field")
            kind = ctypes.c_void_p if found[2] else _type(file, number, found[1], in_blocks)
            for field in found[3].split(", "):
                label, _, count = field.rstrip("]").partition("[")
                yield label, kind * int(count) if count else kind


def _type(file: str, number: int, name: str, in_blocks: bool) -> Any:
    if name in _TYPES:
        return _TYPES[name]
    try:
        return structure(file, name, in_blocks=in_blocks)
    except KernelSourceError as error:
        raise KernelSourceError(f"{file}:{number}: unknown type {name} ({error})") from error


class _Constants(dict[str, int]):
    """Values by name, computed when first looked up."""

    def __init__(self, file: str, expressions: Mapping[str, str]) -> None:
        super().__init__()
        self._file, self._expressions = file, expressions

    def __missing__(self, name: str) -> int:
        try:
            self[name] = self._value(ast.parse(self._expressions[name], mode="eval").body)
        except (KeyError, SyntaxError, KernelSourceError) as error:
            text = f"{self._file}: there is no integer constant {name}"
            raise KernelSourceError(text) from error
        return self[name]

    def _value(self, tree: ast.expr) -> int:
        match tree:
            case ast.Constant(int() as value):
                return value
            case ast.Name(name):
                return self[name]
            case ast.BinOp(left, kind, right) if type(kind) in _OPERATIONS:
                return _OPERATIONS[type(kind)](self._value(left), self._value(right))
            case _:
                raise KernelSourceError("it contains more than integers")


@cache
def constants(file: str) -> Mapping[str, int]:
    """Return the file's own `constexpr int`s and enumerators with values, each on one line.

    One that depends on more than whole numbers and other constants of the file raises
    KernelSourceError when it is looked up.
    """
    declared = (
        each for line in _CONSTANTS.findall(_text(file)) for each in re.split(r",\s+", line)
    )
    pairs = (each.partition(" = ") for each in declared)
    return _Constants(file, {name: expression for name, _, expression in pairs})


@cache
def _with_headers(file: str) -> tuple[str, ...]:
    """Return the file and all headers that it includes, each once."""
    found = {file: None}
    for header in _INCLUDE.findall(_text(file)):
        found |= dict.fromkeys(_with_headers(header))
    return tuple(found)


@cache
def _text(file: str) -> str:
    """Return a file's text, in which each line begins after a newline."""
    return "\n" + (FOLDER / file).read_text(encoding="utf-8")
