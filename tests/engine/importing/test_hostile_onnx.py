"""ONNX files that are damaged or mean harm end in one sentence, and take no memory."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, external_data_helper
from support.onnx_files import conv_arrays, model, node, tiny, written
from support.tiers import examples
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing import onnx_file as wire
from cuda_cyclegan.engine.importing.onnx_file import read_onnx
from cuda_cyclegan.engine.importing.operators.converter import convert_graph

MIB = 1 << 20
DATA = (
    "--source A --target B --intensity-in minmax --intensity-out minmax --axes RAS "
    "--spacing native --patch 16,16,16"
)


def external(location: str, length: str = "432") -> ModelProto:
    proto = tiny()
    [weight] = [one for one in proto.graph.initializer if one.name == "w"]
    external_data_helper.set_external_data(weight, location, length=None)
    weight.ClearField("raw_data")
    if length:
        entry = weight.external_data.add()
        entry.key, entry.value = "length", length
    return proto


def with_tensor(dims: list[int], kind: int = TensorProto.FLOAT, data: bytes = b"") -> ModelProto:
    proto = tiny()
    proto.graph.initializer.add(name="huge", dims=dims, data_type=kind, raw_data=data)
    proto.graph.node[1].input[2] = "huge"
    return proto


def promised(count: int) -> ModelProto:
    """More numbers beside the file, in itself, than that holds."""
    proto = with_tensor([count], data=bytes(4))
    tensor = proto.graph.initializer[-1]
    external_data_helper.set_external_data(tensor, "g.onnx", length=4 * count)
    tensor.ClearField("raw_data")
    return proto


def cyclic() -> ModelProto:
    proto = tiny()
    proto.graph.node[0].input[0] = "d"
    return proto


def unmade() -> ModelProto:
    proto = tiny()
    proto.graph.node[2].input[0] = "nothing"
    return proto


def padded(count: int) -> ModelProto:
    """Operators that become thousands of layers each."""
    pads = [node("Pad", "x ends", f"v{at}") for at in range(count)]
    arrays = {"ends": np.array([0, 0, 0, 0, 0, 0, 4000, 0, 0, 0])}
    names = " ".join(name for pad in pads for name in pad.output)
    return model([*pads, node("Sum", names, "y")], arrays, (1, 1, 8, 8, 8))


def filled(shape: list[int]) -> ModelProto:
    fill = node("ConstantOfShape", "shape", "z")
    return model([fill, node("Add", "x z", "y")], {"shape": np.array(shape)})


def doubled(count: int) -> ModelProto:
    """Sums of a weight with itself, each of which is kept."""
    sums = [node("Add", f"w{at} w{at}", f"w{at + 1}") for at in range(count)]
    nodes = [*sums, node("Conv", f"x w{count}", "y", pads=[1] * 6)]
    return model(nodes, {"w0": np.ones(1 << 17, np.float32)})


def repeated(count: int) -> ModelProto:
    relu = [node("Relu", f"v{at}" if at else "x", f"v{at + 1}") for at in range(count)]
    return model([*relu, node("Relu", f"v{count}", "y")])


def of_opset(version: int) -> ModelProto:
    proto = tiny()
    proto.opset_import[0].version = version
    return proto


def with_function() -> ModelProto:
    proto = tiny()
    proto.functions.add(name="own", domain="own")
    return proto


def of_domain() -> ModelProto:
    proto = tiny()
    proto.graph.node[2].domain = "com.microsoft"
    return proto


def two_outputs() -> ModelProto:
    proto = tiny()
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    return proto


def with_two_weights() -> ModelProto:
    proto = tiny()
    again = proto.graph.initializer.add()
    again.CopyFrom(next(one for one in proto.graph.initializer if one.name == "w"))
    again.raw_data = bytes(len(again.raw_data))
    return proto


def with_two_attributes() -> ModelProto:
    proto = tiny()
    attributes = next(one for one in proto.graph.node if one.attribute).attribute
    attributes.add().CopyFrom(attributes[0])
    return proto


def with_two_opsets() -> ModelProto:
    proto = tiny()
    proto.opset_import.add(version=proto.opset_import[0].version - 1)
    return proto


def with_one_output_twice() -> ModelProto:
    proto = tiny()
    proto.graph.node[0].output.append(proto.graph.node[0].output[0])
    return proto


def with_two_places() -> ModelProto:
    proto = external("w.bin")
    [weight] = [one for one in proto.graph.initializer if one.name == "w"]
    weight.external_data.add().CopyFrom(weight.external_data[0])
    return proto


def without_shape() -> ModelProto:
    proto = tiny()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    return proto


CASES: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "two weights": (with_two_weights, "has two tensors named 'w'; export it again"),
    "two attributes": (with_two_attributes, "has two attributes of node "),
    "two opsets": (with_two_opsets, "has two opsets named ''"),
    "an output twice": (with_one_output_twice, "which already exists"),
    "two places": (with_two_places, "two entries for the numbers of 'w' named 'location'"),
    "missing numbers": (lambda: external("w.bin"), "are in 'w.bin', which is not in the folder"),
    "numbers outside": (lambda: external("../../etc/passwd"), "which is not in the folder"),
    "numbers anywhere": (lambda: external("/etc/passwd"), "which is not in the folder"),
    "promised numbers": (lambda: promised(1 << 28), "are not at their declared place in g.onnx"),
    "huge tensor": (lambda: with_tensor([1 << 40]), "take more than 2 GiB"),
    "tensor cut short": (lambda: with_tensor([4], data=b"abc"), "more or fewer numbers"),
    "tensor of text": (lambda: with_tensor([1], TensorProto.STRING), "an element type"),
    "negative shape": (lambda: with_tensor([-4]), "an invalid shape"),
    "cycle": (cyclic, "reads 'd' before it is computed, so the graph is cyclic or damaged"),
    "a value that nothing makes": (unmade, "Operator LeakyRelu (node 'c') reads 'nothing' before"),
    "endless voxels": (
        lambda: model(
            [node("Resize", "x none none size", "y", mode="nearest")],
            {"none": np.zeros(0, np.float32), "size": np.array([1, 1, 1 << 40, 2, 2])},
        ),
        "or more than 65536",
    ),
    "endless layers": (lambda: padded(50), "creates more layers than any generator has"),
    "huge constant": (
        lambda: filled([1 << 20, 1 << 20]),
        "creates more numbers than any generator needs",
    ),
    "endless sums": (lambda: doubled(400), "creates more numbers than any generator needs"),
    "endless graph": (lambda: repeated(20_001), "more than any generator"),
    "old opset": (lambda: of_opset(6), "has opset 6"),
    "new opset": (lambda: of_opset(99), "has opset 99"),
    "own operator": (with_function, "defines a custom operator, 'own'"),
    "foreign domain": (of_domain, "is of the domain 'com.microsoft'"),
    "two outputs": (two_outputs, "has 2 outputs"),
    "two-dimensional": (
        lambda: model([node("Relu", "x", "y")], dims=("n", 1, "h", "w")),
        "only 3-D generators",
    ),
    "no shape": (without_shape, "does not state the shape of the network's input"),
    "channels untold": (
        lambda: model([node("Relu", "x", "y")], dims=("n", "c", "d", "h", "w")),
        "the number of input channels",
    ),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow) if name == "endless graph" else name
        for name in CASES
    ]
)
def harm(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A file that means harm, and what is said of it."""
    make, message = CASES[request.param]
    return written(make(), tmp_path / "g.onnx"), message


def test_harm_is_reported_in_a_sentence_and_takes_no_memory(harm: tuple[Path, str]) -> None:
    path, message = harm
    tracemalloc.start()
    with pytest.raises(CheckpointError) as refusal:
        convert_graph(read_onnx(path), None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert peak < 100 * MIB


def test_operators_and_tensors_that_lead_to_no_output_are_not_read(tmp_path: Path) -> None:
    proto = tiny()
    proto.graph.initializer.add(name="text", dims=[1], data_type=TensorProto.STRING)
    proto.graph.initializer.add(name="huge", dims=[1 << 40], data_type=TensorProto.FLOAT)
    proto.graph.node.append(node("GlobalAveragePool", "a", "mean"))
    proto.graph.node.append(node("Mul", "mean huge", "unused"))
    right, found = (
        read_onnx(written(one, tmp_path / f"{at}.onnx")) for at, one in enumerate((tiny(), proto))
    )
    assert found.kinds == right.kinds
    assert found.tensors.keys() == right.tensors.keys()
    assert convert_graph(found, None).network.graph == convert_graph(right, None).network.graph


@pytest.mark.parametrize(
    "data", [b"", b"\x08", b"no ONNX file at all", b"\x3a\xff\xff\xff\xff\x0f", b"\x00" * 100]
)
def test_bytes_of_another_kind_are_no_onnx_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        convert_graph(read_onnx(path), None)


@pytest.mark.parametrize(
    ("nodes", "most"),
    [(1 << 13, 1 << 12), pytest.param(1 << 20, wire.MOST_FIELDS, marks=pytest.mark.slow)],
)
def test_a_message_of_endless_parts_is_refused_before_it_is_parsed(
    nodes: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_FIELDS", most)
    path = tmp_path / "g.onnx"
    empty_node = b"\x0a\x00"
    size = {1 << 13: b"\x80\x80\x01", 1 << 20: b"\x80\x80\x80\x01"}[nodes]
    path.write_bytes(b"\x3a" + size + empty_node * nodes)
    with pytest.raises(CheckpointError, match="more operators than any network"):
        read_onnx(path)


def test_numbers_beside_the_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(conv_arrays()["w"].tobytes())
    path = written(external("w.bin"), tmp_path / "g.onnx")
    beside = convert_graph(read_onnx(path), None).network
    whole = convert_graph(read_onnx(written(tiny(), tmp_path / "h.onnx")), None).network
    assert all(np.array_equal(beside.weights[name], whole.weights[name]) for name in whole.weights)


WHOLE = tiny().SerializeToString()
PLACES = st.integers(0, len(WHOLE) - 1)
CHANGES = st.one_of(
    st.tuples(st.just("set"), PLACES, st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("cut"), PLACES, st.binary(max_size=0)),
    st.tuples(st.just("insert"), PLACES, st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("drop"), PLACES, st.binary(min_size=1, max_size=40)),
)


def most_memory() -> int:
    """Bytes that this process ever took at once; 0 where the system does not tell."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        return 0
    return getrusage(RUSAGE_SELF).ru_maxrss << 10


def mutated(changes: list[tuple[str, int, bytes]]) -> bytes:
    data = WHOLE
    for how, at, what in changes:
        match how:
            case "set":
                data = data[:at] + what + data[at + len(what) :]
            case "cut":
                data = data[:at]
            case "insert":
                data = data[:at] + what + data[at:]
            case _:
                data = data[:at] + data[at + len(what) :]
    return data


@settings(max_examples=examples(300), deadline=None)
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_mutated_files_make_a_model_or_end_with_status_2(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    path, output = folder / "g.onnx", folder / "m.safetensors"
    path.write_bytes(mutated(changes))
    before = most_memory()
    words = ["model", "import", str(path), "--output", str(output), *DATA.split()]
    result = CliRunner().invoke(app, words)
    assert most_memory() - before < 300 * MIB
    assert result.exit_code in (0, 2), result.stderr
    assert output.exists() == (result.exit_code == 0)
    assert {one.name for one in folder.iterdir()} <= {"g.onnx", "m.safetensors"}
    if result.exit_code == 2:
        assert "Traceback" not in result.stderr
