"""PyTorch's format before 1.6: five pickles in a row, then the storages one after another."""

from io import BytesIO
from typing import cast

from .errors import CheckpointError
from .pickled import Global, Inert, PickleReader
from .tensors import ELEMENT_BYTES, Storage
from .torch_objects import (
    TypedStorage,
    construct,
    items_of,
    quoted,
    refuse_dangerous,
    storage_element,
)

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_LENGTH_BYTES = 8


class _Storages:
    """Storages by key: promised by the pickle, found only after it."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._promised: dict[str, tuple[str, int]] = {}
        self._places: dict[str, slice] = {}

    def fetch(self, identity: object) -> object:
        """What stands for a persistent id of the pickle."""
        match items_of(identity):
            case ["module", Global() as kind, *_]:
                return kind
            case ["storage", kind, str(key), str(), int(count), None]:
                return self._promise(key, storage_element(kind), count)
            case ["storage", *_]:
                raise CheckpointError(
                    "The checkpoint was written by PyTorch before 0.4; load and save it again "
                    "with a newer one."
                )
            case _:
                raise _damaged("it refers to something that is not a storage")

    def locate(self, keys: list[object], start: int) -> None:
        """Find each storage in the bytes from `start` on, in the order of the keys."""
        for key in keys:
            if not isinstance(key, str) or key not in self._promised or key in self._places:
                raise _damaged("its list of storages makes no sense")
            element, count = self._promised[key]
            first = start + _LENGTH_BYTES
            if int.from_bytes(self._data[start:first], "little") != count:
                raise _damaged(f"storage {quoted(key)} has another length than promised")
            start = first + count * ELEMENT_BYTES[element]
            if start > len(self._data):
                raise _damaged("it is cut short")
            self._places[key] = slice(first, start)
        if missing := self._promised.keys() - self._places.keys():
            raise _damaged(f"storage {quoted(min(missing))} is missing")

    def _promise(self, key: str, element: str, count: int) -> TypedStorage:
        if count < 0 or self._promised.setdefault(key, (element, count)) != (element, count):
            raise _damaged(f"storage {quoted(key)} is described in two ways")
        size = count * ELEMENT_BYTES[element]
        return TypedStorage(element, Storage(size, lambda: self._data[self._places[key]]))


def read_legacy(data: bytes) -> tuple[object, list[Inert]]:
    """The pickled value of a checkpoint in the old format, and what was set aside.

    Raises CheckpointError if the bytes are not such a checkpoint, or a damaged one.
    """
    stream = BytesIO(data)
    storages = _Storages(data)
    reader = PickleReader(construct, storages.fetch, refuse_dangerous)
    if reader.read(stream) != _MAGIC or reader.read(stream) != _PROTOCOL:
        raise CheckpointError(
            "This is a pickle, but not a PyTorch checkpoint; in the training code run "
            "torch.save(model.state_dict(), 'generator.pth') and import that file."
        )
    match reader.read(stream):
        case {"little_endian": False}:
            raise CheckpointError(
                "The checkpoint was written on a big-endian machine; "
                "save it again on a little-endian one."
            )
        case _:
            pass
    value = reader.read(stream)
    keys = reader.read(stream)
    if not isinstance(keys, list):
        raise _damaged("its list of storages is missing")
    storages.locate(cast("list[object]", keys), stream.tell())
    return value, reader.inert


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint is damaged: {why}.")
