"""Training checkpoints and reference pairs as plain data: read once, hashed, never executed."""

import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import safetensors as _safetensors

from ...io.files.regular import open_regular, read_regular
from ..errors import CheckpointError, ModelFileError, naming, quoted
from ..network.graph import times
from ..network.layers import FloatArray
from .foreign_files import foreign_file, foreign_folder
from .pickles import LONGEST_NAME, Inert
from .torch_files import (
    ELEMENT_BYTES,
    ZIP_FAULTS,
    ZIP_MAGIC,
    Storage,
    StoredTensor,
    read_archive,
    read_legacy,
)

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
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= _LARGEST_HEADER:
        return "safetensors", _safetensors_entries(data), []
    if data[257:262] == b"ustar":
        raise CheckpointError(
            "This is a tar archive, as PyTorch before 0.1.10 wrote; "
            "load and save it again with a newer one, or unpack it."
        )
    return "PyTorch legacy", *read_legacy(data)


def _safetensors_entries(data: bytes) -> dict[str, object]:
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
            raise CheckpointError(
                "The checkpoint nests its entries deeper or wider than any training state; save "
                "the generator alone."
            )
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


npy_format: Any = np.lib.format  # numpy leaves its header readers untyped

_LARGEST_ARRAY = 512 << 20
_MEMBERS = ("input", "output")
_WANTED = "it must contain exactly 'input' and 'output'"


def read_reference(path: Path) -> tuple[FloatArray, FloatArray]:
    """Read a reference pair from .npz or .pt: input and output, each [1, C, D, H, W] float32.

    Raises ModelFileError unless the file holds exactly these two arrays of finite numbers.
    """
    try:
        if not path.is_file():
            raise ModelFileError("the file does not exist")
        source, target = _numpy_pair(path) if _is_npz(path) else _torch_pair(path)
    except OSError as error:
        raise ModelFileError(f"Reference {path} cannot be read ({error.strerror}).") from error
    except (ModelFileError, CheckpointError) as error:
        reason = str(error).removeprefix(f"{path}: ").rstrip(".")
        raise ModelFileError(
            f"Reference {path} is not usable: {reason}; create one with the script printed by "
            "'cuda-cyclegan model reference-script'."
        ) from error
    return source, target


def _is_npz(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(256)
    return start.startswith(b"PK") and b".npy" in start


def _numpy_pair(path: Path) -> tuple[FloatArray, FloatArray]:
    source, target = map(_numpy_array, _MEMBERS, _unzipped(path))
    return source, target


def _unzipped(path: Path) -> list[bytes]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sorted(entry.filename for entry in entries) != [f"{name}.npy" for name in _MEMBERS]:
                raise ModelFileError(_WANTED)
            if max(entry.file_size for entry in entries) > _LARGEST_ARRAY:
                raise ModelFileError(f"its arrays may have at most {_LARGEST_ARRAY >> 20} MiB")
            return [archive.read(f"{name}.npy") for name in _MEMBERS]
    except (*ZIP_FAULTS, zlib.error) as error:
        raise ModelFileError(f"it is damaged ({error})") from error


def _torch_pair(path: Path) -> tuple[FloatArray, FloatArray]:
    contents = read_checkpoint(path).contents
    source, target = (contents.get(name) for name in _MEMBERS)
    if not isinstance(source, StoredTensor) or not isinstance(target, StoredTensor):
        raise ModelFileError(_WANTED)
    for name, tensor in zip(_MEMBERS, (source, target), strict=True):
        _check_shape(name, tensor.element, tensor.shape)
    return source.read("'input'"), target.read("'output'")


def _numpy_array(name: str, content: bytes) -> FloatArray:
    stream = io.BytesIO(content)
    try:
        version = npy_format.read_magic(stream)
        if version != (1, 0):
            raise ValueError("it is of an unusual version")
        shape, fortran, dtype = npy_format.read_array_header_1_0(stream)
    except ValueError as error:
        raise ModelFileError(f"{name!r} is not a plain NumPy array ({error})") from error
    data = content[stream.tell() :]
    _check_shape(name, dtype.name, shape)
    if prod(shape) * dtype.itemsize != len(data):
        raise ModelFileError(f"{name!r} has more or fewer numbers than its header states")
    values = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(values).all():
        raise ModelFileError(f"{name!r} contains numbers that are not finite")
    return values


def _check_shape(name: str, element: str, shape: tuple[int, ...]) -> None:
    if prod(shape) > _LARGEST_ARRAY // 4:
        raise ModelFileError(f"its arrays may have at most {_LARGEST_ARRAY >> 20} MiB")
    if "float" not in element or len(shape) != 5 or shape[0] != 1 or min(shape) < 1:
        raise ModelFileError(
            f"{name!r} must be floating point of shape [1, C, D, H, W], not {element} of "
            f"{times(shape) or 'no axes'}"
        )
