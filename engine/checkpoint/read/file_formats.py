"""PyTorch's two file formats: a zip of one pickle beside one entry for each storage; and, before
1.6, five pickles in a row, then the storages one after another.
"""

import struct
import zipfile
from io import BytesIO
from pathlib import PurePosixPath
from typing import cast

from ...errors import CheckpointError, quoted
from .dangerous_names import refuse_dangerous
from .pickles import Global, Inert, PickleReader
from .tensors import ELEMENT_BYTES, Storage
from .torch_objects import TypedStorage, construct, items_of, storage_element

ZIP_MAGIC = b"PK\x03\x04"
_LARGEST_PICKLE = 64 << 20
_CHUNK = 1 << 20
_NAME_LENGTH, _LOCAL_HEADER = 26, 30  # where an entry's own header tells its lengths, and ends
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
"""What zipfile lets out on damaged archives."""


class _Archive:
    """The entries of a checked archive, by their names below its one top folder."""

    def __init__(self, data: bytes) -> None:
        try:
            self._file = zipfile.ZipFile(BytesIO(data))
            entries = self._file.infolist()
        except ZIP_FAULTS as error:
            raise _damaged(str(error)) from error
        self._data = memoryview(data)
        self._entries = _by_name(entries, len(data))
        self._checked: dict[str, memoryview] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def size(self, name: str) -> int:
        return self._entries[name].file_size

    def read(self, name: str) -> memoryview:
        """An entry's bytes where they lie, checked once against the archive's own checksum."""
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
    """The pickled value of a zip checkpoint, and what was set aside.

    Raises CheckpointError for TorchScript, for archives of another kind and for damaged ones.
    """
    archive = _Archive(data)
    if "constants.pkl" in archive or any(name.startswith("code/") for name in archive.names):
        raise CheckpointError(
            "This is a TorchScript program, not a checkpoint; in the training code run "
            "torch.save(model.state_dict(), 'generator.pth') and import that file."
        )
    if "data.pkl" not in archive:
        raise CheckpointError(
            "This zip archive holds no data.pkl, so it is not a PyTorch checkpoint."
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

    reader = PickleReader(construct, fetch, refuse_dangerous)
    return reader.read(BytesIO(archive.read("data.pkl"))), reader.inert


def _storage(archive: _Archive, key: str) -> Storage:
    name = f"data/{key}"
    if name not in archive:
        raise _damaged(f"{quoted(name)} is missing")
    return Storage(archive.size(name), lambda: archive.read(name))


def _typed(storage: Storage, key: str, element: str, count: int) -> TypedStorage:
    size = count * ELEMENT_BYTES[element]
    if storage.size != size:
        raise _damaged(
            f"{quoted(f'data/{key}')} has {storage.size} bytes where {size} are promised"
        )
    return TypedStorage(element, storage)


def _by_name(entries: list[zipfile.ZipInfo], length: int) -> dict[str, zipfile.ZipInfo]:
    if not entries:
        raise _damaged("it is empty")
    found: dict[str, zipfile.ZipInfo] = {}
    top = entries[0].filename.split("/", 1)[0]
    for entry in entries:
        path = PurePosixPath(entry.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in entry.filename:
            raise CheckpointError(
                f"The checkpoint has an entry {quoted(entry.filename)} that points outside it; "
                "it is refused."
            )
        if entry.header_offset + entry.file_size > length:
            raise _damaged(f"{quoted(entry.filename)} promises more bytes than the file has")
        folder, _, name = entry.filename.partition("/")
        if folder != top:
            raise CheckpointError(
                "This zip archive has several top folders, so it is not a PyTorch checkpoint."
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
    """Storages by key: promised by the pickle, found only after it."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._promised: dict[str, tuple[str, int, Storage]] = {}
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
            element, count, _ = self._promised[key]
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
        if key not in self._promised:
            storage = Storage(count * ELEMENT_BYTES[element], lambda: self._data[self._places[key]])
            self._promised[key] = element, count, storage
        *promised, storage = self._promised[key]
        if count < 0 or promised != [element, count]:
            raise _damaged(f"storage {quoted(key)} is described in two ways")
        return TypedStorage(element, storage)


def read_legacy(data: bytes) -> tuple[object, list[Inert]]:
    """The pickled value of a checkpoint in the old format, and what was set aside.

    Raises CheckpointError if the bytes are not such a checkpoint, or a damaged one.
    """
    stream = BytesIO(data)
    storages = _Storages(data)
    reader = PickleReader(construct, storages.fetch, refuse_dangerous)
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
