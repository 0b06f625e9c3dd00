"""Networks over whole volumes, kernel by kernel on the CPU, against ONNX Runtime's one pass.

Memory is poisoned, so that what is read before it is written shows.
"""

import ctypes
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.gpu_networks import ODD_GRAPHS, chain, random_network
from support.gpu_on_cpu.convolutions import convolved_exactly
from support.gpu_on_cpu.memory import array_at, poisoned
from support.gpu_on_cpu.streams import Event, Gpu
from support.kernel_samples import computed_by
from support.tiers import examples
from support.volume_on_cpu import VolumeOnCpu, grid_for, volume_on_cpu

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.kernels import step_launches as block_launches
from cuda_cyclegan.engine.compiler.kernels.step_launches import measured_volume
from cuda_cyclegan.engine.compiler.steps import Pointwise
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED
from cuda_cyclegan.engine.compiler.volume.passes import sees_neighbours
from cuda_cyclegan.engine.compiler.volume.volume_memory import STAGES
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.cuda.volume import held_memory
from cuda_cyclegan.engine.cuda.volume.program import HostCopies, StagedCopies
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.network.layers import (
    Add,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Elu,
    FloatArray,
    InstanceNorm,
    Pad,
    Relu,
    Triple,
)
from cuda_cyclegan.engine.options import Precision

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("torch"),
]
LIMITS: dict[Precision, float] = {"fp16": 5e-3, "fp32": 1e-5}
RESNET, UNET = ResNetSpec(1, 1, 8, 1), UNetSpec(1, 1, 8, 3)
NETWORKS: dict[str, Spec] = {
    "reflect": RESNET,
    "replicate, channels": structs.replace(
        RESNET, padding="replicate", in_channels=2, out_channels=3, width=5
    ),
    "zero, stored norm": structs.replace(RESNET, padding="zero", norm="stored"),
    "affine, nearest": structs.replace(RESNET, norm="instance_affine", upsampling="nearest"),
    "group norm, trilinear": structs.replace(
        RESNET, norm=Groups(4), upsampling="trilinear_corners"
    ),
    "blurred, added to the input": structs.replace(
        RESNET, blur=Blur(), adds_input=True, residual="activated_sum"
    ),
    "unet": UNET,
    "unet, nearest, affine": structs.replace(UNET, upsampling="nearest", norm="instance_affine"),
}
EXTENTS, BLOCK = (24, 8, 40), (16, 8, 16)
"""Extents and block such that the last blocks along two axes lie partly in the volume."""


def noise(graph: Graph, extents: Triple, seed: int = 2) -> FloatArray:
    shape = graph.in_channels, *extents
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def error(network: Network, volume: FloatArray, made: FloatArray) -> float:
    with open_cpu_generator(network, threads=1) as generator:
        wanted = generator(volume[None])[0]
    return float(np.linalg.norm(made - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_generator(name: str, precision: Precision) -> None:
    network = random_network(build(NETWORKS[name]), seed=1)
    volume = noise(network.graph, EXTENTS)
    made = volume_on_cpu(network, BlockGrid(EXTENTS, BLOCK), precision)(volume)
    assert error(network, volume, made) <= LIMITS[precision]


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("extents", [(12, 8, 20), (4, 8, 12)])
def test_a_volume_smaller_than_a_block(extents: Triple, precision: Precision) -> None:
    network = random_network(build(structs.replace(RESNET, padding="zero")), seed=1)
    volume = noise(network.graph, extents)
    made = volume_on_cpu(network, BlockGrid(extents, (16, 16, 32)), precision)(volume)
    assert error(network, volume, made) <= LIMITS[precision]


@pytest.mark.parametrize(
    ("name", "extents"),
    [
        ("reflect", (32, 8, 32)),
        ("reflect", EXTENTS),
        ("group norm, trilinear", (32, 8, 32)),
        ("blurred, added to the input", EXTENTS),
        ("zero, stored norm", (32, 8, 32)),
    ],
)
def test_low_resolutions_at_once(name: str, extents: Triple) -> None:
    """Each map that they share with what is done block by block is read across both."""
    network = random_network(build(NETWORKS[name]), seed=1)
    volume = noise(network.graph, extents)
    grid = BlockGrid(extents, BLOCK)
    made = volume_on_cpu(network, grid, "fp32", undivided=200_000, convolve=convolved_exactly)
    assert {grid.counts for grid in made.memory().grids.values()} == {(1, 1, 1), grid.counts}
    wanted = made(volume)
    assert error(network, volume, wanted) <= LIMITS["fp32"]
    assert made(volume, least(made)).tobytes() == wanted.tobytes()


def test_low_resolutions_at_once_of_which_slabs_of_several_blocks_read() -> None:
    """Each finds its block in what holds all of them, although it is not the run's first one."""
    network = random_network(build(RESNET), seed=1)
    grid = BlockGrid((16, 8, 16), (8, 8, 8))
    volume = noise(network.graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp32", undivided=200_000, slab_bytes=60_000)
    assert made.program.lowered.undivided is not None
    reader = made.program.lowered.steps[-3]
    assert isinstance(reader, Pointwise)
    assert reader.patches.first > 0
    for memory in (made.memory(), made.memory_recomputed()):
        assert error(network, volume, made(volume, memory=memory)) <= LIMITS["fp32"]


@pytest.mark.parametrize("width", [8, pytest.param(28, marks=pytest.mark.slow)])
def test_low_resolutions_at_once_whose_last_layer_reads_more_than_blocks_do(width: int) -> None:
    """The kernel finds activated cells for all blocks as one, a bordered copy for narrow ones."""
    spec = ResNetSpec(1, 1, 32, 1, 1, first_kernel=3, last_kernel=5, activation=Elu())
    network = random_network(build(spec), seed=1)
    grid = BlockGrid((4, 4, 2 * width), (4, 4, width))
    volume = noise(network.graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp16", wgmma=True, undivided=4 << 20, **MATRIX_KERNELS)
    assert made.program.lowered.undivided is not None
    reader, last = made.program.lowered.steps[-2:]
    assert isinstance(reader, Pointwise)
    assert reader.source.shuffled
    assert computed_by([last], "convolve_to_patches_wgmma", "convolve_to_patches")
    assert error(network, volume, made(volume)) <= LIMITS["fp16"]


@pytest.mark.parametrize(
    "choices", [{"slab_bytes": 60_000}, {"split_fp16": True}], ids=["slabs", "split fp16"]
)
def test_other_layouts(choices: Any) -> None:
    network = random_network(build(RESNET), seed=1)
    volume = noise(network.graph, (20, 12, 16))
    made = volume_on_cpu(network, BlockGrid((20, 12, 16), (8, 8, 12)), "fp32", batch=3, **choices)(
        volume
    )
    assert error(network, volume, made) <= LIMITS["fp32"]


SMALL_GRID, LARGE_GRID = BlockGrid((6, 4, 6), (4, 4, 4)), BlockGrid((12, 8, 10), (8, 8, 8))
OUTERMOST = ResNetSpec(1, 1, 32, 0, downsamplings=1, first_kernel=5, last_kernel=5)
MATRIX_KERNELS: dict[str, Any] = {"matrix_kernels": True, "convolve": convolved_exactly}
"""Options with which results are the same to the last bit, wherever a block begins."""


@pytest.mark.parametrize("grid", [SMALL_GRID, pytest.param(LARGE_GRID, marks=pytest.mark.slow)])
def test_the_outermost_layers_on_the_matrix_units(grid: BlockGrid) -> None:
    network = random_network(build(OUTERMOST), seed=1)
    volume = noise(network.graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp16", matrix_kernels=True)
    steps = [step for one in made.passes for step in one.steps]
    assert len(computed_by(steps, "convolve_patches", "convolve_to_patches")) == 2
    assert error(network, volume, made(volume)) <= LIMITS["fp16"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"down_padding": "reflect"},
        {"norm": "stored", "padding": "zero", "upsampling": "nearest", "first_kernel": 7},
    ],
    ids=["reflect", "stored norm, nearest, by warp groups"],
)
def test_maps_made_anew_are_those_that_were_kept(changes: Any) -> None:
    network = random_network(build(structs.replace(OUTERMOST, **changes)), seed=1)
    grid = LARGE_GRID
    volume = noise(network.graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp16", wgmma="first_kernel" in changes, **MATRIX_KERNELS)
    kept = made.memory()
    wanted = made(volume, memory=kept)
    recomputing = made.memory_recomputed()
    assert (kept.residence, recomputing.residence) == ("card", "recomputed")
    assert [one.block is not None for one in recomputing.passes].count(True) == 1
    assert not any("first" in name for name in recomputing.maps)
    assert made(volume, memory=recomputing).tobytes() == wanted.tobytes()
    assert error(network, volume, wanted) <= LIMITS["fp16"]


def test_map_made_next_to_a_recomputed_one_stays() -> None:
    """The volume, which a later layer reads beside the first one's map."""
    border = Pad("replicate", ONE, ONE)
    graph = chain(
        1,
        ("around", border),
        ("first", Conv3d(1, 32, (3, 3, 3), "f.weight")),
        ("both", Concat(), ("input", "first")),
        ("pad", border),
        ("last", Conv3d(33, 2, (3, 3, 3), "l.weight")),
    )
    network = random_network(graph, seed=1)
    grid = BlockGrid((8, 8, 10), (4, 8, 8))
    volume = noise(graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp16", **MATRIX_KERNELS)
    wanted = made(volume)
    assert error(network, volume, wanted) <= LIMITS["fp16"]
    recomputing = made.memory_recomputed()
    assert any("recomputed" in name for one in recomputing.passes for name in one.written_names)
    assert made(volume, memory=recomputing).tobytes() == wanted.tobytes()


@pytest.mark.slow
def test_layers_by_warp_groups_measure_the_volume() -> None:
    """The last blocks along two axes lie partly in the volume, some cells of boxes in no block."""
    network = random_network(build(structs.replace(OUTERMOST, first_kernel=7)), seed=1)
    grid = BlockGrid((6, 4, 56), (4, 4, 52))
    volume = noise(network.graph, grid.extents)
    compiled = partial(volume_on_cpu, network, grid, "fp16", wgmma=True, **MATRIX_KERNELS)
    made, alone = compiled(batch=3), compiled(batch=1)
    measuring = [step for one in made.passes for _, step in one.measured]
    names = "convolve_patches_wgmma", "convolve_strided", "conv_transpose_to_cells"
    assert {step.kernel for step in computed_by(measuring, *names)} == {*names}
    assert sees_neighbours(made.passes[-1].steps[0])
    wanted = made(volume)
    assert error(network, volume, wanted) <= LIMITS["fp16"]
    assert made(volume, least(made)).tobytes() == wanted.tobytes()
    assert alone(volume, memory=alone.memory_recomputed()).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("batch", "counts", "grid"),
    [
        (1, (1,), BlockGrid((6, 4, 4), (4, 4, 4))),
        pytest.param(1, (1, 3), BlockGrid((8, 4, 16), (4, 4, 8)), marks=pytest.mark.slow),
        pytest.param(2, (2,), BlockGrid((8, 4, 16), (4, 4, 8)), marks=pytest.mark.slow),
    ],
)
def test_blocks_of_the_first_map_may_stay(
    batch: int, counts: tuple[int, ...], grid: BlockGrid
) -> None:
    network = random_network(build(OUTERMOST), seed=1)
    volume = noise(network.graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp16", batch=batch, wgmma=True, **MATRIX_KERNELS)
    wanted = made(volume)
    for count in counts:
        memory = made.memory_recomputed(kept=count)
        assert memory.kept is not None
        assert memory.kept.count == count
        assert made(volume, memory=memory).tobytes() == wanted.tobytes()


@cache
def by_warp_groups(edge: int) -> VolumeOnCpu:
    """A network on the matrix units whose last blocks lie partly in the volume."""
    network = random_network(build(structs.replace(OUTERMOST, first_kernel=edge)), seed=1)
    return volume_on_cpu(network, SMALL_GRID, "fp16", wgmma=True, **MATRIX_KERNELS)


def error_by_warp_groups(edge: int) -> float:
    network = random_network(build(structs.replace(OUTERMOST, first_kernel=edge)), seed=1)
    volume = noise(network.graph, SMALL_GRID.extents)
    return error(network, volume, by_warp_groups(edge)(volume))


@pytest.mark.parametrize("edge", [3, 7])
def test_own_kernels_count_what_lies_in_the_volume(edge: int) -> None:
    assert error_by_warp_groups(edge) <= LIMITS["fp16"]


@pytest.mark.parametrize(
    ("source", "edge"),
    [
        ("convolve_patches_wgmma", 7),
        ("convolve_patches_wgmma", 3),
        ("convolve_strided", 7),
        ("conv_transpose_to_cells", 7),
    ],
)
def test_own_kernels_that_count_what_lies_past_the_volume_are_found(
    source: str, edge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = block_launches.block_launches

    def wrong(step: Any, *rest: Any) -> Any:
        launches = right(step, *rest)
        for launch in launches:
            if launch.source == source and launch.arguments.partials:
                unlimited(launch.arguments.blocks)
        return launches

    monkeypatch.setattr("cuda_cyclegan.engine.cuda.volume.program.block_launches", wrong)
    assert error_by_warp_groups(edge) > 3 * LIMITS["fp16"]


@pytest.mark.parametrize(
    ("padding", "extents"),
    [
        ("reflect", (24, 8, 8)),
        *(
            pytest.param(padding, (24, 12, 20), marks=pytest.mark.slow)
            for padding in ("reflect", "replicate", "zero")
        ),
    ],
)
def test_maps_in_host_memory_are_copied_in_the_parts_that_were_pinned(
    padding: Any, extents: Triple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_memory, "PINNED_BYTES", 1000)
    network = random_network(build(ResNetSpec(1, 1, 8, 3, padding=padding)), seed=1)
    grid = BlockGrid(extents, (8, 8, 8))
    volume = noise(network.graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp16", batch=3, convolve=convolved_exactly)
    memory = made.memory_away()
    assert memory.host_bytes > 1000
    assert made(volume, memory=memory).tobytes() == made(volume).tobytes()


def test_halos_of_kernels_that_make_their_own_come_from_copies() -> None:
    network = random_network(build(ResNetSpec(1, 1, 8, 2)), seed=1)
    grid = BlockGrid((16, 8, 8), (4, 8, 8))
    made = volume_on_cpu(network, grid, "fp16", batch=1, convolve=convolved_exactly)
    memory = made.memory_away()
    read: list[int] = []

    class Watched:
        def launch(self, stream: Any, launch: Any) -> None:
            reported = launch.arguments
            for name in ("source", "residual"):
                if copy := getattr(reported, f"{name}_copy", 0):
                    read.append(getattr(reported, name) + 2 * copy - placed.base)
            made.program.kernels.launch(stream, launch)

    with made.placed(memory) as at_once:
        placed = replace(at_once, program=replace(made.program, kernels=Watched()))
        volume = noise(network.graph, grid.extents)
        assert made._made(placed, volume).tobytes() == made(volume).tobytes()
    assert len(read) == 11 * grid.blocks  # sums, too
    assert all(0 <= each < memory.bytes for each in read)


@pytest.mark.parametrize("order", list(permutations(("computing", "out", "back"))), ids="-".join)
def test_copies_beside_runs_change_no_byte(order: tuple[str, ...]) -> None:
    """Each stream goes ahead of those behind it as far as events let it."""
    network = random_network(build(ResNetSpec(1, 1, 8, 2)), seed=1)
    grid = BlockGrid((16, 8, 8), (4, 8, 8))
    volume = noise(network.graph, grid.extents)
    made = volume_on_cpu(network, grid, "fp32", batch=1, convolve=convolved_exactly)
    memory = made.memory_away()
    assert any(memory.fetched_by(one) for one in memory.passes)
    gpu = Gpu.first_stream_first()
    streams: dict[str, Any] = {name: gpu.stream() for name in order}

    def convolve(step: Any, addresses: Any) -> bool:
        streams["computing"].submit(lambda: convolved_exactly(step, addresses))
        return True

    def copies(name: str) -> StagedCopies:
        ready, copied = ([Event() for _ in range(STAGES)] for _ in range(2))
        return StagedCopies(streams[name], cast(Any, ready), cast(Any, copied))

    late = replace(made.program, stream=streams["computing"], convolve=convolve)
    with made.placed(memory) as at_once:
        placed = replace(at_once, program=late, copies=HostCopies(copies("out"), copies("back")))
        placed.queue_start(placed.program.stream)
        gpu.finish()
        ctypes.memmove(placed.at(PATCHES), volume.ctypes.data, volume.nbytes)
        placed.queue_passes(memory.passes)
        gpu.finish()
        result = array_at(placed.at(TRANSLATED), "f4", *grid.extents)
        assert result.tobytes() == made(volume).tobytes()


@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_unusual_graphs(name: str) -> None:
    graph = ODD_GRAPHS[name]
    network = random_network(graph, seed=1)
    d, h, w = (max(4, step) for step in graph.stride)
    volume = noise(graph, (3 * d, 2 * h, 2 * w))
    grid = grid_for(graph, (3 * d, 2 * h, 2 * w), (2 * d, h, 2 * w))
    made = volume_on_cpu(network, grid, "fp32")(volume)
    assert error(network, volume, made) <= LIMITS["fp32"]


ONE: Triple = (1, 1, 1)
SMALL = chain(
    1,
    ("a", Conv3d(1, 3, (3, 3, 3), "a.weight", padding=ONE)),
    ("norm", InstanceNorm(3)),
    ("relu", Relu()),
    ("pad", Pad("reflect", ONE, ONE)),
    ("b", Conv3d(3, 3, (3, 3, 3), "b.weight")),
    ("norm2", InstanceNorm(3)),
    ("sum", Add(), ("norm2", "relu")),
    ("down", Conv3d(3, 4, (3, 3, 3), "d.weight", None, (2, 2, 2), ONE)),
    ("up", ConvTranspose3d(4, 2, (3, 3, 3), "u.weight", "u.bias", (2, 2, 2), ONE, ONE)),
    ("leave", Conv3d(2, 1, (1, 1, 1), "l.weight", "l.bias")),
)
"""Each kind of border, of statistics and of resolution once."""


@pytest.fixture(scope="module", autouse=True)
def small_memory() -> Iterator[None]:
    """Small pages and a small workspace, so that limits tell apart where the maps of small volumes
    lie.
    """
    with pytest.MonkeyPatch.context() as patched:
        volume = "cuda_cyclegan.engine.compiler.volume"
        patched.setattr(f"{volume}.volume_memory._DEVICE_PAGE", 256)
        patched.setattr(f"{volume}.volume_memory.WORKSPACE_BYTES", 256)
        yield


@cache
def small_volume(grid: BlockGrid, batch: int) -> VolumeOnCpu:
    return volume_on_cpu(random_network(SMALL, 3), grid, "fp16", batch=batch)


def least(made: VolumeOnCpu) -> int:
    with pytest.raises(DeviceMemoryError) as refused:
        made.memory(0)
    assert refused.value.wanted is not None
    return refused.value.wanted


@settings(deadline=None, max_examples=examples(50, 3))
@given(
    st.tuples(*[st.integers(1, 4).map(lambda n: 2 * n)] * 3),
    st.tuples(*[st.sampled_from([2, 4])] * 3),
    st.integers(1, 4),
    st.floats(0, 1),
    st.integers(0, 999),
)
def test_neither_limits_nor_runs_change_a_byte(
    extents: Triple, block: Triple, batch: int, share: float, seed: int
) -> None:
    grid = BlockGrid(extents, block)
    volume = noise(SMALL, extents, seed)
    plain = small_volume(grid, 1)
    wanted = plain(volume)
    other = small_volume(grid, batch)
    fewest, most = least(other), other.memory().device_bytes
    made = other(volume, int(fewest + share * (most - fewest)))
    assert made.tobytes() == wanted.tobytes()
    assert error(random_network(SMALL, 3), volume, made) <= LIMITS["fp16"]


def test_maps_in_host_memory_are_among_those_that_were_tried() -> None:
    made = small_volume(BlockGrid((8, 8, 8), (2, 4, 4)), 2)
    tried = [made.memory(room).host_bytes for room in (least(made), 1 << 40)]
    assert tried[0] > tried[1] == 0


def shifted(blocks: Any) -> Any:
    blocks.first += 1
    return blocks


def swapped(blocks: Any) -> Any:
    blocks.counts[0], blocks.counts[1] = blocks.counts[1], blocks.counts[0]
    return blocks


def unlimited(blocks: Any) -> Any:
    for axis in range(3):
        block = blocks.extents[axis]
        blocks.volume[axis] = -(-blocks.volume[axis] // block) * block
    return blocks


@pytest.mark.parametrize("fault", [shifted, swapped, unlimited])
def test_a_wrong_neighbour_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = block_launches._blocks
    monkeypatch.setattr(block_launches, "_blocks", lambda *reported: fault(right(*reported)))
    around, begun = 1 << 16, poisoned
    monkeypatch.setattr(
        "support.volume_on_cpu.poisoned",  # wrong neighbours may lie past the ends
        lambda size: begun(size + 2 * around)[around : around + size],
    )
    assert error_of_small() > 100 * LIMITS["fp32"]


def test_counting_what_lies_past_the_volume_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics alone show it: the volume's last blocks hold half of their voxels."""
    right = block_launches.block_launches

    def wrong(step: Any, *rest: Any) -> Any:
        launches = right(step, *rest)
        for launch in launches:
            if launch.kernel == "measure":
                unlimited(launch.arguments.blocks)
        return launches

    monkeypatch.setattr("cuda_cyclegan.engine.cuda.volume.program.block_launches", wrong)
    assert error_of_small() > 100 * LIMITS["fp32"]


def test_statistics_of_all_blocks_but_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(step: Any, at: Any, gpu: Any, partials: int, blocks: int) -> Any:
        return measured_volume(step, at, gpu, partials, blocks - 1)

    monkeypatch.setattr("cuda_cyclegan.engine.cuda.volume.program.measured_volume", wrong)
    assert error_of_small() > 100 * LIMITS["fp32"]


def error_of_small() -> float:
    grid, network = BlockGrid((6, 8, 10), (4, 4, 4)), random_network(SMALL, 3)
    volume = noise(SMALL, grid.extents)
    made = volume_on_cpu(network, grid, "fp32")(volume)
    found = error(network, volume, made)
    return np.inf if np.isnan(found) else found


def test_the_small_network_is_right_without_a_fault() -> None:
    assert error_of_small() <= LIMITS["fp32"]


def test_a_pass_leaves_nothing_that_it_should_have_made() -> None:
    """Each pass left out once leaves poison, or what another made in the same place."""
    grid, network = BlockGrid((6, 8, 10), (4, 4, 4)), random_network(SMALL, 3)
    volume = noise(SMALL, grid.extents)
    made = volume_on_cpu(network, grid, "fp16")
    wanted = made(volume)
    for number in range(len(made.passes)):
        passes = made.passes[:number] + made.passes[number + 1 :]
        memory = replace(made.memory(), passes=passes)
        assert not np.array_equal(made(volume, memory=memory), wanted)
