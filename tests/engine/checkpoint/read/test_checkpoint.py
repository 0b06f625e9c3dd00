"""The restricted reader: what torch wrote comes back, and nothing that a file asks for is run."""

import enum
import functools
import io
import operator
import os
import pickle
import random
import struct
import time
import tracemalloc
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Dict, Optional  # noqa: UP035

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_cyclegan.engine.checkpoint.read.checkpoint import (
    Checkpoint,
    CheckpointEntry,
    read_checkpoint,
)
from cuda_cyclegan.engine.checkpoint.read.pickles import MOST_OPCODES
from cuda_cyclegan.engine.checkpoint.read.tensors import Storage, StoredTensor
from cuda_cyclegan.engine.checkpoint.recognise.networks import networks
from cuda_cyclegan.engine.errors import CheckpointError

torch = pytest.importorskip("torch")

FLOAT8 = torch.float8_e4m3fn
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


# --- honest files ---


@pytest.mark.parametrize("how", FORMATS)
def test_every_kind_of_tensor_comes_back(how: str, tmp_path: Path) -> None:
    base = torch.arange(48.0).reshape(6, 8)
    tensors = {
        "plain": torch.randn(2, 3, 4),
        "transposed": base.t(),
        "window": base[1:4, 2:7:2],
        "shared": base[2],
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(5).half(),
        "brain": torch.randn(5).bfloat16(),
        "double": torch.randn(5).double(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    contents = read(written({**tensors, "epoch": 7}, **FORMATS[how]), tmp_path).contents
    assert contents["epoch"] == 7
    for name, tensor in tensors.items():
        assert np.array_equal(array(contents[name]), tensor.detach().float().numpy()), name


@pytest.mark.parametrize("how", FORMATS)
def test_what_is_not_needed_is_set_aside_by_name(how: str, tmp_path: Path) -> None:
    import argparse

    module = torch.nn.Conv3d(1, 2, 3)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.zeros(1, 1, 3, 3, 3)).sum().backward()
    optimizer.step()
    value = {
        "model_state_dict": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "options": argparse.Namespace(lr=0.1),
        "best": np.float64(0.5),
        "loss": torch.nn.MSELoss(),
        "stages": {"train", "test"},
        "shape": torch.Size([1, 2]),
    }
    checkpoint = read(written(value, **FORMATS[how]), tmp_path)
    weights = checkpoint.contents["model_state_dict"]
    assert isinstance(weights, dict)
    assert np.array_equal(array(weights["weight"]), module.weight.detach().numpy())
    assert {"argparse.Namespace", "torch.nn.modules.loss.MSELoss"} <= set(checkpoint.set_aside)
    assert "options" not in checkpoint.contents


def test_hash_and_kind_are_those_of_the_file(tmp_path: Path) -> None:
    import hashlib

    content = written({"a": torch.ones(1)})
    checkpoint = read(content, tmp_path)
    assert checkpoint.sha256 == hashlib.sha256(content).hexdigest()
    assert checkpoint.kind == "PyTorch zip"
    assert read(written({"a": torch.ones(1)}, **FORMATS["legacy"]), tmp_path).kind == (
        "PyTorch legacy"
    )


def test_bfloat16_in_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save

    tensor = torch.randn(3, 4).bfloat16()
    checkpoint = read(save({"a": tensor}), tmp_path)
    assert np.array_equal(array(checkpoint.contents["a"]), tensor.float().numpy())


def test_integers_are_not_weights(tmp_path: Path) -> None:
    contents = read(written({"a": torch.ones(1), "n": torch.tensor(3)}), tmp_path).contents
    with pytest.raises(CheckpointError, match="stored as int64"):
        array(contents["n"])


class Options:
    """A training script's options, with classes of their own inside."""

    class Kind(enum.Enum):
        RESNET = 1

    class Shape(enum.Flag):
        WIDE = 1
        DEEP = 2

    def method(self) -> None: ...


HYPERPARAMETERS: dict[str, object] = {
    "range": range(3),
    "types": [int, str, float, bytes, list[int], type(None)],
    "annotations": [int | str, Optional[int], Dict[str, int]],  # noqa: UP006, UP045
    "defaults": [defaultdict(int), defaultdict(str), defaultdict(range)],
    "nested enumeration": [Options.Kind.RESNET, Options.Kind],
    "nested flags": Options.Shape.WIDE | Options.Shape.DEEP,
    "bound method": Options().method,
    "operators": [operator.itemgetter(1), operator.attrgetter("a.b"), operator.add, operator.or_],
    "functions": [min, print, chr, getattr, functools.reduce, os.path.join],
    "partial": functools.partial(int, base=2),
    "iterators": [iter([1]), zip([1], strict=True), map(str, [1]), reversed([1]), enumerate([1])],
    "failures": [ValueError("x"), FileNotFoundError(2, "x")],
    "constants": [..., NotImplemented, slice(1), 1j, frozenset([1]), b"ab", bytearray(b"ab")],
    "machine": [
        os.uname(),
        Path("/").stat(),
        os.terminal_size((1, 2)),
        Path("a"),
        random.Random(1),
    ],
}


@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_hyperparameters_that_no_tensor_needs_are_let_be(
    name: str, how: str, tmp_path: Path
) -> None:
    value = {"weights": {"a": torch.ones(2)}, "hyper_parameters": {"x": HYPERPARAMETERS[name]}}
    contents = read(written(value, **FORMATS[how]), tmp_path).contents
    weights = contents["weights"]
    assert isinstance(weights, dict)
    assert np.array_equal(array(weights["a"]), [1, 1])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensors_of_kinds_that_no_generator_has_are_let_be(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    value = {"a": torch.ones(2), "observer": quantized, "state": torch.ones(3).to(FLOAT8)}
    contents = read(written(value), tmp_path).contents
    assert np.array_equal(array(contents["a"]), [1, 1])
    with pytest.raises(CheckpointError, match="stored as float8_e4m3fn"):
        array(contents["state"])


# --- whole objects and foreign files ---


@pytest.mark.parametrize("how", ["zip", "legacy", "zip, protocol 4"])
@pytest.mark.parametrize("wrap", [lambda module: module, lambda module: {"net": module}])
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_pickled_modules_are_refused_with_advice(
    how: str, wrap: Callable[[object], object], tmp_path: Path
) -> None:
    content = written(wrap(torch.nn.Sequential(torch.nn.Conv3d(1, 1, 3))), **FORMATS[how])
    with pytest.raises(CheckpointError) as raised:
        read(content, tmp_path)
    assert "torch.nn.modules.container.Sequential" in str(raised.value)
    assert "torch.save(model.state_dict()" in str(raised.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_with_advice(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Conv3d(1, 1, 3)).save(tmp_path / "G.pt")
    with pytest.raises(CheckpointError, match=r"TorchScript.*state_dict"):
        read_checkpoint(tmp_path / "G.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x89HDF\r\n\x1a\n", "Keras"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"\x00" * 257 + b"ustar" + b"\x00" * 250, "tar archive"),
        (pickle.dumps({"weight": [1.0]}), "not a PyTorch checkpoint"),
        (b"not a checkpoint at all", "damaged"),
        (struct.pack("<Q", 9) + b"{broken}}", "safetensors file is damaged"),
        (archive(pickle.dumps({"epoch": 3})), "no weights by name"),
        (archive(pickle.dumps({}))[:60], "archive is damaged"),
    ],
)
def test_other_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        read(content, tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path, why in (tmp_path, "is not a file"), (tmp_path / "absent.pth", "does not exist"):
        with pytest.raises(CheckpointError, match=f"{path} {why}"):
            read_checkpoint(path)


# --- hostile pickles ---


class Gadget:
    """Pickles as a call of anything."""

    def __init__(self, maker: Callable[..., object], *arguments: object) -> None:
        self.reduced = maker, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.reduced


def gadgets(sentinel: Path) -> dict[str, object]:
    import functools
    import os
    import subprocess

    touch = f"touch {sentinel}"
    code = f"open({str(sentinel)!r}, 'w')"
    return {
        "os.system": Gadget(os.system, touch),
        "eval": Gadget(eval, code),
        "exec": Gadget(exec, code),
        "getattr": Gadget(getattr, Gadget(__import__, "os"), "system"),
        "open": Gadget(open, str(sentinel), "w"),
        "Popen": Gadget(subprocess.Popen, touch.split()),
        "torch.load": Gadget(torch.load, io.BytesIO(pickle.dumps(Gadget(os.system, touch)))),
        "_load_from_bytes": Gadget(torch.storage._load_from_bytes, b"x"),
        "partial": functools.partial(os.system, touch),
    }


PICKLED = [
    (name, protocol)
    for name in gadgets(Path("sentinel"))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    if protocol >= 2 or name != "torch.load"  # older protocols cannot hold its BytesIO
]


@pytest.mark.parametrize(("name", "protocol"), PICKLED)
def test_gadgets_are_refused_by_name_and_never_run(
    name: str, protocol: int, tmp_path: Path
) -> None:
    sentinel = tmp_path / "ran"
    gadget = gadgets(sentinel)[name]
    pickled = pickle.dumps({"a": gadget}, protocol)
    for content in (pickled, archive(pickled)):
        with pytest.raises(CheckpointError, match="asks to run"):
            read(content, tmp_path)
    assert not sentinel.exists()


def test_the_gadgets_do_run_in_pythons_own_unpickler(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(gadgets(tmp_path / "ran")["os.system"]))
    assert (tmp_path / "ran").exists()


def test_gadgets_among_honest_weights_are_refused(tmp_path: Path) -> None:
    import os

    sentinel = tmp_path / "ran"
    for how in ("zip", "legacy"):
        value = {"a": torch.ones(2), "hook": Gadget(os.system, f"touch {sentinel}")}
        with pytest.raises(CheckpointError, match=r"asks to run '(posix|nt)\.system'"):
            read(written(value, **FORMATS[how]), tmp_path)
    assert not sentinel.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "os.system"),
        ("torch", "os"),
        ("torch", "serialization.load"),
        ("collections.abc", "sys.modules"),
        ("logging", "Logger.__init__.__globals__"),
        ("cPickle", "loads"),
        ("__builtin__", "execfile"),
        ("operator", "methodcaller"),
        ("os", "popen"),
        ("code", "interact"),
        ("urllib.request", "urlopen"),
        ("torch.hub", "load"),
        ("torch.utils.cpp_extension", "load_inline"),
        ("dill._dill", "_create_function"),
    ],
)
def test_ways_round_to_what_runs_code_are_refused(module: str, name: str, tmp_path: Path) -> None:
    texts = (b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    with pytest.raises(CheckpointError, match=r"asks to run .*Do not open this file"):
        read(archive(b"\x80\x04}" + b"".join(texts) + b"\x93."), tmp_path)


@pytest.mark.parametrize(
    "lookup",
    [
        b"c__builtin__\ngetattr\n(cx\nY\nU\x02ostR",
        b"cbuiltins\ngetattr\n(ctorch\nserialization\nU\x04loadtR",
        b"cbuiltins\ngetattr\n(cx\nY\nU\x0b__globals__tR",
        b"cbuiltins\ngetattr\n(cx\nY\n)RU\x0awrite_texttR(U\x01atR",
        b"coperator\nattrgetter\n(U\x06systemtR(cx\nY\ntR",
        b"c_operator\ngetitem\n(}U\x06systemtR(U\x05touchtR",
    ],
)
def test_lookups_may_not_lead_to_what_runs_code(lookup: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"asks to run .*Do not open this file"):
        read(archive(b"\x80\x02" + lookup + b"."), tmp_path)


def test_unknown_calls_stay_names(tmp_path: Path) -> None:
    """A call that no list knows leaves its name and changes nothing in this process."""
    import logging

    before = logging.getLogger().level
    value = {"a": torch.ones(2), "hook": Gadget(logging.basicConfig, 10)}
    checkpoint = read(written(value), tmp_path)
    assert "logging.basicConfig" in checkpoint.set_aside
    assert logging.getLogger().level == before


def test_reading_imports_nothing(tmp_path: Path) -> None:
    import sys

    pickled = b"\x80\x02cantigravity\nfly\n)R."
    with pytest.raises(CheckpointError, match="no weights"):
        read(archive(pickled), tmp_path)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "out of order|missing"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "out of order"),
        (b"\x80\x05\x96" + b"\xff" * 7 + b"\x00.", "damaged"),
        (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", "damaged"),
        (b"\x80\x02" + b"(" * 5, "damaged"),
        (b"\x80\x02" + b"0.", "value is missing"),
        (b"\x80\x02e.", "mark is missing"),
        (b"\x80\x02h\x05.", "not stored"),
        (b"\x80\x02]K\x01K\x02s.", "not a dictionary"),
        (b"\x80\x02}(K\x01u.", "no value"),
        (b"\x80\x02K\x01K\x02a.", "not a list"),
        (b"\x80\x02K\x01K\x02R.", "no arguments"),
        (b"\x80\x04K\x01K\x02\x93.", "not text"),
        (b"\x80\x02K\x01Q.", "not a storage"),
        (b"Pwhatever\n.", "not a storage"),
        (b"I" + b"9" * 5000 + b"\n.", "damaged"),
        (b"]" * (MOST_OPCODES + 1) + b".", "steps"),
        (b"(" + b"]" * 10 + b"1.", "value is missing"),
        (b"ccollections\nOrderedDict\nK\x01\x85R.", "no weights"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "makes no sense"),
        (b"ctorch._utils\n_rebuild_tensor_v3\n)R.", "makes no sense"),
        (b"ctorch._utils\n_rebuild_parameter\n)R.", "makes no sense"),
        (b"ctorch._tensor\n_rebuild_from_type_v2\n)R.", "makes no sense"),
        (b"ctorch._utils\n_rebuild_parameter\n.", "no weights"),
    ],
)
def test_broken_pickles_are_refused(pickled: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(archive(pickled), tmp_path)


def test_old_and_new_ways_to_make_objects_are_inert(tmp_path: Path) -> None:
    makers = (
        b"(cevil\nThing\nK\x01o",
        b"(K\x01ievil\nThing\n",
        b"cevil\nThing\n)\x81",
        b"cevil\nThing\n)}\x92",
        b"cevil\nThing\n)R}(X\x01\x00\x00\x00aK\x01ub",
        b"cevil\nThing\n)R)R",
    )
    for maker in makers:
        pickled = b"\x80\x04}X\x01\x00\x00\x00x" + maker + b"s."
        with pytest.raises(CheckpointError, match=r"It holds 'evil\.Thing'"):
            read(archive(pickled), tmp_path)


# --- bombs ---


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


def test_one_name_called_over_and_over_is_kept_once(tmp_path: Path) -> None:
    maker = b"cevil\n" + b"T" * 400 + b"\nq\x000"
    pickled = b"\x80\x02" + maker + b"h\x00)R0" * 200_000 + b"}."
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="no weights"):
        read(archive(pickled), tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6


def test_a_storage_of_a_kind_that_never_ends_is_refused(tmp_path: Path) -> None:
    """As text, this list of lists would have 2^60 items."""
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


def test_deep_nesting_does_not_overflow(tmp_path: Path) -> None:
    depth = 200_000
    lists = b"]" * depth + b"a" * (depth - 1) + b"."
    tuples = b")" + b"\x85" * depth + b"."
    key_of_tuples = b"})" + b"\x85" * depth + b"K\x01s."
    dicts = b"}" * depth + b"K\x01" * 0 + b"."
    for pickled in (lists, tuples, key_of_tuples, dicts):
        assert took(lambda p=pickled: read(archive(p), tmp_path)) < 5


def test_cycles_end(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nests"):
        read(archive(b"}q\x00X\x01\x00\x00\x00ah\x00s."), tmp_path)


def test_one_long_list_cannot_be_copied_over_and_over(tmp_path: Path) -> None:
    pairs = [[str(n), n] for n in range(50_000)]
    head = pickle.dumps(pairs, 2)[:-1] + b"r\x00\x00\x01\x000"
    again = b"ccollections\nOrderedDict\nj\x00\x00\x01\x00\x85R0" * 50_000
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


def edited(content: bytes, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    """The archive with every entry passed through `change`, checksums made right again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(*change(name, old.read(name)))
    return buffer.getvalue()


def test_storages_must_have_the_promised_size(tmp_path: Path) -> None:
    content = written({"a": torch.ones(4)})

    def resized(name: str, data: bytes) -> tuple[str, bytes]:
        return name, data * 2 if name.endswith("data/0") else data

    with pytest.raises(CheckpointError, match="has 32 bytes where 16 are promised"):
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


def test_sizes_that_lie_in_the_directory_are_refused(tmp_path: Path) -> None:
    """Sizes and zip64 fields of the central directory overwritten one after another."""
    honest = written({"a": torch.ones(4)})
    directory = honest.index(b"PK\x01\x02")
    for place in range(directory, len(honest) - 3):
        lying = bytearray(honest)
        lying[place : place + 4] = b"\xff\xff\xff\xff"
        same_or_refused(bytes(lying), {"a": np.ones(4, np.float32)}, tmp_path)


# --- damage ---


def same_or_refused(content: bytes, expected: dict[str, object], folder: Path) -> None:
    try:
        contents = read(content, folder).contents
        found = {key: array(item) for key, item in contents.items()}
    except CheckpointError:
        return
    for key in found.keys() & expected.keys():
        assert np.array_equal(found[key], expected[key])


mutations = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["flip", "insert", "delete", "cut", "zero"])),
    min_size=1,
    max_size=4,
)


def mutated(content: bytes, steps: list[tuple[int, str]]) -> bytes:
    data = bytearray(content)
    for number, kind in steps:
        at = number % max(len(data), 1)
        if kind == "flip" and data:
            data[at] ^= 1 << number % 8
        elif kind == "insert":
            data[at:at] = bytes([number % 256])
        elif kind == "delete":
            del data[at : at + 1 + number % 5]
        elif kind == "cut":
            del data[at:]
        elif kind == "zero":
            data[at : at + 4] = bytes(4)
    return bytes(data)


HONEST = {"a": torch.arange(6.0).reshape(2, 3).t(), "b": torch.ones(2).half()}
EXPECTED: dict[str, object] = {key: value.float().numpy() for key, value in HONEST.items()}


@given(steps=mutations)
@settings(
    max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_archives_give_the_same_or_an_error(
    steps: list[tuple[int, str]], tmp_path: Path
) -> None:
    same_or_refused(mutated(written(HONEST), steps), EXPECTED, tmp_path)


@given(steps=mutations, how=st.sampled_from(["legacy", "safetensors", "pickle in zip"]))
@settings(
    max_examples=600, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_files_without_checksums_give_numbers_or_an_error(
    steps: list[tuple[int, str]], how: str, tmp_path: Path
) -> None:
    if how == "legacy":
        content = mutated(written(HONEST, **FORMATS["legacy"]), steps)
    elif how == "safetensors":
        from safetensors.torch import save

        content = mutated(save({key: item.contiguous() for key, item in HONEST.items()}), steps)
    else:

        def damaged(name: str, data: bytes) -> tuple[str, bytes]:
            return name, mutated(data, steps) if name.endswith("data.pkl") else data

        content = edited(written(HONEST), damaged)
    same_or_refused(content, {}, tmp_path)


@given(content=st.binary(max_size=300))
@settings(
    max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_pickles_never_raise_anything_else(content: bytes, tmp_path: Path) -> None:
    for data in (content, archive(b"\x80\x02" + content)):
        same_or_refused(data, {}, tmp_path)
