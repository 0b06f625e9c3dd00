"""Training checkpoints as plain data: read once, hashed, never executed."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import safetensors as _safetensors

from ...io.files.regular import read_regular
from ..errors import CheckpointError, naming, quoted
from .foreign_files import foreign_file, foreign_folder
from .pickles import LONGEST_NAME, Inert, is_pickle
from .torch_files import ELEMENT_BYTES, ZIP_MAGIC, Storage, StoredTensor, read_archive, read_legacy

_OPTION_FILES = ("train_opt.txt", "opt.txt", "test_opt.txt")
_LARGEST_OPTIONS = 1 << 20
_LONGEST_LINE = 1000
_LINE = re.compile(r"^\s*(\w+)\s*:\s*(.*?)\s*(?:\[default:.*)?$")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a training or test run.

    values: as text, by option. files: names of the files they were read from.
    """

    values: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[str, ...] = ()


def read_options(folder: Path) -> Options:
    """Read options from all known files in `folder`; an earlier file takes precedence."""
    values: dict[str, str] = {}
    files: list[str] = []
    for name in _OPTION_FILES:
        path = folder / name
        try:
            if not path.is_file() or path.stat().st_size > _LARGEST_OPTIONS:
                continue
            text = read_regular(path).decode(errors="replace")
        except OSError:
            continue  # options are optional evidence: an unreadable file counts as missing
        files.append(name)
        for line in text.splitlines():
            if len(line) <= _LONGEST_LINE and (match := _LINE.match(line)):
                values.setdefault(match[1], match[2])
    return Options(values, tuple(files))


safetensors: Any = _safetensors  # the package ships no types

Kind: TypeAlias = Literal["PyTorch zip", "PyTorch legacy", "safetensors"]
CheckpointEntry: TypeAlias = (
    StoredTensor | str | int | float | bool | Mapping[str, "CheckpointEntry"]
)

_LARGEST_FILE = 8 << 30
_LARGEST_HEADER = 100 << 20
_DEEPEST = 12
_MOST_ENTRIES = 200_000
_TOO_MANY_ENTRIES = (
    "The checkpoint nests its entries deeper or wider than any training state; save the generator "
    "alone."
)
_SAVE_WEIGHTS = "torch.save(model.state_dict(), 'generator.pth')"
_SAFETENSORS_ELEMENTS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Contents of a checkpoint file: nested mappings with tensors and plain values as leaves.

    path: of the file. sha256: of the file. kind: its format. contents: by the keys of the top
    level. set_aside: names of objects that were skipped; none was created or run. options: from the
    training run's options file in the same folder.
    """

    path: Path
    sha256: str
    kind: Kind
    contents: Mapping[str, CheckpointEntry] = field(repr=False)
    set_aside: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a .pth, .pt, .ckpt, .pth.tar or .safetensors file; its bytes, not its name, decide.

    Raises CheckpointError, which names what was rejected or is damaged.
    """
    data = file_bytes(path)
    with naming(path):
        kind, value, inert = _parsed(path.name, data)
        contents = _contents(value, inert)
    return Checkpoint(
        path,
        hashlib.sha256(data).hexdigest(),
        kind,
        contents,
        tuple(sorted({item.name for item in inert})),
        read_options(path.parent),
    )


def file_bytes(path: Path) -> bytes:
    """Return the contents of a file; raises CheckpointError if it can be no checkpoint."""
    try:
        if not path.exists():
            raise CheckpointError(f"{path} does not exist; check the name of the checkpoint.")
        if path.is_dir():
            raise CheckpointError(f"{path} is {foreign_folder(path)}.")
        if not path.is_file():
            raise CheckpointError(f"{path} is not a file; give the checkpoint file itself.")
        if path.stat().st_size > _LARGEST_FILE:
            raise CheckpointError(
                f"{path} is larger than {_LARGEST_FILE >> 30} GiB; save the generator alone with "
                f"{_SAVE_WEIGHTS}."
            )
        return read_regular(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


def _parsed(name: str, data: bytes) -> tuple[Kind, object, list[Inert]]:
    if what := foreign_file(name, data):
        raise CheckpointError(f"This is {what}.")
    if not data:
        raise CheckpointError("The file is empty; copy it again.")
    if data.startswith(ZIP_MAGIC):
        return "PyTorch zip", *read_archive(data)
    is_named = name.lower().endswith(".safetensors") and not is_pickle(data)
    has_header = data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= _LARGEST_HEADER
    if is_named or has_header:
        return "safetensors", _safetensors_entries(data), []
    if data[257:262] == b"ustar":
        raise CheckpointError(
            "This is a tar archive, as PyTorch before 0.1.10 wrote; "
            "load and save it again with a newer one, or unpack it."
        )
    return "PyTorch legacy", *read_legacy(data)


def _safetensors_entries(data: bytes) -> dict[str, object]:
    # Each tensor has an object in the header; the library would make them all.
    if data.count(b"{", 8, 8 + int.from_bytes(data[:8], "little")) > _MOST_ENTRIES:
        raise CheckpointError(_TOO_MANY_ENTRIES)
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"The safetensors file is damaged ({error}); copy it again."
        ) from error
    found: dict[str, object] = {}
    for name, entry in entries:
        element = _SAFETENSORS_ELEMENTS.get(entry["dtype"])
        if element is None:
            raise CheckpointError(
                f"{quoted(name)} is stored as {entry['dtype']}, which is not supported."
            )
        found[name] = _dense(element, tuple(entry["shape"]), memoryview(entry["data"]))
    return found


def _dense(element: str, shape: tuple[int, ...], content: memoryview) -> StoredTensor:
    stride: list[int] = []
    step = 1
    for extent in reversed(shape):
        stride.append(step)
        step *= extent
    size = step * ELEMENT_BYTES[element]
    return StoredTensor(element, Storage(size, lambda: content), 0, shape, tuple(reversed(stride)))


def _contents(value: object, inert: list[Inert]) -> Mapping[str, CheckpointEntry]:
    """Return the plain part of pickled data; rejects a file whose weights are inside objects."""
    tensors = 0
    entries = 0

    def plain(node: object, depth: int) -> CheckpointEntry | None:
        nonlocal tensors, entries
        entries += 1
        if entries > _MOST_ENTRIES or depth > _DEEPEST:
            raise CheckpointError(_TOO_MANY_ENTRIES)
        match node:
            case StoredTensor():
                tensors += 1
                return node
            case str() | int() | float():
                return node
            case dict():
                items = cast("dict[str, object]", node).items()
                read = ((key, plain(item, depth + 1)) for key, item in items)
                return {
                    key: item for key, item in read if item is not None and _is_of_use(key, item)
                }
            case list() | tuple():
                items = enumerate(cast("Sequence[object]", node))
                held = ((at, plain(item, depth + 1)) for at, item in items if _may_hold(item))
                return {str(at): item for at, item in held if item is not None} or None
            case _:
                return None

    contents = plain(value, 0)
    if tensors and isinstance(contents, Mapping):
        return contents
    if module := next((item for item in inert if item.is_module), None):
        raise CheckpointError(
            f"The file contains a pickled object of class {quoted(module.name)}; opening such "
            "a file would run its code. In the training code, load it with torch.load and export "
            "it (docs/torch-export.md) or, if it is a CycleGAN generator, run "
            f"{_SAVE_WEIGHTS}; import that."
        )
    named = f" It contains {quoted(inert[0].name)}." if inert else ""
    raise CheckpointError(
        f"The file contains no named weights.{named} Run {_SAVE_WEIGHTS} in the training code and "
        "import that file."
    )


def _may_hold(item: object) -> bool:
    """Return whether an item of a list may be or contain a tensor; numbers in lists are skipped."""
    return isinstance(item, StoredTensor | dict | list | tuple)


def _is_of_use(key: str, item: CheckpointEntry) -> bool:
    """Whether an entry may name a tensor or setting; raises CheckpointError for long names."""
    if len(key) <= LONGEST_NAME:
        return True
    if isinstance(item, StoredTensor) or (isinstance(item, Mapping) and item):
        raise CheckpointError(
            f"The checkpoint has an entry whose name has {len(key)} characters, {quoted(key)}, "
            f"more than any layer name. Load it and save the generator alone with {_SAVE_WEIGHTS}."
        )
    return False
