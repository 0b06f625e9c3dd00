"""Passes of a network over blocks, and where what they make is kept at which limit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.described_gpus import H200
from support.each_pair import each_pair
from support.kernel_samples import computed_by
from support.zero_weights import zero_network

from cuda_cyclegan.engine.compiler.blocks import BlockGrid, grid_of
from cuda_cyclegan.engine.compiler.kernels.step_launches import partial_bytes
from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.program.memory import (
    WORKSPACE_BYTES,
    bytes_of_trials,
    scratch_name,
)
from cuda_cyclegan.engine.compiler.steps import (
    AddPatches,
    Conv,
    Pointwise,
    Statistics,
    Step,
    is_planned,
    planned,
)
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED
from cuda_cyclegan.engine.compiler.volume.passes import (
    copied_in,
    maps_of,
    passes_of,
    sees_neighbours,
)
from cuda_cyclegan.engine.compiler.volume.recomputed import recomputed, recomputed_convolutions
from cuda_cyclegan.engine.compiler.volume.volume_lowering import lowered_blocks
from cuda_cyclegan.engine.compiler.volume.volume_memory import (
    KERNEL_BYTES,
    VolumeMemory,
    VolumeRequest,
    _Choice,
    staged_name,
    volume_memory,
)
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Triple

SPECS = {
    "resnet": ResNetSpec(1, 1, 32, 2),
    "sum": ResNetSpec(1, 1, 32, 1, adds_input=True),
    "plain": ResNetSpec(1, 1, 32, 2, norm="stored"),
    "long": ResNetSpec(1, 1, 32, 4),
    "unet": UNetSpec(1, 1, 16, 4),
}


@cache
def network_of(name: str) -> Network:
    return zero_network(build(SPECS[name]))


def request(
    name: str, extents: Triple, *, matrix_kernels: bool = False, wgmma: bool = False
) -> VolumeRequest:
    network = network_of(name)
    grid = grid_of(extents, network.graph.stride)
    layout = Layout(
        grid.block, grid.batch, "fp16", 112 << 20, matrix_kernels, wgmma, in_blocks=True
    )
    lowered = lower(network, layout, H200)
    return VolumeRequest(lowered, passes_of(lowered), grid, (1, 1), (1 << 24, 1 << 25))


def least(wanted: VolumeRequest) -> int:
    with pytest.raises(DeviceMemoryError) as refused:
        volume_memory(wanted, 0)
    assert refused.value.wanted is not None
    return refused.value.wanted


def at_the_same_time(memory: VolumeMemory, grid: BlockGrid) -> Iterator[tuple[int, int]]:
    """Places of the first step, and the one behind the last, of what is there at once: of a pass,
    or of each step of one whose blocks are a single one.
    """
    first = 0
    for one in memory.passes:
        stop = first + len(one.steps)
        if one.grid_in(grid).blocks > 1:
            yield first, stop
        else:
            yield from pairwise(range(first, stop + 1))
        first = stop


def alive(wanted: VolumeRequest, memory: VolumeMemory, first: int, stop: int) -> Mapping[str, int]:
    """Bytes of what lies on the GPU and holds something while steps [first, stop) run."""
    batch, steps = wanted.batch, [step for one in memory.passes for step in one.steps]
    stored = wanted.grid.stored_blocks(batch)
    there = (_tensors(steps[:first]) & _tensors(steps[first:])) | _tensors(steps[first:stop])
    sizes = {
        name: tensor.bytes // batch * stored
        for name, tensor in memory.maps.items()
        if name in there and name not in memory.host_offsets
    }
    for name in memory.host_offsets:
        if staged_name(name, 0) in memory.offsets and name in _written(steps[first:stop]):
            sizes |= {staged_name(name, stage): memory.maps[name].bytes for stage in range(2)}
    for number in range(first, stop):
        if partial := partial_bytes(steps[number], H200):
            [one] = [one for one in memory.passes if one.first <= number <= one.last]
            sizes[scratch_name(number)] = partial * one.grid_in(wanted.grid).blocks
    return sizes


def _tensors(steps: Iterable[Step]) -> set[str]:
    return {item.name for step in steps for item in step.flow.touches}


def _written(steps: Iterable[Step]) -> set[str]:
    return {name for step in steps for name in step.flow.written_names}


@pytest.mark.parametrize("name", SPECS)
def test_a_pass_waits_for_neighbours_and_for_statistics(name: str) -> None:
    passes = request(name, (64, 64, 64)).passes
    made: dict[str, int] = {}
    for number, one in enumerate(passes):
        for step in one.steps:
            if isinstance(step, Pointwise) and sees_neighbours(step):
                assert made[step.source.tensor.name] < number
            if isinstance(step, Pointwise) and step.table and step.table.name in made:
                assert made[step.table.name] < number
            if isinstance(step, Statistics | Pointwise) or is_planned(step):
                made[step.target.name] = number
    assert [one.is_whole for one in passes[:-1]] == [False] * (len(passes) - 1)
    assert isinstance(passes[-1].steps[0], AddPatches) == (name == "sum")
    steps = [step for one in passes for step in one.steps]
    assert [one.first for one in passes] == [steps.index(one.steps[0]) for one in passes]


@pytest.mark.parametrize(
    ("name", "share", "matrix_kernels"), each_pair([*SPECS], [0, 0.3, 0.7, 1], [False, True])
)
def test_a_limit_is_kept_and_nothing_lies_on_something_else(
    name: str, share: float, matrix_kernels: bool
) -> None:
    check_limit(name, (96, 32, 128), share, matrix_kernels)  # one block
    check_limit(name, (256, 256, 192), share, matrix_kernels)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    st.sampled_from(sorted(SPECS)),
    st.tuples(*[st.integers(1, 16).map(lambda n: 32 * n)] * 3),
    st.floats(0, 1),
    st.booleans(),
)
def test_any_limit_is_kept_with_any_volume(
    name: str, extents: Triple, share: float, matrix_kernels: bool
) -> None:
    check_limit(name, extents, share, matrix_kernels)


def check_limit(name: str, extents: Triple, share: float, matrix_kernels: bool) -> None:
    wanted = request(name, extents, matrix_kernels=matrix_kernels)
    fewest, most = least(wanted), volume_memory(wanted, 1 << 50).device_bytes
    assert fewest <= most
    memory = volume_memory(wanted, int(fewest + share * (most - fewest)))
    assert memory.device_bytes <= int(fewest + share * (most - fewest))
    assert set(memory.host_offsets) <= memory.maps.keys() | {PATCHES, TRANSLATED}
    for first, stop in at_the_same_time(memory, wanted.grid):
        places = sorted(
            (memory.offsets[one], memory.offsets[one] + size)
            for one, size in alive(wanted, memory, first, stop).items()
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
        assert all(end <= memory.bytes for _, end in places)


@pytest.mark.parametrize("upsampling", ["transposed", "nearest"])
def test_map_of_the_undivided_volume_is_not_recomputed(upsampling: Any) -> None:
    """Blocks of other extents read it, which was taken for a map of theirs."""
    spec = ResNetSpec(1, 1, 32, 2, upsampling=upsampling)
    network = zero_network(build(spec))
    grid = grid_of((80, 152, 72), network.graph.stride)
    lowered = lowered_blocks(network, grid, "fp16", H200, frozenset())
    assert lowered.undivided is not None
    wanted = VolumeRequest(lowered, passes_of(lowered), grid, (1, 1), (1 << 24, 1 << 25))
    assert volume_memory(wanted, least(wanted)).device_bytes == least(wanted)


def test_a_layer_by_planes_reads_more_than_its_own_blocks() -> None:
    network = network_of("resnet")
    grid = grid_of((300, 204, 280), network.graph.stride)
    lowered = lowered_blocks(network, grid, "fp16", H200, frozenset())
    passes = passes_of(lowered)
    maps = maps_of(lowered, passes)
    [(one, step)] = [
        (one, step) for one in passes for step in computed_by(one.steps, "convolve_strided")
    ]
    read = step.flow.read_names & maps.keys()
    assert read
    assert not read & set(copied_in(one, maps))


def test_all_is_on_the_gpu_where_that_has_space() -> None:
    memory = volume_memory(request("resnet", (256, 256, 192)), 40 << 30)
    assert (memory.host_bytes, memory.host_offsets) == (0, {})


def test_maps_of_full_resolution_are_made_anew_before_any_leaves() -> None:
    wanted = request("resnet", (512, 512, 192), matrix_kernels=True)
    everything = volume_memory(wanted, 40 << 30)
    memory = volume_memory(wanted, everything.device_bytes - 1)
    assert (everything.residence, memory.residence) == ("card", "recomputed")
    assert memory.device_bytes < everything.device_bytes / 2
    assert volume_memory(
        replace(wanted, may_recompute=False), everything.device_bytes - 1
    ).host_bytes
    numbers = [one.first for one in memory.passes]
    assert numbers == [sum(len(p.steps) for p in memory.passes[:n]) for n in range(len(numbers))]


def test_blocks_made_anew_share_what_the_last_layer_sees_of_their_neighbours() -> None:
    wanted = request("resnet", (512, 512, 192), matrix_kernels=True)
    [recomputing] = [one for one in recomputed(wanted.passes) if one.block is not None]
    *_, reading, last = recomputing.steps
    assert isinstance(reading, Pointwise)
    assert isinstance(last, Conv)
    assert reading.around is not None
    held = reading.source.extents
    for axis, block in enumerate(recomputing.block or ()):
        first = reading.around[axis]
        assert first <= reading.origin[axis] < 0
        assert first + held[axis] >= reading.origin[axis] + reading.target.extents[axis]
        assert last.output.extents[axis] == block
    assert {step.shape for step in recomputed_convolutions(recomputed(wanted.passes))} <= {
        step.shape for one in wanted.passes for step in planned(one.steps)
    }


def test_an_own_kernel_makes_blocks_anew_with_what_the_last_layer_sees_around_them() -> None:
    """Some blocks at a time, and no more blocks than there are."""
    wanted = request("resnet", (512, 512, 192), matrix_kernels=True, wgmma=True)
    [recomputing] = [one for one in recomputed(wanted.passes) if one.is_recomputed]
    assert (recomputing.block, recomputing.batch) == (wanted.grid.block, 1)
    _, making, last = recomputing.steps
    names = "conv_transpose_to_cells", "convolve_to_patches_wgmma"
    assert computed_by([making, last], *names) == [making, last]
    assert isinstance(last, Conv)
    assert last.around == (-4, -4, -4)
    assert last.views[0].source.extents == tuple(size + 8 for size in wanted.grid.block)
    assert {
        item.batch
        for s in recomputing.steps[1:]
        for item in s.flow.touches
        if hasattr(item, "batch")
    } == {1}


def test_part_of_the_first_map_that_fits_stays() -> None:
    wanted = request("resnet", (512, 512, 192), matrix_kernels=True, wgmma=True)
    everything = volume_memory(wanted, 40 << 30).device_bytes
    recomputing = _Choice(replace(wanted, passes=recomputed(wanted.passes)))
    least = recomputing.memory(()).device_bytes
    counts: list[int] = []
    for room in range(least, everything, (everything - least) // 8):
        memory = volume_memory(wanted, room)
        assert memory.device_bytes <= room
        assert memory.kept is not None
        counts.append(memory.kept.count)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] < wanted.grid.blocks
    assert all(count % wanted.batch == 0 for count in counts)


def test_unmeasured_first_map_keeps_nothing() -> None:
    wanted = request("plain", (512, 512, 192), matrix_kernels=True, wgmma=True)
    everything = volume_memory(wanted, 40 << 30).device_bytes
    memory = volume_memory(wanted, everything - 1)
    assert memory.residence == "recomputed"
    assert memory.kept is None


def test_a_volume_made_anew_takes_a_fifth_of_what_another_framework_takes() -> None:
    """PyTorch's single pass, compiled, in half precision: 2,707,777,536 bytes."""
    grid = grid_of((256, 256, 180), (4, 4, 4))
    lowered = lowered_blocks(network_of("long"), grid, "fp16", H200, frozenset())
    wanted = VolumeRequest(lowered, passes_of(lowered), grid, (1, 1), (1 << 24, 1 << 25))
    memory = volume_memory(wanted, 2_707_777_536 // 5)
    assert memory.residence == "recomputed"
    assert memory.kept is not None
    assert memory.kept.count == 0
    assert volume_memory(wanted, 3 * 2_707_777_536 // 10).kept != memory.kept


@pytest.mark.parametrize("name", ["unet", "plain"])
def test_other_networks_keep_their_maps(name: str) -> None:
    """Networks with other outermost layers, or without the custom kernels for them."""
    wanted = request(name, (256, 256, 192), matrix_kernels=name == "unet")
    assert recomputed(wanted.passes) == wanted.passes


@pytest.mark.parametrize("share", [0.6, 0.75, 0.9])
def test_nothing_leaves_for_which_there_is_space(share: float) -> None:
    wanted = request("resnet", (512, 512, 192))
    everything = volume_memory(wanted, 40 << 30)
    room = int(everything.device_bytes * share)
    left = volume_memory(wanted, room).host_offsets
    assert left
    for name in left:
        fewer = [one for one in _Choice(wanted).may_leave if one.name in left and one.name != name]
        assert _Choice(wanted).memory(fewer).device_bytes > room


def test_maps_of_low_resolution_stay_while_they_are_read_where_one_fits_at_a_time() -> None:
    """A third of what passes through the residual blocks need not leave the GPU."""
    wanted = request("resnet", (1024, 1024, 800))
    memory = volume_memory(wanted, 4 << 30)
    inner = {name for name in memory.maps if "block" in name and not name.endswith("pad")}
    assert memory.device_bytes <= 4 << 30
    assert inner - memory.host_offsets.keys()


def large_at_4_gib() -> VolumeMemory:
    grid = grid_of((1024, 1024, 800), (4, 4, 4))
    lowered = lowered_blocks(network_of("long"), grid, "fp16", H200, frozenset())
    wanted = VolumeRequest(lowered, passes_of(lowered), grid, (1, 1), (1 << 24, 1 << 25))
    return volume_memory(wanted, 4 << 30)


def test_host_memory_read_by_voxel_passes_is_copied_in() -> None:
    memory = large_at_4_gib()
    maps = memory.maps.keys() & memory.host_offsets.keys()
    assert len(maps) > 4
    usual = [one for one in memory.passes if one.block is None]
    for one in usual:
        read = {
            name for step in one.steps for name in step.flow.read_names
        } & maps - one.written_names
        assert memory.fetched_by(one) == sorted(read)


def test_additions_of_the_driver_count_towards_the_limit() -> None:
    wanted = request("resnet", (512, 512, 192))
    everything = volume_memory(wanted, 40 << 30)
    memory = volume_memory(wanted, everything.device_bytes * 2 // 3)
    listed = memory.host_bytes * 8 / 4096
    rounded = (-(-size // (2 << 20)) * (2 << 20) for size in (memory.bytes, memory.constants))
    assert listed > 1 << 19
    assert memory.device_bytes >= sum(rounded) + listed + KERNEL_BYTES
    assert everything.device_bytes < everything.bytes + everything.constants + (4 << 20) * 2


def test_a_volume_that_fits_nowhere_is_refused_with_what_would_do() -> None:
    wanted = request("resnet", (256, 256, 192))
    size = least(wanted)
    assert volume_memory(wanted, size).device_bytes == size
    with pytest.raises(DeviceMemoryError, match=f"at least {-(-size >> 20)} MiB"):
        volume_memory(wanted, size - 1)


def test_a_volume_has_space_to_try_its_layers_in() -> None:
    """A last layer is compared with a plain one, which reads a copy with a border of its own."""
    network = zero_network(build(ResNetSpec(1, 1, 32, 0, downsamplings=0)))
    grid = grid_of((64, 64, 64), network.graph.stride)
    lowered = lowered_blocks(network, grid, "fp16", H200, frozenset())
    trial = bytes_of_trials(lowered, WORKSPACE_BYTES)
    rows = 1 << 18, 1 << 19
    wanted = VolumeRequest(lowered, passes_of(lowered), grid, (1, 1), rows, trial=trial)
    size = least(wanted)
    assert size == trial
    assert volume_memory(wanted, size).device_bytes < size
    with pytest.raises(DeviceMemoryError, match="at least 39 MiB"):
        volume_memory(wanted, size - 1)
