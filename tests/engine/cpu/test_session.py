"""Every layer of the graph computes on the CPU what PyTorch computes."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.gpu_networks import random_network
from support.tiers import examples

from cuda_cyclegan.engine.cpu.session import open_cpu_generator, session_options
from cuda_cyclegan.engine.errors import PatchShapeError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import (
    Add,
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    Layer,
    LeakyRelu,
    Pad,
    Relu,
    Tanh,
    Triple,
    Upsample,
)

CHANNELS = 3
PATCH = (6, 8, 7)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def numbers(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def layer_output(layer: Layer, patch: FloatArray, weights: dict[str, FloatArray]) -> FloatArray:
    """One layer alone; the runtime only takes graphs that keep extents, so it is run by hand."""
    network = Network(Graph(patch.shape[1], (Node("layer", layer, (INPUT,)),)), weights)
    return run_by_session(network, patch)


def run_by_session(network: Network, patch: FloatArray, **how: bool) -> FloatArray:
    import onnxruntime

    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    model = to_onnx(network, **how).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    [output] = session.run(None, {INPUT: patch})
    shape = network.graph.shapes(patch.shape[2:])[network.graph.output]
    assert output.shape == (patch.shape[0], shape.channels, *shape.extents)
    return output


def assert_same(ours: FloatArray, theirs: Any) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == tuple(theirs.shape)
    assert np.abs(ours - theirs.numpy()).max() < 2e-6 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("rewritten", [True, False])
def test_large_weights_are_shared_and_not_copied_into_the_model(rewritten: bool) -> None:
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    layers = {"wide": Conv3d(1, 32, (3, 3, 3), "w", padding=(1, 1, 1))}
    layers["deep"] = Conv3d(32, 32, (3, 3, 3), "v", padding=(1, 1, 1))
    layers["narrow"] = Conv3d(32, 1, (3, 3, 3), "u", padding=(1, 1, 1))
    inputs = (INPUT, *layers)
    nodes = (
        Node(name, one, (at,)) for (name, one), at in zip(layers.items(), inputs, strict=False)
    )
    weights = {
        "w": numbers(32, 1, 3, 3, 3),
        "v": numbers(32, 32, 3, 3, 3),
        "u": numbers(1, 32, 3, 3, 3),
    }
    network = Network(Graph(1, tuple(nodes)), weights)
    outside: dict[str, FloatArray] = {}
    model = to_onnx(network, outside=outside)
    assert list(outside) == ["v"]
    assert outside["v"] is weights["v"]
    assert len(model.SerializeToString()) < weights["v"].nbytes / 4
    patch = numbers(1, 1, *PATCH)
    with open_cpu_generator(network, threads=1, rewritten=rewritten) as generator:
        made = generator(patch)
    expected = run_by_session(network, patch)
    assert np.abs(made - expected).max() < 2e-6 * float(np.abs(expected).max())


triples = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
pads = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))


@given(kernel=triples, stride=triples, padding=pads, bias=st.booleans())
@settings(max_examples=examples(40))
def test_convolution(
    torch: Any, kernel: Triple, stride: Triple, padding: Triple, bias: bool
) -> None:
    patch, weight, shift = numbers(2, CHANNELS, *PATCH), numbers(4, CHANNELS, *kernel), numbers(4)
    layer = Conv3d(CHANNELS, 4, kernel, "w", "b" if bias else None, stride, padding)
    ours = layer_output(layer, patch, {"w": weight, "b": shift})
    expected = torch.nn.functional.conv3d(
        torch.tensor(patch),
        torch.tensor(weight),
        torch.tensor(shift) if bias else None,
        stride,
        padding,
    )
    assert_same(ours, expected)


@given(
    channels=st.sampled_from([(1, 5), (2, 3), (5, 1), (3, 2), (7, 1)]),
    kernel=triples,
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    padding=pads,
    bias=st.booleans(),
)
@settings(max_examples=examples(60))
def test_a_convolution_by_columns_is_the_same(
    channels: tuple[int, int],
    kernel: Triple,
    stride: Triple,
    dilation: Triple,
    padding: Triple,
    bias: bool,
) -> None:
    inputs, outputs = channels
    weights = {"w": numbers(outputs, inputs, *kernel), "b": numbers(outputs, seed=1)}
    layer = Conv3d(inputs, outputs, kernel, "w", "b" if bias else None, stride, padding, dilation)
    patch = numbers(2, inputs, *PATCH)
    network = Network(Graph(inputs, (Node("layer", layer, (INPUT,)),)), weights)
    usual = run_by_session(network, patch)
    made = run_by_session(network, patch, by_columns=True)
    assert np.abs(made - usual).max() < 2e-6 * max(1.0, float(np.abs(usual).max()))


def test_few_channels_and_several_taps_are_convolved_by_columns() -> None:
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    network = random_network(build(ResNetSpec(1, 2, 16, 1)), seed=0)
    model = to_onnx(network, by_columns=True)
    made = [node.name for node in model.graph.node if node.name.endswith(".columns")]
    assert made == ["first.columns", "last.columns"]


@given(
    outputs=st.sampled_from([1, 2, 17]),
    kernel=triples,
    stride=triples,
    padding=pads,
    output_padding=st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1)),
    bias=st.booleans(),
)
@example(1, (4, 4, 4), (2, 2, 2), (1, 1, 1), (0, 0, 0), True)
@example(17, (4, 4, 4), (2, 2, 2), (1, 1, 1), (0, 0, 0), True)
@example(3, (2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0), True)
@example(2, (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), False)
@example(17, (3, 2, 4), (1, 2, 2), (1, 0, 1), (0, 0, 0), True)
@example(1, (6, 5, 3), (2, 1, 3), (2, 2, 0), (0, 0, 0), True)
@settings(max_examples=examples(60))
def test_a_transposed_convolution_by_phases_is_the_same(
    outputs: int,
    kernel: Triple,
    stride: Triple,
    padding: Triple,
    output_padding: Triple,
    bias: bool,
) -> None:
    assume(all(more < step for more, step in zip(output_padding, stride, strict=True)))
    weights = {"w": numbers(3, outputs, *kernel), "b": numbers(outputs, seed=1)}
    layer = ConvTranspose3d(
        3, outputs, kernel, "w", "b" if bias else None, stride, padding, output_padding
    )
    patch = numbers(2, 3, *PATCH)
    network = Network(Graph(3, (Node("layer", layer, (INPUT,)),)), weights)
    usual = run_by_session(network, patch)
    made = run_by_session(network, patch, by_phases=True)
    assert made.shape == usual.shape
    assert np.abs(made - usual).max() < 2e-6 * max(1.0, float(np.abs(usual).max()))


def test_upsampling_to_few_channels_is_computed_by_phases() -> None:
    """OpenVINO is slow at it; with a vector of channels its own operator is faster."""
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    for spec in (ResNetSpec(1, 1, 16, 1), UNetSpec(1, 1, 16, 3)):
        network = random_network(build(spec), seed=0)
        wide = [
            node.name
            for node in network.graph.nodes
            if isinstance(node.layer, ConvTranspose3d) and node.layer.out_channels >= 16
        ]
        model = to_onnx(network, by_phases=True)
        assert [one.name for one in model.graph.node if one.op_type == "ConvTranspose"] == wide


def test_a_large_stride_makes_no_network_of_thousands_of_operators() -> None:
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    weights = {"w": numbers(3, 4, 17, 17, 17)}
    layer = ConvTranspose3d(3, 4, (17,) * 3, "w", None, (16,) * 3, (1,) * 3, (1,) * 3)
    network = Network(Graph(3, (Node("layer", layer, (INPUT,)),)), weights)
    assert len(to_onnx(network, by_phases=True).graph.node) == 1


@given(kernel=triples, stride=triples, padding=pads, data=st.data(), bias=st.booleans())
@settings(max_examples=examples(40))
def test_transposed_convolution(
    torch: Any,
    kernel: Triple,
    stride: Triple,
    padding: Triple,
    data: st.DataObject,
    bias: bool,
) -> None:
    extra = data.draw(st.tuples(*(st.integers(0, step - 1) for step in stride)))
    patch, weight, shift = numbers(2, CHANNELS, *PATCH), numbers(CHANNELS, 4, *kernel), numbers(4)
    layer = ConvTranspose3d(CHANNELS, 4, kernel, "w", "b" if bias else None, stride, padding, extra)
    ours = layer_output(layer, patch, {"w": weight, "b": shift})
    expected = torch.nn.functional.conv_transpose3d(
        torch.tensor(patch),
        torch.tensor(weight),
        torch.tensor(shift) if bias else None,
        stride,
        padding,
        extra,
    )
    assert_same(ours, expected)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_instance_norm(torch: Any, affine: bool, epsilon: float) -> None:
    patch = numbers(2, CHANNELS, *PATCH) * 0.1 + 3
    weights = {"s": numbers(CHANNELS, seed=1), "h": numbers(CHANNELS, seed=2)}
    names = ("s", "h") if affine else (None, None)
    ours = layer_output(InstanceNorm(CHANNELS, *names, epsilon), patch, weights)
    scale, shift = (torch.tensor(weights[key]) if affine else None for key in ("s", "h"))
    expected = torch.nn.functional.instance_norm(
        torch.tensor(patch), weight=scale, bias=shift, eps=epsilon
    )
    assert np.abs(ours - expected.numpy()).max() < 2e-5


HEAD, FAR_FROM_ZERO, CONSTANT = "background of -1", "mean 10, SD 0.1", "one value"


def large_map(kind: str) -> FloatArray:
    """[1, 4, 96, 128, 120], with more voxels than one float32 accumulator can add up."""
    shape, noise = (1, 4, 96, 128, 120), np.random.default_rng(0)
    match kind:
        case "background of -1":
            values = np.full(shape, -1, np.float32)
            values[..., 30:70, 20:90, 40:80] = noise.normal(0, 0.4, (1, 4, 40, 70, 40))
            return values
        case "mean 10, SD 0.1":
            return noise.normal(10, 0.1, shape).astype(np.float32)
        case _:
            return np.full(shape, 1000, np.float32)


@pytest.mark.parametrize(("kind", "most"), [(HEAD, 1e-6), (FAR_FROM_ZERO, 3e-6), (CONSTANT, 1e-3)])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_norms_of_large_maps_are_exact(kind: str, most: float, groups: int) -> None:
    """The runtime's own operator is 1e-4 to 1e-2 off there."""
    patch = large_map(kind)
    layer = InstanceNorm(4) if groups == 4 else GroupNorm(4, groups)
    network = Network(Graph(4, (Node("layer", layer, (INPUT,)),)), {})
    ours = run_by_session(network, patch, exact_norms=True)
    runs = patch.reshape(groups, -1).astype(np.float64)
    runs -= runs.mean(axis=1, keepdims=True)
    runs /= np.sqrt(np.square(runs).mean(axis=1, keepdims=True) + layer.epsilon)
    size = max(float(np.linalg.norm(runs)), 1)
    assert np.linalg.norm(ours.ravel() - runs.ravel()) <= most * size


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_exact_norms_are_the_usual_ones(affine: bool, groups: int) -> None:
    patch = numbers(2, 4, *PATCH) * 0.1 + 3
    weights = {"s": numbers(4, seed=1), "h": numbers(4, seed=2)}
    names = ("s", "h") if affine else (None, None)
    layer = InstanceNorm(4, *names, 1e-3) if groups == 4 else GroupNorm(4, groups, *names, 1e-3)
    network = Network(Graph(4, (Node("layer", layer, (INPUT,)),)), weights)
    usual = run_by_session(network, patch)
    assert np.abs(run_by_session(network, patch, exact_norms=True) - usual).max() < 2e-5


def test_stored_affine() -> None:
    patch, scale, shift = numbers(2, CHANNELS, *PATCH), numbers(CHANNELS), numbers(CHANNELS, seed=1)
    ours = layer_output(ChannelAffine(CHANNELS, "s", "h"), patch, {"s": scale, "h": shift})
    along = (1, -1, 1, 1, 1)
    assert np.allclose(ours, patch * scale.reshape(along) + shift.reshape(along))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (Relu(), lambda torch, x: torch.relu(x)),
        (LeakyRelu(0.2), lambda torch, x: torch.nn.functional.leaky_relu(x, 0.2)),
        (Tanh(), lambda torch, x: torch.tanh(x)),
    ],
)
def test_activations(torch: Any, layer: Layer, expected: Callable[[Any, Any], Any]) -> None:
    patch = numbers(2, CHANNELS, *PATCH)
    assert_same(layer_output(layer, patch, {}), expected(torch, torch.tensor(patch)))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "zero"])
@pytest.mark.parametrize(
    ("before", "after"), [((1, 1, 1), (1, 1, 1)), ((3, 0, 2), (1, 2, 0)), ((0, 0, 0), (5, 1, 1))]
)
def test_padding(torch: Any, mode: str, before: Triple, after: Triple) -> None:
    patch = numbers(2, CHANNELS, *PATCH)
    sides = [side for pair in zip(before[::-1], after[::-1], strict=True) for side in pair]
    torch_mode = "constant" if mode == "zero" else mode
    expected = torch.nn.functional.pad(torch.tensor(patch), sides, torch_mode)
    assert_same(layer_output(Pad(mode, before, after), patch, {}), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [(2, 2, 2), (1, 2, 3), (4, 1, 2)])
@pytest.mark.parametrize(
    ("mode", "corners"), [("nearest", False), ("trilinear", False), ("trilinear", True)]
)
def test_upsampling(torch: Any, factor: Triple, mode: str, corners: bool) -> None:
    patch = numbers(2, CHANNELS, *PATCH)
    expected = torch.nn.functional.interpolate(
        torch.tensor(patch),
        scale_factor=factor,
        mode=mode,
        align_corners=None if mode == "nearest" else corners,
    )
    ours = layer_output(Upsample(mode, factor, corners), patch, {})  # type: ignore[arg-type]
    assert_same(ours, expected)


@pytest.mark.parametrize("swapped", [False, True])
def test_joints(torch: Any, swapped: bool) -> None:
    patch = numbers(2, CHANNELS, *PATCH)
    order = ("leaky", INPUT) if swapped else (INPUT, "leaky")
    leaky = Node("leaky", LeakyRelu(0.1), (INPUT,))
    tensors = {
        INPUT: torch.tensor(patch),
        "leaky": torch.nn.functional.leaky_relu(torch.tensor(patch), 0.1),
    }
    concat = Network(Graph(CHANNELS, (leaky, Node("joint", Concat(), order))), {})
    added = Network(Graph(CHANNELS, (leaky, Node("joint", Add(), order))), {})
    assert_same(run_by_session(concat, patch), torch.cat([tensors[name] for name in order], 1))
    assert_same(run_by_session(added, patch), tensors[INPUT] + tensors["leaky"])


# --- the runtime around the layers ---


def small_network() -> Network:
    graph = build(ResNetSpec(1, 2, 2, 1, upsampling="nearest", norm="instance_affine"))
    weights = {name: numbers(*shape) * 0.2 for name, shape in graph.weight_shapes()}
    return Network(graph, weights)


def test_extents_and_batch_are_free() -> None:
    with open_cpu_generator(small_network(), threads=1) as generator:
        for batch, patch in product((1, 2), ((8, 8, 8), (12, 8, 16))):
            assert generator(numbers(batch, 1, *patch)).shape == (batch, 2, *patch)


def test_patches_of_a_batch_do_not_see_each_other() -> None:
    patches = numbers(3, 1, 8, 8, 8)
    with open_cpu_generator(small_network(), threads=1) as generator:
        together = generator(patches)
        alone = np.concatenate([generator(patches[n : n + 1]) for n in range(3)])
    assert np.allclose(together, alone, atol=1e-6)


def test_results_are_bit_identical() -> None:
    patch = numbers(1, 1, 16, 16, 16)
    outputs: list[FloatArray] = []
    for _ in range(2):
        with open_cpu_generator(small_network(), threads=2) as generator:
            outputs += [generator(patch), generator(patch)]
    assert all(np.array_equal(outputs[0], output) for output in outputs)


def test_wrong_extents_are_refused_before_running() -> None:
    with (
        open_cpu_generator(small_network(), threads=1) as generator,
        pytest.raises(PatchShapeError, match="multiple of 4x4x4"),
    ):
        generator(numbers(1, 1, 8, 10, 8))


def test_runs_only_while_open() -> None:
    with open_cpu_generator(small_network(), threads=1) as generator:
        generator(numbers(1, 1, 8, 8, 8))
    with pytest.raises(RuntimeError, match="closed"):
        generator(numbers(1, 1, 8, 8, 8))


def test_device_names_threads_and_runtime() -> None:
    with open_cpu_generator(small_network(), threads=3) as generator:
        assert generator.device.startswith("CPU, 3 threads, ONNX")


def test_threads_do_not_wait_busily() -> None:
    entry = session_options(2).get_session_config_entry("session.intra_op.allow_spinning")
    assert entry == "0"


def test_the_exported_model_is_valid_onnx() -> None:
    import onnx

    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    onnx.checker.check_model(to_onnx(small_network()), full_check=True)
