"""The compiled steps, carried out in numpy, give what ONNX Runtime gives."""

from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import pytest
from msgspec import structs
from support.covering_networks import SPECS, covering
from support.described_gpus import B200, H200, T4
from support.gpu_networks import ODD_GRAPHS, ODD_PATCH, chain, random_network
from support.kernel_samples import computed_by
from support.network_features import FEATURES
from support.step_interpreter import interpret

from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.compiler.kernels.launch import anywhere
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches
from cuda_cyclegan.engine.compiler.kernels.table import TENSOR_CORE_KERNELS
from cuda_cyclegan.engine.compiler.lowered import Layout, Lowered
from cuda_cyclegan.engine.compiler.program.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import (
    ActivatedView,
    Conv,
    Interleave,
    Normalise,
    Pointwise,
    Statistics,
    planned,
)
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.architectures import Groups, ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import (
    Add,
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Elu,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    LeakyRelu,
    Pad,
    Relu,
    Sigmoid,
    Triple,
    Upsample,
    triple,
)
from cuda_cyclegan.engine.options import Precision

RESNET = ResNetSpec(1, 1, width=4, blocks=2)
UNET = UNetSpec(1, 1, width=4, levels=3)
RESNETS = {
    "reflect": RESNET,
    "replicate": structs.replace(RESNET, padding="replicate", down_padding="replicate"),
    "zero": structs.replace(RESNET, padding="zero", norm="instance_affine", end="none"),
    "stored": structs.replace(RESNET, norm="stored"),
    "no norm": structs.replace(RESNET, norm="none", last_bias=False),
    "nearest": structs.replace(RESNET, upsampling="nearest"),
    "trilinear": structs.replace(RESNET, upsampling="trilinear"),
    "corners": structs.replace(RESNET, upsampling="trilinear_corners"),
    "channels": structs.replace(RESNET, in_channels=2, out_channels=3, width=5),
    "small kernels": structs.replace(RESNET, first_kernel=3, last_kernel=3),
}
UNETS = {
    "unet": UNET,
    "unet deeper first": structs.replace(UNET, skip_first=False, width=3),
    "unet nearest": structs.replace(UNET, upsampling="nearest"),
    "unet trilinear": structs.replace(UNET, upsampling="trilinear", norm="stored"),
}


@cache
@lru_cache(maxsize=4)
def reference(graph: Graph, patch: Triple, batch: int) -> tuple[Network, FloatArray, FloatArray]:
    """A network, patches for it, and what ONNX Runtime makes of them, whatever is compiled."""
    network = random_network(graph, seed=1)
    shape = (batch, graph.in_channels, *patch)
    patches = np.random.default_rng(2).uniform(-1, 1, shape).astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator:
        return network, patches, generator(patches)


def check(
    graph, patch: Triple, batch: int = 1, precision: Precision = "fp16", gpu=H200, **choices
) -> None:
    check_steps(lowered_for(graph, Layout(patch, batch, precision, **choices), gpu), graph)


def lowered_for(graph: Graph, layout: Layout, gpu: GpuProperties) -> Lowered:
    network, _, _ = reference(graph, layout.patch, layout.batch)
    return lower(network, layout, gpu)


def check_steps(lowered: Lowered, graph: Graph) -> None:
    _, patches, wanted = reference(graph, lowered.layout.patch, lowered.layout.batch)
    got = interpret(lowered, patches, graph.out_channels)
    assert np.linalg.norm(got - wanted) <= 2e-5 * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", RESNETS)
def test_resnet_steps_agree_with_onnx_runtime(name):
    check(build(RESNETS[name]), (12, 8, 16))


@pytest.mark.parametrize("name", UNETS)
def test_unet_steps_agree_with_onnx_runtime(name):
    check(build(UNETS[name]), (16, 8, 24))


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", covering(SPECS))
def test_steps_of_every_feature_agree_with_onnx_runtime(name, precision):
    graph, split = build(SPECS[name]), precision == "fp32"
    layout = Layout((16, 16, 24), 2, precision, split_fp16=split, matrix_kernels=not split)
    cached, uncached = (
        lowered_for(graph, layout, gpu) for gpu in (H200, replace(H200, l2_bytes=0))
    )
    check_steps(cached, graph)
    if uncached.steps != cached.steps:
        check_steps(uncached, graph)


@pytest.mark.parametrize("name", ["group norm", "constant padding", "anti-aliasing", "dilation"])
def test_steps_of_wide_features_agree_with_onnx_runtime(name):
    """Wide enough for the matrix kernels of the outer layers, and for split fp16."""
    wide = build(structs.replace(FEATURES[name], width=32, blocks=1))
    check(wide, (12, 12, 12), matrix_kernels=True)
    check(wide, (12, 12, 12), 2, "fp32", split_fp16=True)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_unusual_graphs_agree_with_onnx_runtime(name, precision):
    split = precision == "fp32"
    check(ODD_GRAPHS[name], ODD_PATCH, 2, precision, split_fp16=split, matrix_kernels=not split)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_batches_in_slabs_agree_with_onnx_runtime(precision, batch):
    check(build(RESNET), (12, 8, 16), batch, precision, slab_bytes=150_000)


@pytest.mark.parametrize("form", ["gradient", "subpixel", "cells", "phases"])
def test_all_forms_of_transposed_convolutions_agree(form):
    check(build(RESNET), (8, 8, 8), forms={"up0": form, "up1": form})
    check(build(UNET), (8, 8, 8), forms={f"up{level}": form for level in range(3)})


@pytest.mark.parametrize(
    "up",
    [
        ConvTranspose3d(5, 1, (10, 6, 3), "w", "b", (8, 4, 2), (1, 1, 0)),
        ConvTranspose3d(5, 3, (7, 2, 4), "w", "b", (3, 2, 3), (2, 0, 1), (2, 1, 0)),
        ConvTranspose3d(5, 9, (1, 4, 4), "w", None, (1, 2, 2), (0, 1, 1)),
        ConvTranspose3d(5, 16, (2, 3, 5), "w", "b", (4, 5, 3), (0, 2, 4), (3, 1, 2)),
        ConvTranspose3d(5, 8, (2, 3, 4), "w", "b", (2, 3, 2), (2, 1, 0), (0, 2, 1), (3, 2, 1)),
        ConvTranspose3d(5, 2, (9, 2, 3), "w", None, (2, 2, 1), (7, 4, 2)),
    ],
    ids=["large", "extra", "flat", "gaps", "dilated", "padded"],
)
def test_transposed_convolutions_by_phases_agree(up):
    patch = 4, 5, 3
    first = ("a", Conv3d(2, 5, (1, 1, 1), "a.weight")), ("up", up)
    extents = chain(2, *first).shapes(patch)["up"].extents
    more = [there - wanted for there, wanted in zip(extents, patch, strict=True)]
    graph = chain(
        2,
        *first,
        ("elu", Elu(1.0)),
        ("cut", Crop((0, 0, 0), triple(max(0, extent) for extent in more))),
        ("pad", Pad("zero", (0, 0, 0), triple(max(0, -extent) for extent in more))),
    )
    check(graph, patch, 2, forms={"up": "phases"})


@pytest.mark.parametrize(
    ("kernel", "stride", "outputs", "form"),
    [
        (6, 4, 1, "phases"),
        (18, 16, 1, "phases"),
        (4, 4, 16, "phases"),
        (5, 3, 64, "gradient"),
        (18, 16, 16, "gradient"),  # 128 MiB of weights, most of them 0
    ],
)
def test_phases_are_for_few_outputs_and_large_strides(kernel, stride, outputs, form):
    padding = (kernel - stride) // 2
    ups = (kernel,) * 3, "u.weight", None, (stride,) * 3, (padding,) * 3
    leave = Conv3d(outputs, 1, (1, 1, 1), "leave.weight")
    graph = chain(
        1,
        ("a", Conv3d(1, 128, (stride,) * 3, "a.weight", None, (stride,) * 3)),
        ("up", ConvTranspose3d(128, outputs, *ups)),
        ("leave", leave),
    )
    steps = lower(random_network(graph, 0), Layout((48, 48, 48), 1, "fp16"), H200).steps
    assert any(isinstance(step, Interleave) for step in steps) == (form == "phases")


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_an_own_form_is_taken_where_it_is_not_asked_for_another(form):
    graph, patch = halving_graph(InstanceNorm(32), Relu()), (4, 6, 8)
    layout = Layout(patch, 1, "fp16", wgmma=True, forms={"down": form})
    steps = lower(random_network(graph, 1), layout, H200).steps
    assert bool(computed_by(steps, "convolve_strided")) == (form == "custom")
    check(graph, patch, wgmma=True, forms={"down": form})


@pytest.mark.parametrize("form", ["plain", "cells"])
def test_both_forms_of_strided_convolutions_agree(form):
    for spec in (UNET, structs.replace(UNET, padding="reflect", norm="stored")):
        check(build(spec), (8, 16, 8), forms={"down1": form, "down2": form})


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize(
    ("kernel", "padding", "pad", "cells"),
    [
        ((4, 2, 6), (1, 0, 2), Pad("zero", (0, 0, 0), (0, 0, 0)), True),
        ((4, 6, 2), (0, 0, 0), Pad("reflect", (1, 3, 0), (1, 1, 0)), True),
        ((2, 2, 2), (0, 0, 0), Pad("zero", (0, 0, 0), (0, 0, 0)), True),
        ((4, 4, 4), (0, 1, 0), Pad("zero", (2, 0, 1), (0, 0, 1)), False),
        ((2, 3, 3), (0, 1, 1), Pad("zero", (0, 0, 0), (0, 0, 0)), False),
    ],
)
def test_layers_around_cells_agree(kernel, padding, pad, cells, precision):
    """Values in space-to-depth layout are measured, added and joined by other layers too."""
    two, half = (2, 2, 2), tuple(extent // 2 - 1 for extent in kernel)
    even = tuple(extent // 2 * 2 for extent in kernel)
    mix = Conv3d(24, 1, (1, 1, 1), weight="mix.weight")
    nodes = (
        Node("first", Conv3d(1, 12, (3, 3, 3), weight="first.weight", padding=(1, 1, 1)), (INPUT,)),
        Node("leaky", LeakyRelu(0.2), ("first",)),
        *([Node("pad", pad, ("leaky",))] if any(pad.before) else []),
        Node(
            "down",
            Conv3d(
                12, 12, kernel, weight="down.weight", bias="down.bias", stride=two, padding=padding
            ),
            ("pad" if any(pad.before) else "leaky",),
        ),
        Node("relu", Relu(), ("down",)),
        Node(
            "up",
            ConvTranspose3d(12, 12, even, weight="up.weight", stride=two, padding=half),
            ("relu",),
        ),
        Node("up norm", InstanceNorm(12), ("up",)),
        Node("leaky norm", GroupNorm(12, 3), ("leaky",)),
        Node("sum", Add(), ("up norm", "leaky norm")),
        Node("both", Concat(), ("sum", "leaky")),
        Node("mix", mix, ("both",)),
    )
    graph, patch = Graph(1, nodes), (16, 12, 20)
    check(graph, patch, 2, precision, split_fp16=precision == "fp32")
    steps = lower(random_network(graph, 1), Layout(patch, 2, precision), H200).steps
    [down] = [step for step in planned(steps) if step.layer == "down"]
    assert (down.shape.stride == (1, 1, 1)) == cells


@pytest.mark.parametrize("padding", ["reflect", "replicate", "zero"])
def test_matrix_kernels_of_the_outer_layers_agree(padding):
    spec = structs.replace(RESNET, width=16, blocks=1, padding=padding)
    check(build(spec), (8, 12, 16), batch=2, matrix_kernels=True)
    check(build(structs.replace(spec, first_kernel=3)), (8, 12, 16), matrix_kernels=True)
    wide = structs.replace(spec, width=32, last_kernel=5, blocks=0, out_channels=2)
    check(build(wide), (8, 12, 16), matrix_kernels=True)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"skip_first": False},
        {"norm": "stored", "end": "sigmoid", "out_channels": 2},
        {"up_activation": LeakyRelu(0.1), "end": "none", "adds_input": True},
    ],
)
def test_a_transposed_last_layer_straight_from_its_operands_agrees(changed):
    spec = structs.replace(UNetSpec(1, 1, 32, 2), **changed)
    graph = build(spec)
    layout = Layout((8, 12, 16), 2, "fp16", matrix_kernels=True)
    steps = lower(random_network(graph, 1), layout, H200).steps
    [last] = computed_by(steps, "conv_transpose_to_patches")
    assert len(last.views) == 2
    check(graph, (8, 12, 16), batch=2, matrix_kernels=True)


@pytest.mark.parametrize(
    "spec",
    [
        UNetSpec(1, 1, 24, 2),
        UNetSpec(1, 1, 32, 2, up_activation=Elu(1.0)),
        UNetSpec(1, 1, 32, 2, upsampling="nearest"),
    ],
    ids=["odd channels", "elu", "nearest"],
)
def test_a_last_layer_that_its_kernel_cannot_do_is_done_as_any_other(spec):
    layout = Layout((8, 12, 16), 2, "fp16", matrix_kernels=True)
    steps = lower(random_network(build(spec), 1), layout, H200).steps
    assert not computed_by(steps, "conv_transpose_to_patches")
    check(build(spec), (8, 12, 16), batch=2, matrix_kernels=True)


def test_a_first_layer_that_measures_what_it_makes_agrees():
    uncached = replace(H200, l2_bytes=0)
    graph = build(structs.replace(RESNET, width=16, blocks=1))
    layout = Layout((8, 12, 16), 2, "fp16", matrix_kernels=True)
    steps = lower(random_network(graph, 0), layout, uncached).steps
    [first] = computed_by(steps, "convolve_patches")
    assert first.statistics is not None
    check(graph, (8, 12, 16), batch=2, gpu=uncached, matrix_kernels=True)


@pytest.mark.parametrize("width", [32, 64])
def test_outer_layers_by_warp_groups_agree(width):
    graph = build(structs.replace(RESNET, width=width, downsamplings=1, blocks=0))
    patch = 8, 8, 72
    layout = Layout(patch, 1, "fp16", matrix_kernels=True, wgmma=True)
    first, *_, last = lower(random_network(graph, 0), layout, H200).steps
    names = "convolve_patches_wgmma", "convolve_to_patches_wgmma"
    assert computed_by([first, last], *names) == [first, last]
    check(graph, patch, matrix_kernels=True, wgmma=True)


@pytest.mark.parametrize("norm", ["instance", "instance_affine", Groups(4), "stored"])
@pytest.mark.parametrize("width", [32, 64])
def test_transposed_convolutions_by_warp_groups_agree(width, norm):
    spec = structs.replace(
        RESNET, width=width, blocks=0, norm=norm, downsamplings=2 if width == 32 else 1
    )
    graph = build(spec)
    patch = 4, 12, 8
    layout = Layout(patch, 2, "fp16", matrix_kernels=True, wgmma=True)
    steps = lower(random_network(graph, 0), layout, H200).steps
    doubled = computed_by(steps, "conv_transpose_to_cells")
    assert [step.source.channels for step in doubled] == ([128, 64] if width == 32 else [128])
    assert all((step.statistics is None) == (norm == "stored") for step in doubled)
    check(graph, patch, 2, matrix_kernels=True, wgmma=True)


def test_groups_of_few_channels_by_kernels_of_whole_layers_agree():
    """The weight is made dense first, with zeros between the groups."""
    taps, one, two = (3, 3, 3), (1, 1, 1), (2, 2, 2)
    up = ConvTranspose3d(64, 64, taps, "u.weight", None, two, one, one, groups=16)
    graph = chain(
        1,
        ("down", Conv3d(1, 64, (3, 3, 3), "d.weight", None, two, (1, 1, 1))),
        ("up", up),
        ("leave", Conv3d(64, 1, (1, 1, 1), "l.weight")),
    )
    layout = Layout((8, 8, 8), 1, "fp16", matrix_kernels=True, wgmma=True)
    steps = lower(random_network(graph, 0), layout, H200).steps
    assert computed_by(steps, "conv_transpose_to_cells")
    check(graph, (8, 8, 8), matrix_kernels=True, wgmma=True)


def halving_graph(norm, activation, stride=(2, 2, 2), outputs=64):
    """A layer that halves what another one reads, too."""
    down = Conv3d(32, outputs, (3, 3, 3), "down.weight", "down.bias", stride, (1, 1, 1))
    mix = Conv3d(32 + outputs, 1, (1, 1, 1), weight="mix.weight")
    nodes = (
        Node("first", Conv3d(1, 32, (1, 1, 1), "first.weight", "first.bias"), (INPUT,)),
        *([Node("norm", norm, ("first",))] if norm else []),
        Node("active", activation, ("norm" if norm else "first",)),
        Node("down", down, ("active",)),
        Node("down norm", InstanceNorm(outputs), ("down",)),
        Node("up", Upsample("nearest", stride), ("down norm",)),
        Node("both", Concat(), ("active", "up")),
        Node("mix", mix, ("both",)),
    )
    return Graph(1, nodes)


@pytest.mark.parametrize(
    ("norm", "activation", "is_activated"),
    [
        (InstanceNorm(32), Relu(), True),
        (InstanceNorm(32), LeakyRelu(0.2), True),
        (GroupNorm(32, 4), Relu(), True),
        (None, Relu(), True),
        (InstanceNorm(32), LeakyRelu(1.5), False),
        (InstanceNorm(32), LeakyRelu(-0.1), False),
        (InstanceNorm(32), Elu(1.0), False),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_halving_convolutions_by_warp_groups_agree(norm, activation, is_activated, batch):
    graph, patch = halving_graph(norm, activation), (4, 10, 8)
    layout = Layout(patch, batch, "fp16", matrix_kernels=True, wgmma=True)
    steps = lower(random_network(graph, 1), layout, H200).steps
    [down] = computed_by(steps, "convolve_strided")
    [read] = down.views
    assert (read != bare(read)) == is_activated
    check(graph, patch, batch, matrix_kernels=True, wgmma=True)


def test_a_norm_that_a_halving_layer_reads_too_is_not_one_launch_with_a_pass():
    nodes = (
        Node("first", Conv3d(1, 32, (1, 1, 1), "first.weight"), (INPUT,)),
        Node("norm", InstanceNorm(32), ("first",)),
        Node("both", Concat(), ("norm", "first")),
        Node("side", Conv3d(64, 8, (1, 1, 1), "side.weight"), ("both",)),
        Node(
            "down", Conv3d(32, 64, (3, 3, 3), "down.weight", None, (2, 2, 2), (1, 1, 1)), ("norm",)
        ),
        Node("up", Upsample("nearest", (2, 2, 2)), ("down",)),
        Node("all", Concat(), ("side", "up")),
        Node("mix", Conv3d(72, 1, (1, 1, 1), "mix.weight"), ("all",)),
    )
    graph, patch = Graph(1, nodes), (4, 6, 8)
    layout = Layout(patch, 1, "fp16", wgmma=True)
    steps = lower(random_network(graph, 1), layout, H200).steps
    [down] = computed_by(steps, "convolve_strided")
    assert down.views[0].table is not None
    check(graph, patch, wgmma=True)


def bare(view: ActivatedView) -> ActivatedView:
    return ActivatedView(view.source)


@pytest.mark.parametrize("changed", [{"stride": (2, 2, 1)}, {"outputs": 48}])
def test_strided_convolutions_that_the_own_kernel_cannot_do_are_left_to_plans(changed):
    graph, patch = halving_graph(InstanceNorm(32), Relu(), **changed), (4, 10, 8)
    layout = Layout(patch, 1, "fp16", matrix_kernels=True, wgmma=True)
    steps = lower(random_network(graph, 1), layout, H200).steps
    assert not computed_by(steps, "convolve_by_planes", "convolve_strided")
    check(graph, patch, matrix_kernels=True, wgmma=True)


def _plain(inputs: int, outputs: int, name: str) -> Conv3d:
    return Conv3d(inputs, outputs, (3, 3, 3), f"{name}.weight", None, padding=(1, 1, 1))


def graph_of_planes(activation) -> Graph:
    """A level of a U-Net: two norms and the joint that convolutions by planes read."""
    double = ConvTranspose3d(64, 32, (2, 2, 2), "up.weight", None, (2, 2, 2))
    nodes = (
        Node("first", _plain(1, 32, "first"), (INPUT,)),
        Node("norm", InstanceNorm(32), ("first",)),
        Node("bent", activation, ("norm",)),
        Node("second", _plain(32, 32, "second"), ("bent",)),
        Node("norm2", InstanceNorm(32, "scale", "shift"), ("second",)),
        Node("bent2", activation, ("norm2",)),
        Node("below", Conv3d(32, 64, (2, 2, 2), "below.weight", None, (2, 2, 2)), ("bent2",)),
        Node("up", double, ("below",)),
        Node("joint", Concat(), ("up", "bent2")),
        Node("third", _plain(64, 32, "third"), ("joint",)),
        Node("norm3", InstanceNorm(32), ("third",)),
        Node("sum", Add(), ("norm3", "bent2")),
        Node("fourth", _plain(32, 64, "fourth"), ("sum",)),
        Node("last", Conv3d(64, 1, (1, 1, 1), "last.weight"), ("fourth",)),
    )
    return Graph(1, nodes)


def graph_of_five_planes(activation) -> Graph:
    """A 5^3 convolution of 32 channels, and one of 96 that are two maps."""
    nodes = (
        Node("first", _plain(1, 32, "first"), (INPUT,)),
        Node("norm", InstanceNorm(32), ("first",)),
        Node("bent", activation, ("norm",)),
        Node("conv", Conv3d(32, 64, (5, 5, 5), "conv.weight", padding=(2, 2, 2)), ("bent",)),
        Node("both", Concat(), ("bent", "conv")),
        Node("next", Conv3d(96, 32, (5, 5, 5), "next.weight", padding=(2, 2, 2)), ("both",)),
        Node("last", Conv3d(32, 1, (3, 3, 3), "last.weight", padding=(1, 1, 1)), ("next",)),
    )
    return Graph(1, nodes)


SMALL: Triple = (16, 16, 96)
OF_KERNELS: dict[str, tuple[Graph, GpuProperties]] = {
    "warpgroups": (build(ResNetSpec(1, 1, 32, 0, downsamplings=1)), H200),
    "planes": (graph_of_planes(Relu()), H200),
    "five planes": (graph_of_five_planes(Relu()), H200),
    "mma": (build(ResNetSpec(1, 1, 32, 0, downsamplings=1)), B200),
    "U-Net": (build(UNetSpec(1, 1, 32, 3)), H200),
    "narrow": (ODD_GRAPHS["maps of one channel"], H200),
}
"""Networks that between them are lowered to all custom kernels for Tensor Cores."""


@cache
def kernels_of(name: str, without: frozenset[str] = frozenset()) -> frozenset[str]:
    """The .cu files of the kernels for Tensor Cores that a network takes."""
    graph, gpu = OF_KERNELS[name]
    layout = ProgramRequest(SMALL, 1, "fp16", gpu, without).fastest
    network = Network(
        graph, {key: np.zeros(shape, np.float32) for key, shape in graph.weight_shapes()}
    )
    steps = lower(network, layout, gpu).steps
    found = {launch.source for step in steps for launch in launches(step, anywhere, gpu)}
    return frozenset(found & TENSOR_CORE_KERNELS)


def test_networks_of_the_next_test_take_all_kernels():
    assert frozenset().union(*map(kernels_of, OF_KERNELS)) == TENSOR_CORE_KERNELS


@pytest.mark.parametrize("wrong", sorted(TENSOR_CORE_KERNELS))
def test_a_kernel_that_was_wrong_on_a_gpu_leaves_the_others_in_use(wrong):
    """Another kernel, or cuDNN, replaces it."""
    for name in OF_KERNELS:
        usual, others = kernels_of(name), kernels_of(name, frozenset({wrong}))
        assert wrong not in others
        assert usual - {wrong} <= others


@pytest.mark.parametrize(
    ("activation", "is_activated"),
    [
        (Relu(), True),
        (LeakyRelu(0.01), True),
        (LeakyRelu(-0.1), True),
        (LeakyRelu(1.5), False),
        (Elu(1.0), False),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_convolutions_by_planes_agree(activation, is_activated, batch):
    graph, patch = graph_of_planes(activation), (4, 6, 8)
    layout = Layout(patch, batch, "fp16", matrix_kernels=True, wgmma=True)
    steps = lower(random_network(graph, 1), layout, H200).steps
    found = {step.layer: step for step in computed_by(steps, "convolve_by_planes")}
    assert set(found) == {"second", "third", "fourth"}
    assert len(found["third"].views) == 2
    assert (found["second"].views[0].table is not None) == is_activated
    assert found["second"].statistics is not None
    check(graph, patch, batch, matrix_kernels=True, wgmma=True)
    check(graph, patch, batch, matrix_kernels=True, wgmma=True, forms={"third": "plain"})


@pytest.mark.parametrize(
    ("activation", "is_activated"), [(LeakyRelu(0.1), True), (Elu(1.0), False)]
)
def test_convolutions_of_five_planes_agree(activation, is_activated):
    graph, patch = graph_of_five_planes(activation), (4, 8, 24)
    layout = Layout(patch, 2, "fp16", wgmma=True)
    first, second = computed_by(
        lower(random_network(graph, 1), layout, H200).steps, "convolve_five_planes"
    )
    assert (first.views[0].table is not None) == is_activated
    assert len(second.views) == 2
    check(graph, patch, 2, wgmma=True)
    check(graph, patch, 2, wgmma=True, forms={"next": "plain"})


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_by_planes_read_what_lies_around_a_border(stride):
    conv = structs.replace(_plain(32, 64, "conv"), stride=(stride,) * 3)
    nodes = (
        Node("first", _plain(1, 32, "first"), (INPUT,)),
        Node("norm", InstanceNorm(32), ("first",)),
        Node("bordered", Pad("reflect", (1, 1, 1), (1, 1, 1)), ("norm",)),
        Node("conv", conv, ("bordered",)),
        Node("up", Upsample("nearest", (stride,) * 3), ("conv",)),
        Node("last", Conv3d(64, 1, (3, 3, 3), "last.weight"), ("up",)),
    )
    graph, patch = Graph(1, nodes), (4, 6, 8)
    layout = Layout(patch, 1, "fp16", wgmma=True)
    steps = lower(random_network(graph, 1), layout, H200).steps
    [step] = computed_by(steps, "convolve_by_planes", "convolve_strided")
    assert step.views[0].source.extents == (6, 8, 10)
    check(graph, patch, wgmma=True)


@pytest.mark.parametrize("activation", [LeakyRelu(0.1), Elu(1.0)])
@pytest.mark.parametrize(("outputs", "batch"), [(1, 2), (4, 1), (5, 1)])
def test_a_last_layer_of_single_voxels_writes_the_patches(activation, outputs, batch):
    """One that reads what bends once writes nothing on the way; there may be four outputs."""
    last = Conv3d(12, outputs, (1, 1, 1), "last.weight", "last.bias")
    nodes = (
        Node("first", _plain(1, 12, "first"), (INPUT,)),
        Node("norm", InstanceNorm(12), ("first",)),
        Node("bent", activation, ("norm",)),
        Node("last", last, ("bent",)),
        Node("end", Sigmoid(), ("last",)),
    )
    graph, patch = Graph(1, nodes), (4, 6, 8)
    steps = lower(random_network(graph, 1), Layout(patch, batch, "fp16"), H200).steps
    assert bool(computed_by(steps[-1:], "convolve_voxels")) == (outputs <= 4)
    if isinstance(activation, LeakyRelu) and outputs <= 4:
        assert not any(isinstance(step, Pointwise | Normalise) for step in steps)
    check(graph, patch, batch)
    check(graph, patch, batch, precision="fp32")


def convolutions(graph, patch: Triple) -> dict[str, bool]:
    """Whether each convolution of a float program is done on split fp16, where it may be."""
    layout = Layout(patch, 1, "fp32", split_fp16=True)
    steps = lower(random_network(graph, 0), layout, H200).steps
    return {step.layer: step.shape.split_fp16 for step in planned(steps)}


@pytest.mark.parametrize("padding", ["reflect", "zero"])
@pytest.mark.parametrize("upsampling", ["transposed", "nearest"])
def test_convolutions_on_split_fp16_agree(padding, upsampling):
    spec = structs.replace(
        RESNET, width=32, padding=padding, upsampling=upsampling, norm="instance_affine"
    )
    graph = build(spec)
    check(graph, (8, 8, 8), 2, "fp32", split_fp16=True, slab_bytes=400_000)


def test_tf32_programs_with_some_convolutions_on_split_fp16_agree():
    for spec in (structs.replace(RESNET, width=32), structs.replace(UNET, width=32)):
        graph = build(spec)
        layout = Layout((16, 8, 8), 1, "tf32", split_fp16=True)
        steps = lower(random_network(graph, 0), layout, H200).steps
        layers = {s.layer for s in planned(steps) if s.shape.split_fp16}
        assert layers
        assert all(layer.startswith("down") for layer in layers)
        check(graph, (16, 8, 8), 2, "tf32", split_fp16=True)


def test_convolutions_behind_a_norm_may_be_on_split_fp16():
    by_layer = convolutions(build(structs.replace(RESNET, width=32)), (8, 8, 8))
    assert by_layer.pop("first") is False  # nothing bounds what comes in
    assert all(by_layer.values())
    unbounded = convolutions(build(structs.replace(RESNET, width=32, norm="stored")), (8, 8, 8))
    assert not any(unbounded.values())


def test_unet_convolutions_on_split_fp16_agree():
    graph = build(structs.replace(UNET, width=32))
    assert any(convolutions(graph, (16, 8, 8)).values())
    check(graph, (16, 8, 8), 1, "fp32", split_fp16=True)


def test_a_residual_block_is_two_convolutions_and_two_normalisations():
    counts = []
    for blocks in (2, 3):
        graph = build(structs.replace(RESNET, blocks=blocks))
        steps = lower(random_network(graph, 0), Layout((16, 16, 16), 1, "fp16"), H200).steps
        joined = sum(isinstance(step, Normalise) for step in steps)
        counts.append([len(list(planned(steps))), joined, len(steps)])
    assert [after - before for before, after in zip(*counts, strict=True)] == [2, 2, 4]


def test_statistics_of_large_tensors_and_of_sub_pixels_stay_apart():
    def apart(patch: Triple, gpu: GpuProperties) -> int:
        steps = lower(random_network(build(RESNET), 0), Layout(patch, 1, "fp16"), gpu).steps
        return sum(isinstance(step, Statistics) for step in steps)

    assert apart((16, 16, 16), H200) == 2  # the up-sampled
    assert apart((192, 192, 160), H200) == 3  # 90 MiB behind the first layer
    assert apart((192, 192, 160), B200) == 2
    assert apart((64, 64, 96), B200) == 2
    assert apart((64, 64, 96), T4) == 3  # 6 MiB behind it


def test_maps_of_few_channels_are_joined_without_a_copy():
    """Eleven of one channel take two vectors; nothing but convolutions touches them."""
    graph = ODD_GRAPHS["maps of one channel"]
    layout = Layout((64, 64, 64), 1, "fp16", matrix_kernels=True)
    steps = lower(random_network(graph, 1), layout, H200).steps
    narrow = computed_by(steps, "convolve_narrow")
    inner = [step for step in narrow if step.layer.startswith("c")]
    assert len({step.target.name for step in inner}) == 2
    assert [step.lanes and step.lanes[0] for step in inner] == [None, *range(1, 8), None, 1, 2]
    written = {step.target.name for step in inner}
    copied = [s for s in steps if isinstance(s, Pointwise) and s.source.tensor.name in written]
    assert not copied
    assert len(inner[-1].views) == 3


@pytest.mark.parametrize(("joined", "passes"), [(2, 2), (3, 4)])
def test_a_norm_by_channels_of_two_joined_maps_takes_one_pass_each(joined, passes):
    """Three are written as one first, in three passes."""
    maps = [f"map{number}" for number in range(joined)]
    nodes = [Node(name, _plain(1, 32, name), (INPUT,)) for name in maps]
    before = maps[0]
    for name in maps[1:]:
        nodes.append(Node(f"{name}.joined", Concat(), (before, name)))
        before = f"{name}.joined"
    channels = 32 * joined
    nodes += [
        Node("scaled", ChannelAffine(channels, "scaled.scale", "scaled.shift"), (before,)),
        Node("elu", Elu(), ("scaled",)),
        Node("last", _plain(channels, 40, "last"), ("elu",)),
    ]
    graph = Graph(1, tuple(nodes))
    steps = lowered_for(graph, Layout((6, 4, 8), 1, "fp16"), H200).steps
    assert sum(isinstance(step, Pointwise) for step in steps) == passes
    check(graph, (6, 4, 8))


def test_a_norm_of_joined_maps_shares_no_table_with_a_layer_of_a_similar_name():
    first, second, last = _plain(1, 32, "a"), _plain(1, 32, "b"), _plain(64, 32, "c")
    nodes = (
        Node("a", first, (INPUT,)),
        Node("b", second, (INPUT,)),
        Node("both", Concat(), ("a", "b")),
        Node("scaled", ChannelAffine(64, "scaled.scale", "scaled.shift"), ("both",)),
        Node("scaled1", structs.replace(last, bias="c.bias"), ("scaled",)),
        Node("elu", Elu(), ("scaled1",)),
        Node("leave", _plain(32, 1, "leave"), ("elu",)),
    )
    check(Graph(1, nodes), (6, 4, 8))


def test_layers_that_write_channels_of_a_list_of_maps_agree():
    graph, gpu = ODD_GRAPHS["list of joined maps"], replace(H200, multiprocessors=1)
    lowered = lowered_for(graph, Layout(ODD_PATCH, 2, "fp16", matrix_kernels=True), gpu)
    narrow = computed_by(lowered.steps, "convolve_narrow")
    assert any(step.translated is None and step.output.lanes for step in narrow)
    check_steps(lowered, graph)


def test_a_layer_of_few_channels_is_left_to_cudnn_if_it_does_not_fill_the_gpu():
    layer = chain(1, ("a", _plain(1, 8, "a")), ("b", _plain(8, 8, "b")), ("c", _plain(8, 1, "c")))
    network = random_network(layer, 1)

    def found(edge: int, batch: int) -> list[str]:
        layout = Layout((edge, edge, edge), batch, "fp16", matrix_kernels=True)
        steps = lower(network, layout, H200).steps
        return [step.layer for step in computed_by(steps, "convolve_narrow")]

    assert found(64, 1) == found(32, 3) == ["b", "c"]
    assert found(32, 1) == []


@pytest.mark.parametrize(
    ("edges", "inputs", "splits"),
    [
        ((4, 4, 4), 64, 4),
        ((16, 16, 16), 40, None),
        ((16, 16, 16), 64, 4),
        ((16, 16, 16), 160, 10),
        ((16, 16, 16), 336, 21),
        ((32, 32, 32), 16, None),  # measured: slower than cuDNN
        ((32, 32, 32), 40, None),
        ((32, 32, 32), 64, 4),
        ((32, 32, 32), 192, 4),
        ((32, 32, 48), 64, 1),  # the partial sums would cost more than they save
        ((64, 64, 64), 192, 1),
        ((64, 64, 64), 512, 1),
        ((64, 64, 64), 520, None),  # more vectors than a kernel gets
    ],
)
def test_a_small_map_of_many_channels_has_its_sum_split(edges, inputs, splits):
    """DenseVoxelNet has 12 outputs from 160 channels and more at 16^3, and fewer at 32^3;
    SkipDenseNet3D has 16 outputs from 64 channels down to 4^3.
    """
    layers = chain(
        1,
        ("wide", _plain(1, inputs, "wide")),
        ("few", _plain(inputs, 12, "few")),
        ("last", Conv3d(12, 1, (1, 1, 1), "last.weight")),
    )
    layout = Layout(edges, 1, "fp16", matrix_kernels=True)
    found = computed_by(lower(random_network(layers, 1), layout, H200).steps, "convolve_narrow")
    made = [launches(step, anywhere, H200) for step in found if step.layer == "few"]
    if splits is None:
        assert made == []
        return
    [(first, *added)] = made
    assert first.arguments.splits == splits
    tiles = 2 if edges == (64, 64, 64) else 1
    assert first.kernel == f"convolve_narrow<2, 3, {tiles}>"
    assert [launch.kernel for launch in added] == (["add_splits<2>"] if splits > 1 else [])


def test_a_map_without_a_free_lane_for_another_is_no_reason_for_a_kernel():
    """Two maps of 12 channels do not share 16 lanes; two of 4 channels share 8."""

    def found(channels: int) -> list[str]:
        nodes = (
            Node("a", _plain(1, 32, "a"), (INPUT,)),
            Node("b", _plain(32, channels, "b"), ("a",)),
            Node("c", _plain(32, channels, "c"), ("a",)),
            Node("joined", Concat(), ("b", "c")),
            Node("last", Conv3d(2 * channels, 1, (1, 1, 1), "last.weight"), ("joined",)),
        )
        layout = Layout((32, 32, 32), 1, "fp16", matrix_kernels=True)
        steps = lower(random_network(Graph(1, nodes), 1), layout, H200).steps
        narrow = computed_by(steps, "convolve_narrow")
        return [step.layer for step in narrow if step.translated is None]

    assert found(12) == []
    assert found(4) == ["c"]


@pytest.mark.parametrize(
    ("outputs", "kernels"), [(24, ["convolve_narrow<3, 3, 1>"]), (25, [])], ids=["24", "25"]
)
def test_a_layer_of_three_groups_has_a_custom_kernel(outputs, kernels):
    """DCSRN has 24 outputs from 48 channels and more; of 25, 32 are stored."""
    layers = chain(
        1,
        ("wide", _plain(1, 48, "wide")),
        ("few", _plain(48, outputs, "few")),
        ("last", Conv3d(outputs, 1, (1, 1, 1), "last.weight")),
    )
    layout = Layout((64, 64, 64), 1, "fp16", matrix_kernels=True)
    steps = lower(random_network(layers, 1), layout, H200).steps
    found = computed_by(steps, "convolve_narrow")
    assert [one.kernel for step in found for one in launches(step, anywhere, H200)] == kernels


@pytest.mark.parametrize(
    ("outputs", "edge", "instance"),
    [(8, 64, "1, 5, 1"), (16, 64, "2, 5, 1"), (8, 32, "1, 5, 1")],
)
def test_a_kernel_of_5_to_few_channels_has_a_custom_kernel(outputs, edge, instance):
    """The last block of a V-Net has 8 outputs, as stored."""
    wide = Conv3d(32, outputs, (5, 5, 5), "wide.weight", padding=(2, 2, 2))
    layers = chain(
        1,
        ("a", _plain(1, 32, "a")),
        ("wide", wide),
        ("last", Conv3d(outputs, 1, (1, 1, 1), "last.weight")),
    )
    layout = Layout((edge, edge, edge), 1, "fp16", matrix_kernels=True)
    steps = lower(random_network(layers, 1), layout, H200).steps
    [step] = computed_by(steps, "convolve_narrow")
    assert step.layer == "wide"
    [launch] = launches(step, anywhere, H200)
    assert launch.kernel == f"convolve_narrow<{instance}>"
    assert H200.resident_blocks(launch.shared) >= 2


@pytest.mark.parametrize(
    ("first", "second", "stored"), [(40, 16, 64), (40, 8, 64), (32, 8, 48), (16, 8, 24)]
)
def test_joined_maps_are_read_in_pairs_of_vectors(first: int, second: int, stored: int) -> None:
    """cuDNN is slow with other numbers of channels; what fills up is 0, not what was there."""
    layers = chain(
        1,
        ("a", _plain(1, first, "a")),
        ("b", _plain(first, second, "b")),
        ("join", Concat(), ("a", "b")),
        ("relu", Relu()),
        ("c", _plain(first + second, 72, "c")),
        ("leave", _plain(72, 40, "leave")),
    )
    steps = lower(random_network(layers, 1), Layout((8, 8, 8), 1, "fp16"), H200).steps
    [read] = [step.source for step in steps if isinstance(step, Conv) and step.layer == "c"]
    assert read.channels == stored
    written = {step.output.lanes for step in steps if getattr(step, "target", None) == read}
    assert sorted(lane for lanes in written for lane in range(*lanes)) == [*range(stored)]
    [last] = [step.source for step in steps if isinstance(step, Conv) and step.layer == "leave"]
    assert last.channels == 80
