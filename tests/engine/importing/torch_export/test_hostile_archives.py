"""Damaged and hostile torch.export archives end in one sentence, without memory or execution."""

import json
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoint_files import Gadget, written
from support.tiers import examples
from support.torch_exports import Handmade, call, meta, tensor, zipped

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.importing.torch_export import archive
from cuda_cyclegan.engine.importing.torch_export.archive import is_exported
from cuda_cyclegan.engine.importing.torch_export.exported_graph import read_exported

MIB = 1 << 20
WEIGHT = "net/data/weights/weight_0"


def imported(path: Path) -> Any:
    return convert_graph(read_exported(path), None).network


def changed(change: Callable[[Handmade], object]) -> Callable[[], bytes]:
    def make() -> bytes:
        made = Handmade()
        change(made)
        return made.bytes()

    return make


def graph(**parts: Any) -> Callable[[], bytes]:
    return changed(lambda made: made.graph.update(parts))


def with_node(*nodes: dict[str, Any]) -> Callable[[], bytes]:
    """Nodes after the convolution, whose last one makes the output."""
    return changed(lambda made: made.graph["nodes"].__setitem__(slice(1, None), nodes))


def stored(**parts: Any) -> Callable[[], bytes]:
    return changed(lambda made: made.stored.update(parts))


def described(**parts: Any) -> Callable[[], bytes]:
    return changed(lambda made: made.stored["tensor_meta"].update(parts))


def ints(*sizes: int) -> list[dict[str, int]]:
    return [{"as_int": size} for size in sizes]


def deep_json() -> bytes:
    made = Handmade()
    text = json.dumps(made.program).replace(
        '"major"', '"x": ' + "[" * 100_000 + "]" * 100_000 + ', "major"'
    )
    return zipped({"net/models/model.json": text.encode(), **made.entries})


def swapped() -> Callable[[], bytes]:
    return changed(lambda made: made.graph["nodes"].reverse())


CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "deep JSON": (deep_json, "is not what PyTorch writes"),
    "no JSON": (lambda: zipped({"net/models/model.json": b"{"}), "is not what PyTorch writes"),
    "other JSON": (lambda: zipped({"net/models/model.json": b"[1]"}), "is not what PyTorch writes"),
    "two programs": (
        changed(lambda made: made.entries.update({"net/models/b.json": b"{}"})),
        "holds 2 programs",
    ),
    "a newer schema": (
        changed(lambda made: made.program["schema_version"].update(major=9)),
        "schema has version 9",
    ),
    "compressed": (lambda: Handmade().bytes(zipfile.ZIP_DEFLATED), "is compressed"),
    "big-endian": (
        changed(lambda made: made.entries.update({"net/byteorder": b"big"})),
        "big-endian",
    ),
    "a path outside": (
        changed(lambda made: made.entries.update({"net/../x": b""})),
        "points outside",
    ),
    "no weight": (changed(lambda made: made.entries.pop(WEIGHT)), "lacks its entry"),
    "a weight elsewhere": (stored(path_name="../../etc/passwd"), "lacks its entry"),
    "a weight cut short": (
        changed(lambda made: made.entries.update({WEIGHT: b"12"})),
        "reaches beyond its storage",
    ),
    "a pickled weight": (stored(use_pickle=True), "as a pickled object"),
    "a weight without a description": (stored(tensor_meta=None), "as a pickled object"),
    "a huge weight": (
        described(sizes=ints(1, 1, 1 << 20, 1 << 20, 3)),
        "reaches beyond its storage",
    ),
    "a weight that repeats itself": (
        described(sizes=ints(9, 9, 9, 9, 9), strides=ints(0, 0, 0, 0, 1)),
        "repeats the same stored numbers",
    ),
    "a negative stride": (described(strides=ints(-27, 27, 9, 3, 1)), "negative extent or stride"),
    "an offset": (described(storage_offset={"as_int": 1}), "reaches beyond its storage"),
    "endless extents": (described(sizes=ints(*(1,) * 5000)), "has an invalid shape"),
    "another type": (described(dtype=8), "reaches beyond its storage"),
    "whole numbers": (described(dtype=4), "must be floating-point numbers"),
    "an unknown type": (described(dtype=99), "form that is not supported"),
    "a sparse weight": (described(layout=1), "form that is not supported"),
    "a symbolic weight": (
        described(storage_offset={"as_expr": {"expr_str": "__import__('os')"}}),
        "form that is not supported",
    ),
    "no number": (
        changed(
            lambda made: made.entries.update({WEIGHT: np.full(27, np.nan, np.float32).tobytes()})
        ),
        "not finite",
    ),
    "another order": (swapped(), "reads 'conv', which nothing before it makes"),
    "a cycle": (
        with_node(call("relu", "relu", self=tensor("relu"))),
        "reads 'relu', which nothing before it makes",
    ),
    "a value made twice": (
        with_node(
            call("relu", "conv", self=tensor("conv")), call("relu", "relu", self=tensor("conv"))
        ),
        "makes 'conv', which already exists",
    ),
    "no output": (graph(nodes=[]), "No operator makes the network's output"),
    "an unknown operator": (
        with_node(call("softsign", "relu", self=tensor("conv"))),
        "Operator aten.softsign (node 'relu') is not supported",
    ),
    "an operator of others": (
        with_node(call("relu", "relu", self=tensor("conv")) | {"target": "os.system"}),
        "Operator os.system (node 'relu') is not supported",
    ),
    "gradient checkpointing": (
        with_node(
            call("relu", "relu", self=tensor("conv"))
            | {"target": "torch.ops.higher_order.wrap_with_set_grad_enabled"}
        ),
        "export it inside 'with torch.no_grad():'",
    ),
    "autocast": (
        with_node(
            call("relu", "relu", self=tensor("conv"))
            | {"target": "torch.ops.higher_order.wrap_with_autocast"}
        ),
        "export it without, such as with autocast",
    ),
    "an unknown argument": (
        with_node(call("relu", "relu", self=tensor("conv"), slope={"as_float": 0.1})),
        "has the argument 'slope', which is not supported",
    ),
    "an argument of another kind": (
        with_node(call("leaky_relu", "relu", self=tensor("conv"), negative_slope={"as_x": 1})),
        "has an argument negative_slope of a kind that is not supported",
    ),
    "in place on itself": (
        with_node(call("relu_", "conv", self=tensor("conv"))),
        "works in place without a result",
    ),
    "endless padding": (
        with_node(call("pad", "relu", self=tensor("conv"), pad={"as_ints": [1 << 60] * 6})),
        "",
    ),
    "attention": (
        with_node(call("matmul", "relu", self=tensor("conv"), other=tensor("conv"))),
        "as attention does",
    ),
    "training": (
        changed(
            lambda made: made.signature["output_specs"].insert(
                0, {"buffer_mutation": {"arg": {"name": "y"}, "buffer_name": "mean"}}
            )
        ),
        "changes its buffer 'mean' while it computes",
    ),
    "two inputs": (
        changed(
            lambda made: made.signature["input_specs"].append({"user_input": {"arg": tensor("y")}})
        ),
        "has 2 inputs",
    ),
    "an input of text": (
        changed(
            lambda made: made.signature["input_specs"].append(
                {"user_input": {"arg": {"as_string": "y"}}}
            )
        ),
        "takes an input that is not a tensor",
    ),
    "2-D": (
        changed(lambda made: made.graph["tensor_values"].update(x=meta(1, 1, None, None))),
        "only 3-D generators",
    ),
    "an input that is not described": (
        changed(lambda made: made.graph["tensor_values"].pop("x")),
        "input is not a tensor",
    ),
    "pickled code": (
        lambda: zipped(
            {
                "net/models/model.json": json.dumps(Handmade().program).encode(),
                "net/data/weights/model.pt": written({"weight": Gadget(os.getcwd)}),
            }
        ),
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_harm_is_reported_in_a_sentence_and_takes_no_memory(name: str, tmp_path: Path) -> None:
    make, message = CASES[name]
    path = tmp_path / "net.pt2"
    path.write_bytes(make())
    assert is_exported(path)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as refusal:
        imported(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert peak < 50 * MIB


def test_the_archive_itself_is_good(tmp_path: Path) -> None:
    made = Handmade()
    [conv, _] = imported(made.written(tmp_path / "net.pt2")).graph.nodes
    assert conv.layer.kernel == (3, 3, 3)


def test_a_graph_of_endless_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_LARGEST_JSON", 1 << 10)
    with pytest.raises(CheckpointError, match="no generator has so many operators"):
        imported(Handmade().written(tmp_path / "net.pt2"))


def test_endless_operators_in_place_take_little_time(tmp_path: Path) -> None:
    made = Handmade()
    chain = [call("relu_", f"r{at}", self=tensor("conv")) for at in range(4_000)]
    made.graph["nodes"][1:] = [*chain, call("tanh", "relu", self=tensor("conv"))]
    path = made.written(tmp_path / "net.pt2")
    assert len(read_exported(path).operators) == 4_002


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 1 << 20), st.sampled_from(("set", "drop")), st.binary(min_size=1, max_size=6)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(400))
@given(changes=CHANGES)
def test_a_mutated_graph_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str, bytes]]
) -> None:
    made = Handmade()
    text = json.dumps(made.program).encode()
    for place, how, what in changes:
        at = place % len(text)
        text = text[:at] + (what if how == "set" else b"") + text[at + len(what) :]
    config = json.dumps(made.config).encode()
    path = tmp_path_factory.mktemp("mutated") / "net.pt2"
    path.write_bytes(
        zipped(
            {
                "net/models/model.json": text,
                "net/data/weights/model_weights_config.json": config,
                **made.entries,
            }
        )
    )
    with suppress(CheckpointError):
        imported(path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"PK\x03\x04" + bytes(100), b"text"])
def test_other_bytes_are_no_archive(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(data)
    assert not is_exported(path)
