"""PyTorch's two file formats, their tensors, and the few objects of an honest checkpoint.

The formats are a zip archive of one pickle and one entry per storage and, before PyTorch 1.6, five
pickles in a row followed by the storages. A tensor is a strided view of a storage; it is converted
to float32 on demand.
"""

import struct
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from pathlib import PurePosixPath
from typing import cast

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError, quoted
from ..network.graph import LARGEST_WEIGHTS
from ..network.layers import FloatArray
from .foreign_files import FLAT_PROGRAM, foreign_archive
from .pickles import LONGEST_NAME, Global, Inert, PickleReader, check_call, check_harmless

ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element of the types in checkpoints; only floating-point types are read."""

# NumPy has no bfloat16; its bits are the upper half of a float32.
_READ_AS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
MOST_AXES = 8

_LARGEST_EMPTY = 1 << 31
_MOST_SHARING = 32
"""Limit of float32 bytes per stored byte: float16 doubles them, and tied layers are copied."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that tensors share, read on demand.

    size: in bytes. read: returns them.
    """

    size: int
    read: Callable[[], memoryview] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint; offset and stride count elements, as in PyTorch.

    element: type of its elements. storage: that holds them. shape: extents, outermost first.

    Raises CheckpointError if any element would lie outside the storage.
    """

    element: str
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.stride) or len(self.shape) > MOST_AXES:
            raise CheckpointError("A tensor in the checkpoint has an invalid shape.")
        if min((self.offset, *self.shape, *self.stride)) < 0:
            raise CheckpointError("A tensor in the checkpoint has a negative extent or stride.")
        available = self.storage.size // ELEMENT_BYTES[self.element]
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        if self.size and self.offset + reach < available < self.size:
            raise CheckpointError(
                "A tensor in the checkpoint repeats the same stored numbers, as expand does; save "
                "it with torch.save after clone()."
            )
        if self.size > available or (self.size and self.offset + reach >= available):
            raise CheckpointError(
                "A tensor in the checkpoint reaches beyond its storage; the file is damaged."
            )
        if not self.size and prod(extent or 1 for extent in self.shape) > _LARGEST_EMPTY:
            raise CheckpointError("An empty tensor in the checkpoint has an invalid shape.")

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def read(self, name: str) -> FloatArray:
        """Return the values as a new float32 array; `name` is for error messages."""
        if self.element not in _READ_AS:
            raise CheckpointError(
                f"{name} is stored as {self.element}; weights must be floating-point numbers."
            )
        view = self._view()
        if self.element == "bfloat16":
            view = (np.array(view, np.uint32, order="C") << np.uint32(16)).view(np.float32)
        return finite_float32(view, name)

    def _view(self) -> npt.NDArray[np.generic]:
        if not self.size:
            return np.empty(self.shape, _READ_AS[self.element])
        width = ELEMENT_BYTES[self.element]
        flat = np.frombuffer(
            self.storage.read(), _READ_AS[self.element], self.storage.size // width
        )
        # Strides of axes of length 1 are arbitrary, as they are never used.
        steps = [
            step * width if extent > 1 else 0
            for extent, step in zip(self.shape, self.stride, strict=True)
        ]
        return np.lib.stride_tricks.as_strided(
            flat[self.offset :], self.shape, steps, writeable=False
        )


def check_amount(tensors: Iterable[StoredTensor]) -> None:
    """Raise CheckpointError if the tensors would take too much memory as float32.

    Many may share one storage, so their total size is not bounded by the size of the file.
    """
    tensors = tuple(tensors)
    wanted = sum(tensor.size for tensor in tensors) * np.dtype(np.float32).itemsize
    if wanted > LARGEST_WEIGHTS:
        raise CheckpointError(
            f"The generator's weights would take {wanted / 2**30:.1f} GiB in float32, but a model "
            f"may have at most {LARGEST_WEIGHTS >> 30} GiB."
        )
    storages = {id(tensor.storage): tensor.storage.size for tensor in tensors}
    if wanted > _MOST_SHARING * sum(storages.values()):
        raise CheckpointError(
            f"The generator's weights would take {wanted / 2**20:.0f} MiB in float32, but share "
            f"{sum(storages.values()) / 2**20:.1f} MiB in the file, which no training does. Save "
            "them with torch.save(model.state_dict(), 'generator.pth')."
        )


def finite_float32(array: npt.NDArray[np.generic], name: str) -> FloatArray:
    """Return a float32 copy; raises CheckpointError for infinity, NaN and overflow."""
    with np.errstate(over="ignore"):
        copy = np.array(array, np.float32, order="C")
    if not np.isfinite(copy).all():
        raise CheckpointError(
            f"{name} contains numbers that are not finite: the training run diverged; use an "
            "earlier checkpoint."
        )
    return copy


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
    """Return the element type of a typed storage; uint8 for an untyped one."""
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
    """A storage with the element type of its pickled class."""

    __slots__ = ("element", "storage")

    def __init__(self, element: str, storage: Storage) -> None:
        self.element = element
        self.storage = storage


def construct(maker: Global | Inert, arguments: tuple[object, ...]) -> object:
    """Return the value of a call that a checkpoint needs, or None if it is not needed.

    Raises CheckpointError for a call of a looked-up object.
    """
    if isinstance(maker, Inert):
        check_call(maker.name)
        return None
    known = _CONSTRUCTORS.get(str(maker))
    return known(arguments) if known else None


def items_of(value: object) -> tuple[object, ...]:
    """Return the items of a tuple; nothing for any other value."""
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()


def _tensor(arguments: tuple[object, ...]) -> StoredTensor:
    match arguments:
        case [TypedStorage() as typed, int(offset), shape, stride, *_]:
            extents, steps = _integers(shape), _integers(stride)
            return StoredTensor(typed.element, typed.storage, offset, extents, steps)
        case _:
            raise _malformed("tensor")


def _tensor_of_type(arguments: tuple[object, ...]) -> StoredTensor:
    """Return a tensor over untyped bytes; the seventh argument names its element type."""
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
    """Return a nested class or a member of an enumeration, again as a name."""
    match arguments:
        case [Global() as owner, str(name), *_]:
            found = Global(owner.module, f"{owner.name}.{name[: LONGEST_NAME + 1]}")
            check_harmless(found)
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
        pairs.clear()  # otherwise a few bytes could request the same long list many times
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
    return CheckpointError(f"The checkpoint describes an invalid {what}; it is damaged.")


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


ZIP_MAGIC = b"PK\x03\x04"
_LARGEST_PICKLE = 64 << 20
_CHUNK = 1 << 20
_NAME_LENGTH, _LOCAL_HEADER = 26, 30  # offsets of the lengths, and size, of an entry's own header
ZIP_FAULTS = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    IndexError,
    struct.error,
)
"""Errors that zipfile raises for damaged archives."""


class Archive:
    """Entries of a checked archive, by their names below its single top folder.

    data: bytes of the file. is_program: whether torch.export wrote it, before PyTorch 2.8 without
    such a folder. Raises CheckpointError for archives of another kind and for damaged ones.
    """

    def __init__(self, data: bytes, *, is_program: bool = False) -> None:
        try:
            self._file = zipfile.ZipFile(BytesIO(data))
            entries = self._file.infolist()
        except ZIP_FAULTS as error:
            raise _damaged(str(error)) from error
        names = [entry.filename for entry in entries]
        if not is_program and (what := foreign_archive(names)):
            raise CheckpointError(f"This is {what}.")
        self._data = memoryview(data)
        self._entries = _by_name(entries, len(data), is_flat=is_program and FLAT_PROGRAM in names)
        self._checked: dict[str, memoryview] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries."""
        return tuple(self._entries)

    def size(self, name: str) -> int:
        """Return an entry's size in bytes."""
        return self._entries[name].file_size

    def read(self, name: str) -> memoryview:
        """Return an entry's bytes without a copy, checked once against the archive's checksum."""
        if name not in self._checked:
            self._check(name)
            self._checked[name] = self._content(name)
        return self._checked[name]

    def _check(self, name: str) -> None:
        entry = self._entries[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise CheckpointError(
                f"The checkpoint's entry {quoted(name)} is compressed, which PyTorch never does; "
                "load and save it again with torch."
            )
        try:
            with self._file.open(entry) as stream:
                while stream.read(_CHUNK):
                    pass
        except ZIP_FAULTS as error:
            raise _damaged(f"{quoted(name)}: {error}") from error

    def _content(self, name: str) -> memoryview:
        header = self._entries[name].header_offset
        lengths = self._data[header + _NAME_LENGTH : header + _LOCAL_HEADER]
        start = header + _LOCAL_HEADER + sum(struct.unpack("<HH", lengths))
        content = self._data[start : start + self.size(name)]
        if len(content) != self.size(name):
            raise _damaged(f"{quoted(name)} is cut short")
        return content


def read_archive(data: bytes) -> tuple[object, list[Inert]]:
    """Return the pickled value of a zip checkpoint, and the placeholders in it.

    Raises CheckpointError for TorchScript, for archives of another kind and for damaged ones.
    """
    archive = Archive(data)
    if "data.pkl" not in archive:
        raise CheckpointError(
            "This zip archive has no data.pkl, so it is not a PyTorch checkpoint; unpack it and "
            "give the checkpoint in it."
        )
    if "byteorder" in archive and bytes(archive.read("byteorder")) != b"little":
        raise CheckpointError(
            "The checkpoint was written on a big-endian machine; save it again on another."
        )
    if archive.size("data.pkl") > _LARGEST_PICKLE:
        raise _damaged(f"its pickle is larger than {_LARGEST_PICKLE >> 20} MiB")

    storages: dict[str, Storage] = {}

    def fetch(identity: object) -> object:
        match items_of(identity):
            case ["storage", kind, str(key), str(), int(count), *_]:
                element = storage_element(kind)
                if key not in storages:
                    storages[key] = _storage(archive, key)
                return _typed(storages[key], key, element, count)
            case _:
                raise _damaged("it refers to something that is not a storage")

    reader = PickleReader(construct, fetch, check_harmless)
    return reader.read(BytesIO(archive.read("data.pkl"))), reader.inert


def _storage(archive: Archive, key: str) -> Storage:
    name = f"data/{key}"
    if name not in archive:
        raise _damaged(f"{quoted(name)} is missing")
    return Storage(archive.size(name), lambda: archive.read(name))


def _typed(storage: Storage, key: str, element: str, count: int) -> TypedStorage:
    size = count * ELEMENT_BYTES[element]
    if storage.size != size:
        raise _damaged(f"{quoted(f'data/{key}')} has {storage.size} bytes instead of {size}")
    return TypedStorage(element, storage)


def _by_name(
    entries: list[zipfile.ZipInfo], length: int, *, is_flat: bool
) -> dict[str, zipfile.ZipInfo]:
    """Return entries by name. is_flat: whether they lie in no top folder."""
    if not entries:
        raise _damaged("it is empty")
    found: dict[str, zipfile.ZipInfo] = {}
    top = entries[0].filename.split("/", 1)[0]
    for entry in entries:
        path = PurePosixPath(entry.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in entry.filename:
            raise CheckpointError(
                f"The checkpoint has an entry {quoted(entry.filename)} that points outside it; it "
                "is rejected."
            )
        if entry.header_offset + entry.compress_size > length:
            raise _damaged(f"{quoted(entry.filename)} declares more bytes than the file has")
        folder, _, name = entry.filename.partition("/")
        if is_flat:
            name = entry.filename
        elif folder != top:
            raise CheckpointError(
                "This zip archive has several top folders, so it is not a PyTorch checkpoint; "
                "unpack it and give the checkpoint in it."
            )
        if name in found:
            raise _damaged(f"{quoted(entry.filename)} occurs twice")
        found[name] = entry
    return found


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint's archive is damaged ({why}); copy it again.")


_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_LENGTH_BYTES = 8


class _Storages:
    """Storages by key: declared by the pickle, located only after it."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._promised: dict[str, tuple[str, int, Storage]] = {}
        self._slices: dict[str, slice] = {}

    def fetch(self, identity: object) -> object:
        """Return the value of a persistent id of the pickle."""
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
        """Locate the storages in the bytes from `start` on, in the order of the keys."""
        for key in keys:
            if not isinstance(key, str) or key not in self._promised or key in self._slices:
                raise _damaged("its list of storages is invalid")
            element, count, _ = self._promised[key]
            first = start + _LENGTH_BYTES
            if int.from_bytes(self._data[start:first], "little") != count:
                raise _damaged(f"storage {quoted(key)} differs in length from its declaration")
            start = first + count * ELEMENT_BYTES[element]
            if start > len(self._data):
                raise _damaged("it is cut short")
            self._slices[key] = slice(first, start)
        if missing := self._promised.keys() - self._slices.keys():
            raise _damaged(f"storage {quoted(min(missing))} is missing")

    def _promise(self, key: str, element: str, count: int) -> TypedStorage:
        if key not in self._promised:
            storage = Storage(count * ELEMENT_BYTES[element], lambda: self._data[self._slices[key]])
            self._promised[key] = element, count, storage
        *promised, storage = self._promised[key]
        if count < 0 or promised != [element, count]:
            raise _damaged(f"storage {quoted(key)} is described in two ways")
        return TypedStorage(element, storage)


def read_legacy(data: bytes) -> tuple[object, list[Inert]]:
    """Return the pickled value of a checkpoint in the old format, and the placeholders in it.

    Raises CheckpointError if the bytes are not such a checkpoint, or a damaged one.
    """
    stream = BytesIO(data)
    storages = _Storages(data)
    reader = PickleReader(construct, storages.fetch, check_harmless)
    if reader.read(stream) != _LEGACY_MAGIC or reader.read(stream) != _PROTOCOL:
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
