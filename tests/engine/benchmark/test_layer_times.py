"""The table of layers: arithmetic is shared out whole, and bytes are those that must move."""

from math import prod

import numpy as np
import pytest
from support.described_gpus import H200
from support.gpu_networks import chain, random_network

from cuda_cyclegan.engine.benchmark.layer_times import layer_times, work_of
from cuda_cyclegan.engine.benchmark.measurement import LayerTime
from cuda_cyclegan.engine.compiler.lowered import Layout, Lowered
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Pointwise
from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.graph_analysis import flops, layer_flops
from cuda_cyclegan.engine.network.layers import Concat, Conv3d, Pool, Upsample

PATCH = (32, 32, 32)
SPECS = [
    ResNetSpec(1, 1, 32, 2),
    UNetSpec(1, 1, 32, 4),
    ResNetSpec(1, 1, 16, 1, upsampling="nearest"),
]
LAYOUTS = [
    Layout(PATCH, 2, "fp16", matrix_kernels=True),
    Layout(PATCH, 3, "fp32", slab_bytes=1 << 20),
]


def lowered(spec: Spec, layout: Layout) -> Lowered:
    graph = build(spec)
    weights = {name: np.ones(shape, np.float32) for name, shape in graph.weight_shapes()}
    return lower(Network(graph, weights), layout, H200)


def rows_of(spec: Spec, layout: Layout) -> tuple[LayerTime, ...]:
    arithmetic = {k: layout.batch * n for k, n in layer_flops(build(spec), PATCH).items()}
    timed = [(step, 1e-3) for step in lowered(spec, layout).steps]
    return layer_times(timed, arithmetic, lambda shape: f"plan for {shape.kernel}")


@pytest.mark.parametrize("layout", LAYOUTS, ids=["batch", "slabs"])
@pytest.mark.parametrize("spec", SPECS, ids=["resnet", "unet", "sampling"])
def test_all_arithmetic_of_the_network_is_in_the_table(spec: Spec, layout: Layout) -> None:
    rows = rows_of(spec, layout)
    wanted = layout.batch * flops(build(spec), PATCH)
    assert sum(row.flops for row in rows) == pytest.approx(wanted, rel=1e-9)
    assert all(row.bytes for row in rows)
    named = {node.name for node in build(spec).nodes}
    assert {row.layer for row in rows if row.flops} <= named


@pytest.mark.parametrize("layout", LAYOUTS, ids=["batch", "slabs"])
def test_the_bytes_of_a_block_are_counted_by_hand(layout: Layout) -> None:
    size = 2 if layout.precision == "fp16" else 4
    found = {row.layer: row for row in rows_of(SPECS[0], layout)}
    conv = found["block0.conv0"]
    padded, kept, weight = 10**3 * 128, 8**3 * 128, 27 * 128 * 128
    assert conv.bytes == (layout.batch * (padded + kept) + weight) * size
    assert conv.plan == "plan for (3, 3, 3)"
    norm = found["block0.conv1.pad"]
    assert norm.bytes == layout.batch * (kept + padded) * size
    assert norm.flops == 0


def test_a_pass_moves_its_own_channels_of_a_joined_map() -> None:
    graph = chain(
        1,
        ("a", Conv3d(1, 8, (1, 1, 1), "a.weight")),
        ("small", Pool("mean", (2, 2, 2), (2, 2, 2))),
        ("wide", Upsample("nearest", (2, 2, 2)), ("small",)),
        ("join", Concat(), ("wide", "a")),
        ("leave", Conv3d(16, 1, (3, 3, 3), "leave.weight", padding=(1, 1, 1))),
    )
    program = lower(random_network(graph, 0), Layout(PATCH, 2, "fp16"), H200)
    passes = [step for step in program.steps if isinstance(step, Pointwise)]
    written = [step for step in passes if step.target.channels == 16]
    vector = 2 * 16 * prod(PATCH)
    assert [work_of(step).bytes for step in written] == [vector // 8 + vector, 2 * vector]


def test_slabs_move_no_more_than_whole_layers_but_their_borders() -> None:
    whole, slabs = (
        [r for r in rows_of(SPECS[0], Layout(PATCH, 1, "fp32", slab_bytes=b)) if r.layer == "first"]
        for b in (1 << 40, 1 << 20)
    )
    assert len(whole) == 1 < len(slabs)
    assert sum(row.flops for row in slabs) == whole[0].flops == 2 * 32 * 343 * prod(PATCH)
