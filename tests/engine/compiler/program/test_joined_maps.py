"""Joined maps are written where they are computed, if that takes little more memory."""

from dataclasses import replace
from typing import Any

import pytest
from support.described_gpus import H200
from support.gpu_networks import ODD_GRAPHS, chain, layer_norm, random_network
from support.kernel_samples import computed_by

from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.compiler.lowered import Layout, Lowered
from cuda_cyclegan.engine.compiler.program import builder
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.program.memory import most_live_bytes
from cuda_cyclegan.engine.compiler.steps import IDENTITY, Conv, Interleave, Pointwise
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.network.layers import (
    Add,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Elu,
    Pool,
    Upsample,
)

ONE, TWO, THREE = (1, 1, 1), (2, 2, 2), (3, 3, 3)


def lowered_for(graph: Graph, gpu: GpuProperties = H200, **choices: Any) -> Lowered:
    return lower(random_network(graph, 0), Layout((16, 16, 16), 2, "fp16", **choices), gpu)


def copies(lowered: Lowered) -> list[Pointwise]:
    passes = (step for step in lowered.steps if isinstance(step, Pointwise))
    return [
        step
        for step in passes
        if step.table is step.residual is step.sampling is None and step.activation == IDENTITY
    ]


def live_bytes(lowered: Lowered) -> int:
    return most_live_bytes(lowered.steps, lowered.constants)


def test_a_list_of_maps_grows_in_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ODD_GRAPHS["list of joined maps"]
    direct = lowered_for(graph)
    convolved = {step.target.name for step in direct.steps if isinstance(step, Conv) if step.views}
    sources = [step.source.tensor.name for step in copies(direct)]
    assert set(sources) <= convolved  # each map is copied once
    assert len(set(sources)) == len(sources)
    monkeypatch.setattr(builder, "without_copies", lambda steps, _: steps)
    copied = lowered_for(graph)
    assert len(copies(copied)) > len(sources)
    assert live_bytes(direct) <= live_bytes(copied)


def test_convolutions_to_few_channels_write_to_the_joined_map() -> None:
    """Only the first layer's result is copied. Two maps of 4 channels share a vector of the list,
    unless the second is computed from the first, which a kernel reads as a tensor.
    """
    fills = replace(H200, multiprocessors=1)
    direct = lowered_for(ODD_GRAPHS["list of joined maps"], fills, matrix_kernels=True)
    *narrow, _, _ = computed_by(direct.steps, "convolve_narrow")
    assert [step.output.lanes for step in narrow] == [(8 * n, 8 * n + 8) for n in range(1, 5)]
    assert len({step.target.name for step in narrow}) == 1
    assert [one.source.tensor.name.split(".")[1] for one in copies(direct)] == ["a"]

    for before, is_joined in (("wide", True), ("few", False)):
        graph = chain(
            1,
            ("wide", Conv3d(1, 40, THREE, "wide.weight", padding=ONE)),
            ("few", Conv3d(40, 4, THREE, "few.weight", padding=ONE)),
            (
                "more",
                Conv3d(40 if is_joined else 4, 4, THREE, "more.weight", padding=ONE),
                (before,),
            ),
            ("both", Concat(), ("few", "more")),
            ("all", Concat(), ("both", "wide")),
            ("again", Conv3d(48, 32, THREE, "again.weight", padding=ONE)),
            ("leave", Conv3d(32, 1, ONE, "leave.weight")),
        )
        lowered = lowered_for(graph, fills, matrix_kernels=True)
        few, more = computed_by(lowered.steps, "convolve_narrow")
        assert few.output == more.output
        assert more.lanes == (4, 8)
        assert (few.output.lanes == (0, 8)) == is_joined


def test_sampled_maps_and_voxels_of_phases_are_written_to_the_joined_map() -> None:
    graph = chain(
        1,
        ("a", Conv3d(1, 8, ONE, "a.weight")),
        ("half", Pool("mean", (4, 4, 4), (4, 4, 4))),
        ("b", Conv3d(8, 8, ONE, "b.weight")),
        ("wide", Upsample("nearest", (4, 4, 4))),
        ("up", ConvTranspose3d(8, 1, (4, 4, 4), "u.weight", None, (4, 4, 4)), ("b",)),
        ("join", Concat(), ("wide", "up")),
        ("leave", Conv3d(9, 1, (3, 3, 3), "leave.weight", padding=ONE)),
    )
    lowered = lowered_for(graph)
    assert not copies(lowered)
    [voxels] = [step for step in lowered.steps if isinstance(step, Interleave)]
    assert voxels.output.lanes == (8, 16)


@pytest.mark.parametrize(("width", "is_copied"), [(16, False), (48, True)])
def test_a_joined_map_that_would_live_long_is_copied_to(width: int, is_copied: bool) -> None:
    graph = chain(
        1,
        ("a", Conv3d(1, 8, ONE, "a.weight")),
        ("b", Conv3d(8, 8, ONE, "b.weight")),
        ("sum", Add(), ("a", "b")),
        ("more", Add(), ("sum", "a")),
        ("half", Pool("mean", TWO, TWO)),
        ("down", Conv3d(8, 64, (3, 3, 3), "down.weight", padding=ONE)),
        ("wide", Upsample("nearest", TWO)),
        ("c", Conv3d(64, 64, (3, 3, 3), "c.weight", padding=ONE)),
        ("elu", Elu(1.0)),
        ("d", Conv3d(64, width, (3, 3, 3), "d.weight", padding=ONE)),
        ("join", Concat(), ("sum", "d")),
        ("leave", Conv3d(8 + width, 1, (3, 3, 3), "leave.weight", padding=ONE)),
    )
    sources = [step.source.tensor.name for step in copies(lowered_for(graph))]
    assert any(name.endswith("sum") for name in sources) == is_copied


def test_a_layer_norm_without_factors_is_no_copy() -> None:
    graph = chain(
        1,
        ("a", Conv3d(1, 8, ONE, "a.weight")),
        ("elu", Elu(1.0)),
        *layer_norm("norm", "elu", 8, is_affine=False),
        ("b", Add(), ("elu", "a")),
        ("join", Concat(), ("b", "norm")),
        ("leave", Conv3d(16, 1, (3, 3, 3), "leave.weight", padding=ONE)),
    )
    lowered = lowered_for(graph)
    assert any(isinstance(step, Pointwise) and step.norm for step in lowered.steps)


def test_a_map_that_a_convolution_reads_is_copied() -> None:
    graph = chain(
        1,
        ("a", Conv3d(1, 8, ONE, "a.weight")),
        ("elu", Elu(1.0)),
        ("b", Conv3d(8, 16, (3, 3, 3), "b.weight", padding=ONE)),
        ("join", Concat(), ("elu", "b")),
        ("leave", Conv3d(24, 1, (3, 3, 3), "leave.weight", padding=ONE)),
    )
    assert [step.source.tensor.name.split(".")[1] for step in copies(lowered_for(graph))] == [
        "elu",
        "b",
    ]
