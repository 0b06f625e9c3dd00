"""Damaged files give the same numbers or an error, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoint_files import FORMATS, archive, array, edited, read, written
from support.lazy_modules import torch
from support.tiers import examples

from cuda_cyclegan.engine.checkpoint.read.tensors import StoredTensor
from cuda_cyclegan.engine.errors import CheckpointError


def same_or_refused(content: bytes, expected: dict[str, object], folder: Path) -> None:
    try:
        contents = read(content, folder).contents
        tensors = {key: it for key, it in contents.items() if isinstance(it, StoredTensor)}
        found = {key: array(item) for key, item in tensors.items()}
    except CheckpointError:
        return
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
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_damaged_archives_give_the_same_or_an_error(
    steps: list[tuple[int, str]], tmp_path: Path
) -> None:
    expected = {key: value.float().numpy() for key, value in honest().items()}
    same_or_refused(mutated(written(honest()), steps), expected, tmp_path)


@given(steps=mutations, how=st.sampled_from(["legacy", "safetensors", "pickle in zip"]))
@settings(
    max_examples=examples(600),
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
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
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_pickles_never_raise_anything_else(content: bytes, tmp_path: Path) -> None:
    for data in (content, archive(b"\x80\x02" + content)):
        same_or_refused(data, {}, tmp_path)
