"""Checkpoint files of all formats: what is read, and what damage is reported as."""

import argparse
import enum
import functools
import gzip
import io
import operator
import os
import pickle
import random
import struct
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Dict, Optional  # noqa: UP035

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoint_files import FORMATS, archive, array, edited, read, written
from support.lazy_modules import torch
from support.tiers import WITH_FIXTURES, examples

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.checkpoint_file import read_checkpoint
from cuda_cyclegan.engine.importing.foreign_files import is_onnx_start
from cuda_cyclegan.engine.importing.torch_files import StoredTensor


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


@pytest.fixture(scope="module")
def training() -> tuple[Any, Any]:
    """A module and its optimizer after a step, for which PyTorch loads its compiler."""
    module = torch.nn.Conv3d(1, 2, 3)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.zeros(1, 1, 3, 3, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


@pytest.mark.parametrize("how", FORMATS)
def test_unneeded_parts_are_set_aside_by_name(
    how: str, training: tuple[Any, Any], tmp_path: Path
) -> None:
    module, optimizer = training
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


def test_tensors_in_lists_are_named_by_their_places(tmp_path: Path) -> None:
    value = {"nets": [{"a": torch.ones(2)}, (torch.zeros(1), 7)], "losses": [0.5] * 300_000}
    contents = read(written(value), tmp_path).contents
    nets = contents["nets"]
    assert isinstance(nets, dict)
    assert set(nets) == {"0", "1"}
    assert np.array_equal(array(nets["0"]["a"]), [1, 1])
    assert np.array_equal(array(nets["1"]["0"]), [0])
    assert "losses" not in contents


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
def test_hyperparameters_without_a_tensor_are_ignored(name: str, how: str, tmp_path: Path) -> None:
    value = {"weights": {"a": torch.ones(2)}, "hyper_parameters": {"x": HYPERPARAMETERS[name]}}
    contents = read(written(value, **FORMATS[how]), tmp_path).contents
    weights = contents["weights"]
    assert isinstance(weights, dict)
    assert np.array_equal(array(weights["a"]), [1, 1])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensors_of_kinds_that_no_generator_has_are_let_be(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    value = {
        "a": torch.ones(2),
        "observer": quantized,
        "state": torch.ones(3).to(torch.float8_e4m3fn),
    }
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
    with pytest.raises(CheckpointError, match=r"TorchScript.*onnx\.export\(torch\.jit\.load"):
        read_checkpoint(tmp_path / "G.pt")


def zipped(*names: str) -> bytes:
    """An archive whose entries are compressed to less than they hold, as code in TorchScript."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, b"\0" * 9999)
    return content.getvalue()


ARCHIVES = {
    "TorchScript": zipped("G/data.pkl", "G/constants.pkl", "G/code/__torch__.py"),
    r"torch\.export archive.*model import": zipped("G/models/model.json", "G/archive_format"),
    "torch.export archive": zipped("version", "serialized_exported_program.json"),
    "Keras model": zipped("metadata.json", "config.json", "model.weights.h5"),
    "NumPy archive": zipped("input.npy", "output.npy"),
    "unpack it and give the checkpoint in it": zipped("run/plans.txt", "run/notes.txt"),
}


@pytest.mark.parametrize("phrase", ARCHIVES)
def test_an_archive_of_another_program_has_its_name(phrase: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=phrase):
        read(ARCHIVES[phrase], tmp_path)


FOLDERS = {
    "TensorFlow SavedModel.*--saved-model": ["saved_model.pb"],
    "an nnU-Net model.*ONNX": ["plans.json", "dataset.json"],
    "nnU-Net models; give the folder of one, such as 'D1/T__P__3d'": ["D1/T__P__3d/plans.json"],
    "a folder without a network; give": ["notes.txt"],
    "a MONAI bundle.*onnx_export": ["configs/inference.json", "models/model.pt"],
    "give a file in it, such as 'a_net_G.pth'": ["a_net_G.pth", "b_net_G.pth"],
}


@pytest.mark.parametrize("phrase", FOLDERS)
def test_a_folder_is_named_by_what_it_holds(phrase: str, tmp_path: Path) -> None:
    for name in FOLDERS[phrase]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"0")
    with pytest.raises(CheckpointError, match=phrase):
        read_checkpoint(tmp_path)


def test_a_fold_of_nnunet_is_named(tmp_path: Path) -> None:
    (tmp_path / "fold_0").mkdir()
    for name in ("plans.json", "dataset.json", "fold_0/checkpoint_final.pth"):
        (tmp_path / name).write_bytes(b"0")
    with pytest.raises(CheckpointError, match="an nnU-Net model"):
        read_checkpoint(tmp_path / "fold_0")


def test_a_saved_model_is_no_onnx_file(tmp_path: Path) -> None:
    graph = b"\x08\x01\x12\x9c\x01\x0a\x10\x22\x06v2.15.\x1a\x3a" + b"0" * 140
    (tmp_path / "saved_model.pb").write_bytes(graph)
    assert not is_onnx_start(graph)
    with pytest.raises(CheckpointError, match="TensorFlow SavedModel"):
        read_checkpoint(tmp_path / "saved_model.pb")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x89HDF\r\n\x1a\n" + bytes(99) + b"keras_version", r"Keras model.*model\.export\("),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"\x1c\0\0\0TFL3\x14\0", r"TensorFlow Lite.*--tflite"),
        (b"ftrt\0\0\0\0", "TensorRT engine"),
        (
            b'<?xml version="1.0"?>\n<net name="G" version="11">\n\t<layers>',
            "an OpenVINO network.*the ONNX file or checkpoint",
        ),
        (b'<?xml version="1.0"?>\n<settings/>', "a text file"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\x08\x09\x12\x07pytorch\x1a\x052.1.0:\x80\x01", "an ONNX model"),
        (b"\x08\x07:\x12\x12\x01gB\x02\x10\x11", "an ONNX model"),
        (bytes(344) + b"n+1\0", "a NIfTI scan"),
        (gzip.compress(bytes(344) + b"n+1\0" + bytes(999), mtime=0), "a NIfTI scan"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"\x00" * 257 + b"ustar" + b"\x00" * 250, "tar archive"),
        (pickle.dumps({"weight": [1.0]}), "not a PyTorch checkpoint"),
        (b"not a checkpoint at all", "a text file"),
        (b"(c) 2024 us.\nRead this before\nyou begin.", "a text file"),
        ("Grüße".encode("utf-16"), "a text file"),
        ("Grüße".encode("latin-1"), "a text file"),
        (b"\x80\x02not a checkpoint at all", "pickle is damaged"),
        (struct.pack("<Q", 9) + b"{broken}}", "safetensors file is damaged"),
        (archive(pickle.dumps({"epoch": 3})), "no named weights"),
        (archive(pickle.dumps({}))[:60], "archive is damaged"),
    ],
)
def test_other_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        read(content, tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("start", [b"\xff" * 8, b"\x04\0\0\0\0\0\0\0[1]"], ids=["length", "header"])
def test_a_broken_safetensors_file_is_no_pickle(start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(start + bytes(64))
    with pytest.raises(CheckpointError, match="The safetensors file is damaged"):
        read_checkpoint(path)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path, "is a folder without a network"),
        (tmp_path / "absent.pth", "does not exist"),
    ):
        with pytest.raises(CheckpointError, match=f"{path} {why}"):
            read_checkpoint(path)


def test_a_tensor_that_repeats_what_is_stored_is_refused_as_what_it_is(tmp_path: Path) -> None:
    repeated = torch.tensor([0.25]).expand(4)
    with pytest.raises(CheckpointError, match="as expand does"):
        read(written({"model.1.bias": repeated}), tmp_path)


def same_or_refused(content: bytes, expected: dict[str, object], folder: Path) -> None:
    start = time.process_time()
    try:
        contents = read(content, folder).contents
        tensors = {key: it for key, it in contents.items() if isinstance(it, StoredTensor)}
        found = {key: array(item) for key, item in tensors.items()}
    except CheckpointError:
        return
    finally:
        assert time.process_time() - start < 5
    for key in found.keys() & expected.keys():
        assert np.array_equal(found[key], expected[key])


mutations = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["flip", "insert", "delete", "cut", "zero"])),
    min_size=1,
    max_size=4,
)


def test_sizes_that_lie_in_the_directory_are_refused(tmp_path: Path) -> None:
    """Sizes and zip64 fields of the central directory overwritten one after another."""
    honest = written({"a": torch.ones(4)})
    directory = honest.index(b"PK\x01\x02")
    for place in range(directory, len(honest) - 3):
        lying = bytearray(honest)
        lying[place : place + 4] = b"\xff\xff\xff\xff"
        same_or_refused(bytes(lying), {"a": np.ones(4, np.float32)}, tmp_path)


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


def honest() -> dict[str, Any]:
    return {"a": torch.arange(6.0).reshape(2, 3).t(), "b": torch.ones(2).half()}


@given(steps=mutations)
@settings(
    max_examples=examples(300),
    suppress_health_check=WITH_FIXTURES,
)
def test_damaged_archives_give_the_same_or_an_error(
    steps: list[tuple[int, str]], tmp_path: Path
) -> None:
    expected = {key: value.float().numpy() for key, value in honest().items()}
    same_or_refused(mutated(written(honest()), steps), expected, tmp_path)


@given(steps=mutations, how=st.sampled_from(["legacy", "safetensors", "pickle in zip"]))
@settings(
    max_examples=examples(600),
    suppress_health_check=WITH_FIXTURES,
)
def test_damaged_files_without_checksums_give_numbers_or_an_error(
    steps: list[tuple[int, str]], how: str, tmp_path: Path
) -> None:
    if how == "legacy":
        content = mutated(written(honest(), **FORMATS["legacy"]), steps)
    elif how == "safetensors":
        from safetensors.torch import save

        content = mutated(save({key: item.contiguous() for key, item in honest().items()}), steps)
    else:

        def damaged(name: str, data: bytes) -> tuple[str, bytes]:
            return name, mutated(data, steps) if name.endswith("data.pkl") else data

        content = edited(written(honest()), damaged)
    same_or_refused(content, {}, tmp_path)


@given(content=st.binary(max_size=300))
@settings(
    max_examples=examples(300),
    suppress_health_check=WITH_FIXTURES,
)
def test_random_pickles_never_raise_anything_else(content: bytes, tmp_path: Path) -> None:
    for data in (content, archive(b"\x80\x02" + content)):
        same_or_refused(data, {}, tmp_path)
