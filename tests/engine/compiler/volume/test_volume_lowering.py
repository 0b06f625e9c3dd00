"""Steps of the blocks of a volume."""

import pytest
from support.described_gpus import B200, H200
from support.gpu_networks import chain
from support.zero_weights import zero_network

from cuda_cyclegan.engine.compiler.blocks import grid_of
from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.compiler.lowered import Lowered
from cuda_cyclegan.engine.compiler.program.block_maps import margins
from cuda_cyclegan.engine.compiler.steps import Conv
from cuda_cyclegan.engine.compiler.tensors import Operand
from cuda_cyclegan.engine.compiler.volume.passes import passes_of
from cuda_cyclegan.engine.compiler.volume.volume_lowering import lowered_blocks
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.layers import (
    Conv3d,
    ConvTranspose3d,
    InstanceNorm,
    Pad,
    Triple,
    triple,
)

TO_CELLS = "conv_transpose_to_cells"


def compiled(
    extents: Triple,
    gpu: GpuProperties = H200,
    without: frozenset[str] = frozenset(),
    blocks: int = 1,
) -> Lowered:
    network = zero_network(build(ResNetSpec(1, 1, 32, blocks)))
    grid = grid_of(extents, network.graph.stride)
    return lowered_blocks(network, grid, "fp16", gpu, without)


def kernels_of(lowered: Lowered) -> dict[str, str | None]:
    """Kernels of convolutions by layer, None for plans of cuDNN."""
    return {step.layer: step.kernel for step in lowered.steps if isinstance(step, Conv)}


def test_blocks_have_the_own_kernels_of_patches_which_measure_what_they_make() -> None:
    lowered = compiled((256, 256, 180))
    kernels = kernels_of(lowered)
    assert (kernels["up0"], kernels["up1"]) == (TO_CELLS, TO_CELLS)
    measuring = [step for step in lowered.steps if step.flow.measures]
    assert [step.kernel for step in measuring if isinstance(step, Conv)] == [
        "convolve_patches_wgmma",
        "convolve_strided",
        TO_CELLS,
        TO_CELLS,
    ]


def at_once_of(lowered: Lowered) -> list[str]:
    """Kinds of the steps for all blocks as one."""
    undivided = lowered.undivided
    assert undivided is not None
    return [type(step).__name__ for step in lowered.steps[undivided.first : undivided.stop]]


def test_the_lowest_resolution_of_a_small_volume_is_done_at_once() -> None:
    """A norm is one launch for the whole volume if it fills one block."""
    filled, partly = compiled((256, 256, 180), blocks=2), compiled((240, 240, 156), blocks=2)
    alone = ["Pointwise", "Conv", "Statistics"]
    assert at_once_of(partly) == 6 * alone
    joined = ["Pointwise", *5 * ["Conv", "Normalise"], "Conv"]
    assert at_once_of(filled) == joined
    assert {one.block for one in passes_of(filled)} == {None, (256, 256, 180)}


def test_large_volumes_and_few_layers_are_done_block_by_block() -> None:
    assert compiled((512, 512, 300), blocks=2).undivided is None
    assert compiled((256, 256, 180), blocks=0).undivided is None


def test_blocks_that_reach_past_the_volume_have_them_too() -> None:
    """The axis has 132 voxels in blocks of 48."""
    assert kernels_of(compiled((160, 132, 192)))["up1"] == TO_CELLS


def test_a_doubling_layer_that_computes_much_for_nothing_is_left_to_cudnn() -> None:
    """The layer has 24 x 24 cells in tiles of 16 x 16."""
    kernels = kernels_of(compiled((192, 192, 192)))
    assert (kernels["up0"], kernels["up1"]) == (None, TO_CELLS)


@pytest.mark.parametrize(
    ("gpu", "without"), [(B200, frozenset()), (H200, frozenset({"conv_transpose_to_cells"}))]
)
def test_gpus_without_the_kernel_and_those_where_it_is_wrong_do_without(
    gpu: GpuProperties, without: frozenset[str]
) -> None:
    kernels = kernels_of(compiled((256, 256, 180), gpu, without))
    assert (kernels["up0"], kernels["up1"]) == (None, None)


@pytest.mark.parametrize(("extents", "is_wide"), [((256, 256, 180), True), ((64, 64, 48), False)])
def test_the_last_layer_takes_warp_groups_in_blocks_that_are_wide_enough(
    extents: Triple, is_wide: bool
) -> None:
    kernel = kernels_of(compiled(extents))["last"]
    assert kernel == ("convolve_to_patches_wgmma" if is_wide else "convolve_to_patches")


@pytest.mark.parametrize("joint", ["transposed", "nearest"])
def test_whole_map_layers_and_blocks_read_what_the_others_write(joint: str) -> None:
    """A U-Net's joints read what was made before and at once, and the tables of its norms."""
    network = zero_network(build(UNetSpec(1, 1, width=16, levels=4, upsampling=joint)))
    grid = grid_of((80, 160, 80), network.graph.stride)
    lowered = lowered_blocks(network, grid, "fp16", H200, frozenset())
    assert lowered.undivided is not None
    written: set[Operand] = set()
    for step in lowered.steps:
        assert {item for item in step.flow.reads if item.name not in lowered.constants} <= written
        written.update(step.flow.writes)


@pytest.mark.parametrize("is_padded", [True, False])
def test_layers_at_maps_of_other_extents_run_in_cudnn(is_padded: bool) -> None:
    """Custom kernels find the borders of a volume on the grid of its blocks."""
    ends: Triple = (3, 3, 3) if is_padded else (0, 0, 0)
    first = Conv3d(1, 32, (7, 7, 7), "a.weight", None, padding=ends)
    down = Conv3d(32, 64, (3, 3, 3), "down.weight", None, (2, 2, 2), (1, 1, 1))
    doubled = (2, 2, 2), (1, 1, 1), (1, 1, 1)
    graph = chain(
        1,
        ("a", first),
        ("a norm", InstanceNorm(32)),
        ("down", down),
        ("down norm", InstanceNorm(64)),
        ("up", ConvTranspose3d(64, 32, (3, 3, 3), "up.weight", None, *doubled)),
        ("up norm", InstanceNorm(32)),
        ("pad", Pad("reflect", *[triple(3 - end for end in ends)] * 2)),
        ("leave", Conv3d(32, 1, (7, 7, 7), "leave.weight", None, padding=(3, 3, 3))),
    )
    grid = grid_of((128, 128, 128), graph.stride, margins(graph))
    kernels = kernels_of(lowered_blocks(zero_network(graph), grid, "fp16", H200, frozenset()))
    assert kernels["leave"] is not None
    for layer in ("a", "down", "up"):
        assert (kernels[layer] is not None) == is_padded
