"""Checkpoints as bytes, in every format that torch writes, and what the reader makes of them."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.lazy_modules import torch

from cuda_cyclegan.engine.importing.checkpoint_file import (
    Checkpoint,
    CheckpointEntry,
    read_checkpoint,
)
from cuda_cyclegan.engine.importing.torch_files import StoredTensor

FORMATS: dict[str, dict[str, object]] = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    **{f"zip, protocol {p}": {"pickle_protocol": p} for p in (3, 4, 5)},
    **{
        f"legacy, protocol {p}": {"_use_new_zipfile_serialization": False, "pickle_protocol": p}
        for p in (2, 4)
    },
}


def written(value: object, **how: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **how)
    return buffer.getvalue()


def read(content: bytes, folder: Path) -> Checkpoint:
    path = folder / "checkpoint.pth"
    path.write_bytes(content)
    return read_checkpoint(path)


def array(entry: CheckpointEntry) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    assert isinstance(entry, StoredTensor)
    return entry.read("tensor")


def archive(pickled: bytes, *extra: tuple[str, bytes], top: str = "archive") -> bytes:
    """A zip checkpoint around any pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in (("data.pkl", pickled), ("version", b"3\n"), *extra):
            file.writestr(zipfile.ZipInfo(f"{top}/{name}"), content)  # of no date
    return buffer.getvalue()


class Gadget:
    """Pickles as a call of anything."""

    def __init__(self, maker: Callable[..., object], *arguments: object) -> None:
        self.reduced = maker, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.reduced


def edited(content: bytes, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    """The archive with every entry passed through `change`, checksums made right again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(*change(name, old.read(name)))
    return buffer.getvalue()
