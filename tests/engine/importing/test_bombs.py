"""Small files cannot ask for endless time, memory or names."""

import io
import pickle
import struct
import time
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import FORMATS, Gadget, archive, array, edited, read, written
from support.lazy_modules import torch

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.checkpoint.recognise import networks
from cuda_cyclegan.engine.importing.checkpoint_file import read_checkpoint
from cuda_cyclegan.engine.importing.torch_files import Storage, StoredTensor


def test_endless_names_are_refused_whatever_they_name(tmp_path: Path) -> None:
    long = "a" * 5_000_000
    text = b"X" + struct.pack("<I", len(long)) + long.encode()
    again = b"h\x00h\x00\x93)R0" * 100_000  # a name of 10 MB, a hundred thousand times
    names = {
        "tensor": written({long: torch.ones(2)}),
        "network": written({long: {"a": torch.ones(2)}}),
        "networks": written({"b" * 400: {"c" * 400: {"a": torch.ones(1, 1, 3, 3, 3)}}}),
        "class": archive(b"\x80\x04" + text + b"q\x000" + again + b"N."),
        "kind of storage": archive(b"\x80\x02(U\x07storage" + text + b"U\x010U\x01cK\x01tQ."),
    }
    for name, content in names.items():
        with pytest.raises(CheckpointError) as raised:
            networks(read(content, tmp_path))
        assert len(str(raised.value)) < 1000, name


def test_an_endless_name_of_no_tensor_is_let_be(tmp_path: Path) -> None:
    contents = read(written({"a": torch.ones(2), "b" * 10_000: 3}), tmp_path).contents
    assert list(contents) == ["a"]


@pytest.mark.parametrize("calls", [10_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_one_name_called_over_and_over_is_kept_once(tmp_path: Path, calls: int) -> None:
    maker = b"cevil\n" + b"T" * 400 + b"\nq\x000"
    pickled = b"\x80\x02" + maker + b"h\x00)R0" * calls + b"}."
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="no named weights"):
        read(archive(pickled), tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * calls


def test_a_storage_of_a_kind_that_never_ends_is_refused(tmp_path: Path) -> None:
    """The list of lists would have 2^60 items as text."""
    kind = b"]q\x00" + b"0(h\x00h\x00lq\x00" * 60
    pickled = b"\x80\x02(U\x07storage" + kind + b"U\x010U\x01cK\x01tQ."
    assert took(lambda: read(archive(pickled), tmp_path)) < 5


def took(action: Callable[[], object]) -> float:
    start = time.process_time()
    with pytest.raises(CheckpointError):
        action()
    return time.process_time() - start


def test_shared_dictionaries_do_not_multiply(tmp_path: Path) -> None:
    """Each level holds the one below twice: 2^40 entries if they were copied."""
    value: object = {"a": 1}
    for _ in range(40):
        value = {"a": value, "b": value}
    assert took(lambda: read(archive(pickle.dumps(value)), tmp_path)) < 5
    value = {"a": 1}
    for _ in range(11):
        value = {str(n): value for n in range(8)}
    assert took(lambda: read(archive(pickle.dumps(value)), tmp_path)) < 5


@pytest.mark.parametrize("depth", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_deep_nesting_does_not_overflow(depth: int, tmp_path: Path) -> None:
    lists = b"]" * depth + b"a" * (depth - 1) + b"."
    tuples = b")" + b"\x85" * depth + b"."
    key_of_tuples = b"})" + b"\x85" * depth + b"K\x01s."
    dicts = b"}" * depth + b"K\x01" * 0 + b"."
    for pickled in (lists, tuples, key_of_tuples, dicts):
        assert took(lambda p=pickled: read(archive(p), tmp_path)) < 5


def test_many_tensors_of_safetensors_are_counted_before_they_are_made(tmp_path: Path) -> None:
    count = 300_000
    empty = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(empty % number for number in range(count)) + "}"
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="wider than any training state"):
        read_checkpoint(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * path.stat().st_size


def test_cycles_end(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nests"):
        read(archive(b"}q\x00X\x01\x00\x00\x00ah\x00s."), tmp_path)


@pytest.mark.parametrize("count", [15_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_one_long_list_cannot_be_copied_over_and_over(count: int, tmp_path: Path) -> None:
    pairs = [[str(n), n] for n in range(count)]
    head = pickle.dumps(pairs, 2)[:-1] + b"r\x00\x00\x01\x000"
    again = b"ccollections\nOrderedDict\nj\x00\x00\x01\x00\x85R0" * count
    assert took(lambda: read(archive(head + again + b"N."), tmp_path)) < 10


def test_colliding_keys_do_not_stall(tmp_path: Path) -> None:
    modulus = 2**61 - 1
    entries = b"".join(b"L%dL\nN" % (n * modulus) for n in range(100_000))
    stored = b"N" + b"".join(b"p%d\n" % (n * modulus) for n in range(100_000))
    assert took(lambda: read(archive(b"}(" + entries + b"u."), tmp_path)) < 5
    assert took(lambda: read(archive(stored + b"."), tmp_path)) < 5


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [
        (0, (5,), (1,)),
        (1, (4,), (1,)),
        (0, (2, 2), (3, 1)),
        (0, (2**40,), (0,)),
        (0, (0, 2**40, 2**40), (0, 0, 0)),
        (0, (0, 10**5000), (0, 0)),
        (0, (2**40, 2**40), (0, 0)),
        (-1, (1,), (1,)),
        (0, (-1,), (1,)),
        (0, (2,), (-1,)),
        (0, (2,), (1, 1)),
        (0, (1,) * 70, (1,) * 70),
    ],
)
def test_tensors_may_not_reach_beyond_their_storage(
    offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    storage = Storage(16, lambda: memoryview(bytes(16)))
    with pytest.raises(CheckpointError):
        StoredTensor("float32", storage, offset, shape, stride)


def test_a_stride_along_an_extent_of_one_says_nothing() -> None:
    storage = Storage(16, lambda: memoryview(np.arange(4, dtype="<f4").tobytes()))
    tensor = StoredTensor("float32", storage, 1, (1, 3, 1), (2**70, 1, 10**30))
    assert np.array_equal(tensor.read("a"), [[[1], [2], [3]]])


def test_a_shared_storage_is_read_where_it_lies(tmp_path: Path) -> None:
    base = torch.arange(1 << 18).float()
    how = ("zip", "legacy")
    for content in (written({str(n): base[n:] for n in range(64)}, **FORMATS[k]) for k in how):
        tensors = read(content, tmp_path).contents.values()
        views = [tensor.storage.read() for tensor in tensors if isinstance(tensor, StoredTensor)]
        addresses = {np.frombuffer(view, np.uint8).ctypes.data for view in views}
        assert len(views) == 64
        assert len(addresses) == 1


def test_storages_must_have_the_promised_size(tmp_path: Path) -> None:
    content = written({"a": torch.ones(4)})

    def resized(name: str, data: bytes) -> tuple[str, bytes]:
        return name, data * 2 if name.endswith("data/0") else data

    with pytest.raises(CheckpointError, match="has 32 bytes instead of 16"):
        read(edited(content, resized), tmp_path)


@pytest.mark.parametrize("numel", [2**62, -1, 5])
def test_absurd_lengths_are_refused(numel: int, tmp_path: Path) -> None:
    identity = ("storage", torch.FloatStorage, "0", "cpu", numel)

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            return (*identity, *self.tail) if obj is marker else None

        tail: tuple[object, ...] = ()

    marker = object()
    value = OrderedDict(a=Gadget(torch._utils._rebuild_tensor_v2, marker, 0, (1,), (1,), False, {}))
    zipped, legacy = io.BytesIO(), io.BytesIO()
    Pickler(zipped, 2).dump(value)
    for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(part, legacy, 2)
    old = Pickler(legacy, 2)
    old.tail = (None,)
    old.dump(value)
    pickle.dump(["0"], legacy, 2)
    stored = struct.pack("<q", numel) + bytes(16)
    for content in (archive(zipped.getvalue(), ("data/0", bytes(16))), legacy.getvalue() + stored):
        with pytest.raises(CheckpointError):
            read(content, tmp_path)


def test_archive_tricks_are_refused(tmp_path: Path) -> None:
    honest = written({"a": torch.ones(4)})
    with zipfile.ZipFile(io.BytesIO(honest)) as file:
        pickled, data = file.read("archive/data.pkl"), file.read("archive/data/0")

    for bomb in ("archive/data.pkl", "archive/data/0"):
        compressed = io.BytesIO()
        with zipfile.ZipFile(compressed, "w") as file:
            for name, content in (("archive/data.pkl", pickled), ("archive/data/0", data)):
                file.writestr(name, content, zipfile.ZIP_DEFLATED if name == bomb else None)
        with pytest.raises(CheckpointError, match="compressed"):
            array(read(compressed.getvalue(), tmp_path).contents["a"])

    for name, message in (
        ("../../etc/passwd", "points outside"),
        ("/etc/passwd", "points outside"),
        ("other/data/0", "several top folders"),
    ):
        buffer = io.BytesIO(honest)
        with zipfile.ZipFile(buffer, "a") as file:
            file.writestr(name, b"x")
        with pytest.raises(CheckpointError, match=message):
            read(buffer.getvalue(), tmp_path)

    buffer = io.BytesIO(honest)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(buffer, "a") as file:
        file.writestr("archive/data/0", data)
    with pytest.raises(CheckpointError, match="occurs twice"):
        read(buffer.getvalue(), tmp_path)

    with pytest.raises(CheckpointError, match="'data/7' is missing"):
        read(archive(pickled.replace(b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x007")), tmp_path)
    with pytest.raises(CheckpointError, match="big-endian"):
        read(archive(pickled, ("byteorder", b"big"), ("data/0", data)), tmp_path)
