"""What the few names in an honest PyTorch checkpoint stand for."""

from collections.abc import Callable
from typing import cast

from ...errors import CheckpointError, quoted
from .dangerous_names import LONGEST_NAME, refuse_call_of_found, refuse_dangerous
from .pickles import Global, Inert
from .tensors import ELEMENT_BYTES, MOST_AXES, Storage, StoredTensor

_STORAGE_ELEMENTS = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}
_STORAGE_MODULES = {"torch", "torch.cuda", "torch.storage"}


def storage_element(kind: object) -> str:
    """Element type of a typed storage; bytes for an untyped one."""
    if not isinstance(kind, Global):
        raise _malformed("storage")
    element = _STORAGE_ELEMENTS.get(kind.name) if kind.module in _STORAGE_MODULES else None
    if element is None:
        raise CheckpointError(
            f"The checkpoint stores numbers as {quoted(str(kind))}, which is not supported; "
            "save a float32 state_dict instead."
        )
    return element


class TypedStorage:
    """A storage together with the element type that its pickled class names."""

    __slots__ = ("element", "storage")

    def __init__(self, element: str, storage: Storage) -> None:
        self.element = element
        self.storage = storage


def construct(maker: Global | Inert, arguments: tuple[object, ...]) -> object:
    """The stand-in for a call that a checkpoint needs, or None where it is not needed.

    Raises CheckpointError for a call of what a lookup found.
    """
    if isinstance(maker, Inert):
        refuse_call_of_found(maker.name)
        return None
    known = _CONSTRUCTORS.get(str(maker))
    return known(arguments) if known else None


def items_of(value: object) -> tuple[object, ...]:
    """The items of a tuple, and none of anything else."""
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()


def _tensor(arguments: tuple[object, ...]) -> StoredTensor:
    match arguments:
        case [TypedStorage() as typed, int(offset), shape, stride, *_]:
            extents, steps = _integers(shape), _integers(stride)
            return StoredTensor(typed.element, typed.storage, offset, extents, steps)
        case _:
            raise _malformed("tensor")


def _tensor_of_type(arguments: tuple[object, ...]) -> StoredTensor:
    """A tensor over untyped bytes; the seventh argument names its element type."""
    match arguments:
        case [TypedStorage() as typed, _, _, _, _, _, Global(module="torch", name=element), *_]:
            if element not in ELEMENT_BYTES:
                raise CheckpointError(
                    f"The checkpoint stores a tensor as {quoted(element)}, which is not "
                    "supported; save a float32 state_dict instead."
                )
            return _tensor((TypedStorage(element, typed.storage), *arguments[1:4]))
        case _:
            raise _malformed("tensor")


def _parameter(arguments: tuple[object, ...]) -> StoredTensor | Inert:
    match arguments:
        case [StoredTensor() | Inert() as tensor, *_]:
            return tensor
        case _:
            raise _malformed("parameter")


def _tensor_with_attributes(arguments: tuple[object, ...]) -> object:
    match arguments:
        case [Global() as maker, _, inner, *_]:
            return construct(maker, items_of(inner))
        case _:
            raise _malformed("tensor")


def _attribute(arguments: tuple[object, ...]) -> object:
    """A class within a class, an enumeration's member: once more a name."""
    match arguments:
        case [Global() as owner, str(name), *_]:
            found = Global(owner.module, f"{owner.name}.{name[: LONGEST_NAME + 1]}")
            refuse_dangerous(found)
            return found
        case _:
            return None


def _dictionary(arguments: tuple[object, ...]) -> dict[str, object]:
    found: dict[str, object] = {}
    if len(arguments) == 1 and isinstance(arguments[0], list):
        pairs = cast("list[object]", arguments[0])
        for pair in pairs:
            items = cast("list[object]", pair) if isinstance(pair, list) else items_of(pair)
            if len(items) == 2 and isinstance(items[0], str):
                found[items[0]] = items[1]
        pairs.clear()  # or a few bytes could ask for the same long list over and over
    return found


def _size(arguments: tuple[object, ...]) -> tuple[object, ...]:
    return items_of(arguments[0]) if arguments else ()


def _integers(value: object) -> tuple[int, ...]:
    items = items_of(value)[: MOST_AXES + 1]
    numbers = tuple(item for item in items if isinstance(item, int))
    if not isinstance(value, tuple) or len(numbers) != len(items):
        raise _malformed("tensor")
    return numbers


def _malformed(what: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint describes a {what} that makes no sense; it is damaged.")


_CONSTRUCTORS: dict[str, Callable[[tuple[object, ...]], object]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_type,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _tensor_with_attributes,
    "collections.OrderedDict": _dictionary,
    "collections.defaultdict": _dictionary,
    "torch.Size": _size,
    "builtins.getattr": _attribute,
    "__builtin__.getattr": _attribute,
}
