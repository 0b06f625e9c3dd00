"""The plan holds every byte of a program, and none twice at a time."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec import structs
from support.described_gpus import H200
from support.gpu_networks import ODD_GRAPHS, chain, random_network
from support.step_interpreter import interpret

from cuda_cyclegan.engine.compiler.kernels.step_launches import launches, measuring_blocks
from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.program.memory import plan_memory, scratch_name
from cuda_cyclegan.engine.compiler.steps import Conv, Normalise, Pointwise, is_planned
from cuda_cyclegan.engine.compiler.tensors import PATCHES
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Conv3d

RESNET = ResNetSpec(1, 1, width=16, blocks=2)


def compiled(spec=RESNET, patch=(16, 24, 32), batch=1, gpu=H200, **choices):
    layout = Layout(patch, batch, "fp16", **choices)
    lowered = lower(random_network(build(spec), 0), layout, gpu)
    steps = enumerate(lowered.steps)
    workspaces = {index: 1000 for index, step in steps if is_planned(step)}
    return lowered, plan_memory(lowered, (1, 1), workspaces)


def assert_apart(plan, sizes):
    """Assert that blocks of these sizes, by their names, do not overlap."""
    spans = sorted((plan.offsets[name], size) for name, size in sizes.items())
    for (start, size), (following_start, _) in pairwise([*spans, (plan.bytes, 0)]):
        assert start + size <= following_start


@pytest.mark.parametrize("matrix_kernels", [False, True])
@pytest.mark.parametrize("spec", [RESNET, structs.replace(RESNET, width=32), UNetSpec(1, 1, 8, 3)])
def test_every_launch_finds_its_memory(spec, matrix_kernels):
    lowered, plan = compiled(spec, batch=2, matrix_kernels=matrix_kernels)
    for index, step in enumerate(lowered.steps):
        scratch = plan.offsets.get(scratch_name(index), 0)
        for launch in launches(step, lambda name: plan.offsets[name], H200, scratch):
            assert all(0 < size < 2**16 for size in launch.grid[1:])
            assert 0 < launch.block[0] * launch.block[1] * launch.block[2] <= 1024
            alone = H200.shared_of_a_lone_block
            assert launch.shared <= (alone if launch.cooperative else 99 << 10)


def test_a_sum_that_is_split_has_memory_for_its_partial_sums():
    """Twelve splits of 192 channels, of 16 outputs in float each."""
    wide = Conv3d(1, 192, (3, 3, 3), "wide.weight", padding=(1, 1, 1))
    few = Conv3d(192, 16, (3, 3, 3), "few.weight", padding=(1, 1, 1))
    last = Conv3d(16, 1, (1, 1, 1), "last.weight")
    network = random_network(chain(1, ("wide", wide), ("few", few), ("last", last)), 0)
    layout = Layout((16, 16, 16), 1, "fp16", matrix_kernels=True)
    lowered = lower(network, layout, H200)
    plan = plan_memory(lowered, (1, 1), {})
    steps = enumerate(lowered.steps)
    [(index, step)] = [(i, s) for i, s in steps if isinstance(s, Conv) and s.layer == "few"]
    sizes = {
        step.source.name: step.source.bytes,
        step.target.name: step.target.bytes,
        step.weight: lowered.weights[step.weight].size * 2,
        scratch_name(index): 12 * 16**3 * 16 * 4,
    }
    assert_apart(plan, sizes)


def test_a_first_layer_that_measures_has_memory_for_it():
    """Large tensors alone are measured so; the smaller ones are normalised in one launch."""
    uncached = replace(H200, l2_bytes=0)
    wide = structs.replace(RESNET, width=32)
    lowered, plan = compiled(wide, batch=2, gpu=uncached, matrix_kernels=True)
    first, following = lowered.steps[:2]
    assert isinstance(first, Conv)
    assert isinstance(following, Pointwise)
    assert first.statistics is not None
    assert first.statistics.target == following.table
    blocks = measuring_blocks(first, uncached)
    sizes = {
        PATCHES: 2 * 16 * 24 * 32 * 4,
        first.target.name: first.target.bytes,
        first.statistics.target.name: first.statistics.target.bytes,
        first.weight: lowered.weights[first.weight].size * 2,
        scratch_name(0): 2 * blocks * 32 * 12,
    }
    assert_apart(plan, sizes)


def test_a_pass_that_keeps_the_shape_works_in_place():
    lowered, plan = compiled()
    passes = [s.pointwise if isinstance(s, Normalise) else s for s in lowered.steps]
    [step] = [
        step
        for step in passes
        if isinstance(step, Pointwise) and step.target.name.endswith("first.relu")
    ]
    assert plan.offsets[step.target.name] == plan.offsets[step.source.tensor.name]


@pytest.mark.parametrize("name", ["resnet", "unet", *ODD_GRAPHS])
def test_tensors_that_share_memory_do_not_disturb_each_other(name):
    graph = {"resnet": build(RESNET), "unet": build(UNetSpec(1, 1, 4, 3))}.get(name)
    graph = graph or ODD_GRAPHS[name]
    patch = (8, 12, 8) if name == "resnet" else (8, 8, 8)
    layout = Layout(patch, 2, "fp32", slab_bytes=100_000)
    lowered = lower(random_network(graph, 0), layout, H200)
    plan = plan_memory(lowered, (graph.in_channels, graph.out_channels), {})
    patches = np.random.default_rng(0).uniform(-1, 1, (2, graph.in_channels, *patch))
    patches = patches.astype(np.float32)
    alone = interpret(lowered, patches, graph.out_channels)
    assert np.array_equal(interpret(lowered, patches, graph.out_channels, plan), alone)


def test_statistics_have_scratch_memory_of_their_own():
    lowered, plan = compiled()
    for index, step in enumerate(lowered.steps):
        if isinstance(step, Normalise):
            start = plan.offsets[scratch_name(index)]
            assert start != plan.offsets[step.pointwise.source.tensor.name]
            assert start != plan.offsets[step.pointwise.target.name]


def test_slabs_take_less_memory():
    _, whole = compiled(patch=(64, 32, 32), slab_bytes=1 << 30)
    _, slabs = compiled(patch=(64, 32, 32), slab_bytes=1 << 20)
    assert slabs.tensors < 0.7 * whole.tensors


def test_the_parts_of_the_plan_add_up():
    _, plan = compiled()
    assert plan.constants + plan.patches + plan.tensors == plan.bytes


def test_a_program_is_planned_without_laying_out_its_weights():
    """The weights would take terabytes."""
    graph = build(ResNetSpec(1, 1, width=1 << 15, blocks=2))
    weights = {key: np.broadcast_to(np.float32(1), s) for key, s in graph.weight_shapes()}
    lowered = lower(Network(graph, weights), Layout((32, 32, 32), 1, "fp16"), H200)
    plan = plan_memory(lowered, (1, 1), {})
    numbers = sum(weight.size for weight in weights.values())
    assert 2 * numbers < plan.constants < 2.1 * numbers
