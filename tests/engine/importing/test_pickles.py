"""Pickles: nothing that they call is run."""

import functools
import io
import os
import pickle
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkpoint_files import FORMATS, Gadget, archive, read, written
from support.lazy_modules import torch

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing import pickles


def touch(sentinel: Path) -> str:
    return shlex.join(["touch", str(sentinel)])


def code(sentinel: Path) -> str:
    return f"open({str(sentinel)!r}, 'w')"


def loading(sentinel: Path) -> object:
    inner = pickle.dumps(Gadget(os.system, touch(sentinel)))
    return Gadget(torch.load, io.BytesIO(inner))


GADGETS: dict[str, Callable[[Path], object]] = {
    "os.system": lambda sentinel: Gadget(os.system, touch(sentinel)),
    "eval": lambda sentinel: Gadget(eval, code(sentinel)),
    "exec": lambda sentinel: Gadget(exec, code(sentinel)),
    "getattr": lambda _: Gadget(getattr, Gadget(__import__, "os"), "system"),
    "open": lambda sentinel: Gadget(open, str(sentinel), "w"),
    "Popen": lambda sentinel: Gadget(subprocess.Popen, shlex.split(touch(sentinel))),
    "torch.load": loading,
    "_load_from_bytes": lambda _: Gadget(torch.storage._load_from_bytes, b"x"),
    "partial": lambda sentinel: functools.partial(os.system, touch(sentinel)),
}
"""Attacks, each of which makes the sentinel's file if it is run."""


PICKLED = [
    (name, protocol)
    for name in GADGETS
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    if protocol >= 2 or name != "torch.load"  # older protocols cannot hold its BytesIO
]


@pytest.mark.parametrize(("name", "protocol"), PICKLED)
def test_gadgets_are_refused_by_name_and_never_run(
    name: str, protocol: int, tmp_path: Path
) -> None:
    sentinel = tmp_path / "ran"
    pickled = pickle.dumps({"a": GADGETS[name](sentinel)}, protocol)
    for content in (pickled, archive(pickled)):
        with pytest.raises(CheckpointError, match="tries to run"):
            read(content, tmp_path)
    assert not sentinel.exists()


def test_the_gadgets_do_run_in_pythons_own_unpickler(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(GADGETS["os.system"](tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


def test_gadgets_among_honest_weights_are_refused(tmp_path: Path) -> None:

    sentinel = tmp_path / "ran"
    for how in ("zip", "legacy"):
        value = {"a": torch.ones(2), "hook": Gadget(os.system, touch(sentinel))}
        with pytest.raises(CheckpointError, match=r"tries to run '(posix|nt)\.system'"):
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
    with pytest.raises(CheckpointError, match=r"tries to run .*Do not open this file"):
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
    with pytest.raises(CheckpointError, match=r"tries to run .*Do not open this file"):
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
    with pytest.raises(CheckpointError, match="no named weights"):
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
        (b"(" + b"]" * 10 + b"1.", "value is missing"),
        (b"ccollections\nOrderedDict\nK\x01\x85R.", "no named weights"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "invalid"),
        (b"ctorch._utils\n_rebuild_tensor_v3\n)R.", "invalid"),
        (b"ctorch._utils\n_rebuild_parameter\n)R.", "invalid"),
        (b"ctorch._tensor\n_rebuild_from_type_v2\n)R.", "invalid"),
        (b"ctorch._utils\n_rebuild_parameter\n.", "no named weights"),
    ],
)
def test_broken_pickles_are_refused(pickled: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(archive(pickled), tmp_path)


@pytest.mark.parametrize("most", [1000, pytest.param(pickles.MOST_OPCODES, marks=pytest.mark.slow)])
def test_a_pickle_of_endless_steps_is_refused(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickles, "MOST_OPCODES", most)
    with pytest.raises(CheckpointError, match=f"more than {most} steps"):
        read(archive(b"]" * (most + 1) + b"."), tmp_path)


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
        with pytest.raises(CheckpointError, match=r"It contains 'evil\.Thing'"):
            read(archive(pickled), tmp_path)
