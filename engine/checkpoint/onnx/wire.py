"""How much an ONNX file is, found in its bytes before they are parsed.

A few bytes of a protocol buffer can become a hundred times as many once parsed; counting what
there is to parse keeps a hostile file from taking the memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from ...errors import CheckpointError, quoted

Value = TypeVar("Value")

_Message: TypeAlias = Mapping[int, "_Message | None"]

_TENSOR: dict[int, "_Message | None"] = {4: None, 9: None, 10: None}
_ATTRIBUTE: dict[int, "_Message | None"] = {5: _TENSOR, 7: None, 8: None}
_NODE: dict[int, "_Message | None"] = {5: _ATTRIBUTE}
_GRAPH: dict[int, "_Message | None"] = {1: _NODE, 5: _TENSOR}
_MODEL: dict[int, "_Message | None"] = {7: _GRAPH}
"""Messages by the numbers of onnx.proto that hold tensors; None: numbers, one after another."""

MOST_FIELDS = 500_000
MOST_BYTES = 16 << 20
"""Of all that is not numbers of tensors."""


def check_size(data: bytes) -> None:
    """Raise CheckpointError if a file is no protocol buffer, or if its graph is endless."""
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


def once(what: str, pairs: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """Values by name; raises CheckpointError for a name that comes twice, as either may be meant.

    what: such as "tensors", for the error.
    """
    found: dict[str, Value] = {}
    for name, value in pairs:
        if name in found:
            raise CheckpointError(
                f"The ONNX file holds two {what} named {quoted(name)}; export it again."
            )
        found[name] = value
    return found


def _fields(view: memoryview, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Number of each field of a message, and where its content starts and stops."""
    while at < stop:
        key, at = _number(view, at, stop)
        length = 0
        match key & 7:
            case 0:
                _, end = _number(view, at, stop)
                length = end - at
            case 1:
                length = 8
            case 2:
                length, at = _number(view, at, stop)
            case 5:
                length = 4
            case _:
                raise damaged()
        if length > stop - at:
            raise damaged()
        yield key >> 3, at, at + length
        at += length


def _number(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise damaged()


def damaged() -> CheckpointError:
    """The error of bytes that make no sense."""
    return CheckpointError("The ONNX file is damaged or no ONNX file; export it again.")
