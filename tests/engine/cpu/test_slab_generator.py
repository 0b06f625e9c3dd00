"""Volumes at once on the CPU: memory, files, progress, stored voxels and what goes wrong."""

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gpu_networks import ODD_GRAPHS
from support.network_features import FEATURES, trained
from support.volumes_at_once import ENOUGH, ODD, at_once, off, volume_for

from cuda_cyclegan.engine.cpu.slab_generator import MapMoments, open_cpu_volume_generator
from cuda_cyclegan.engine.cpu.slab_pieces import cut
from cuda_cyclegan.engine.cpu.slabs import plan_slabs
from cuda_cyclegan.engine.errors import (
    DeviceMemoryError,
    PatchShapeError,
    PrecisionOverflowError,
)
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.graph_analysis import held_bytes
from cuda_cyclegan.engine.network.layers import GroupNorm
from cuda_cyclegan.engine.scaling import Scaling, Stored

NETWORKS = ("leaky relu", "U-Net, group norm", "added input", "no norm")


@pytest.fixture
def network() -> Network:
    return trained(FEATURES["leaky relu"])


@pytest.mark.parametrize("name", NETWORKS)
def test_no_limit_changes_a_byte(name: str) -> None:
    network = trained(FEATURES[name])
    volume = volume_for(network)
    ample = plan_slabs(network.graph, ODD, ENOUGH)
    least = least_limit(network)
    tight = plan_slabs(network.graph, ODD, least)
    assert ample.in_files == frozenset()
    assert ample.file_bytes == 0
    assert len(tight.in_files) > 1
    assert tight.host_bytes <= least
    assert tight.slab_rows == ample.slab_rows
    whole = at_once(network, volume)
    for limit in (least, (least + ample.host_bytes) // 2, ENOUGH):
        assert at_once(network, volume, limit).tobytes() == whole.tobytes()


def least_limit(network: Network) -> int:
    """The least memory in which a volume can be made: no map fits in, and slabs just so."""
    with pytest.raises(DeviceMemoryError) as refused:
        plan_slabs(network.graph, ODD, 0)
    assert refused.value.wanted
    return refused.value.wanted


def test_maps_are_freed_with_their_last_reader(network: Network) -> None:
    large = 256, 256, 256
    assert plan_slabs(network.graph, large, ENOUGH).host_bytes < 1.5 * held_bytes(
        network.graph, large
    )


def test_temporary_files_are_gone_at_once(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limit = least_limit(network)
    assert plan_slabs(network.graph, ODD, limit).in_files
    seen: list[list[Path]] = []
    made = np.empty((1, *ODD), np.float32)
    with open_cpu_volume_generator(network, limit) as opened:
        opened.translate_volume(
            Stored(volume_for(network)), Stored(made), lambda _: seen.append([*tmp_path.iterdir()])
        )
    assert seen
    assert not any(seen)


def test_too_little_memory_is_refused_with_what_it_takes(network: Network) -> None:
    with pytest.raises(DeviceMemoryError, match=r"19x14x17 needs .*inference=patches"):
        plan_slabs(network.graph, ODD, 1000)


def test_too_little_disk_is_refused_with_the_folder(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = least_limit(network)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(DeviceMemoryError, match="TMPDIR"):
        plan_slabs(network.graph, ODD, limit)
    assert not plan_slabs(network.graph, ODD, ENOUGH).in_files


def test_a_volume_that_does_not_fit_is_refused_by_its_own_extents() -> None:
    network = trained(FEATURES["leaky relu"])
    with pytest.raises(
        PatchShapeError,
        match=r"does not support whole-volume inference on 2x20x20 .*inference=patches",
    ):
        plan_slabs(network.graph, (2, 20, 20), ENOUGH)


def test_shares_rise_to_the_whole(network: Network) -> None:
    shares: list[float] = []
    made = np.empty((1, *ODD), np.float32)
    with open_cpu_volume_generator(network, ENOUGH) as opened:
        [timing] = opened.translate_volume(Stored(volume_for(network)), Stored(made), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert timing.part == "compute"
    assert timing.stop > timing.start


def test_listener_of_the_shares_may_end_it(network: Network) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    made = np.empty((1, *ODD), np.float32)
    with open_cpu_volume_generator(network, ENOUGH) as opened, pytest.raises(KeyboardInterrupt):
        opened.translate_volume(Stored(volume_for(network)), Stored(made), stop)


def test_stored_voxels_in_any_order_are_read_and_made(network: Network) -> None:
    voxels = np.random.default_rng(0).integers(-900, 900, (17, 19, 14)).astype(np.int16)
    inward = Scaling(100.0, 800.0)
    source = voxels.transpose(1, 2, 0)[None, ::-1, :, ::-1]
    kept = np.zeros((14, 17, 19), np.int16).transpose(2, 0, 1)[None, :, ::-1]
    with open_cpu_volume_generator(network, ENOUGH) as opened:
        opened.translate_volume(Stored(source, inward), Stored(kept, inward), lambda _: None)
    plain = at_once(network, np.ascontiguousarray(inward.forward(source)))
    right = np.zeros((1, *ODD), np.int16)
    inward.store(plain, right)
    np.testing.assert_array_equal(kept, right)


def test_a_result_that_is_not_finite_is_no_result() -> None:
    network = trained(FEATURES["open end"])
    broken = {**network.weights, "last.bias": np.full(1, np.inf, np.float32)}
    with pytest.raises(PrecisionOverflowError):
        at_once(Network(network.graph, broken), volume_for(network))


@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.floats(-1e3, 1e3))
def test_moments_of_slabs_are_those_of_the_whole(
    channels: int, heights: list[int], offset: float
) -> None:
    random = np.random.default_rng(0)
    whole = (random.normal(0, 1, (sum(heights), 3, 4, channels)) + offset).astype(np.float32)
    parts = np.split(whole, np.cumsum(heights)[:-1])
    merged = MapMoments.of(parts[0])
    for part in parts[1:]:
        merged = merged.merged(MapMoments.of(part))
    flat = whole.reshape(-1, channels).astype(np.float64)
    assert merged.count == len(flat)
    np.testing.assert_allclose(merged.mean, flat.mean(axis=0), rtol=1e-12, atol=1e-9)
    squares = flat.var(axis=0) * len(flat)
    np.testing.assert_allclose(merged.squares, squares, rtol=1e-9, atol=1e-6)


def test_pieces_look_around_once_and_leave_nothing_out() -> None:
    for graph in ODD_GRAPHS.values():
        pieces = cut(graph)
        made = [node.name for piece in pieces.pieces for node in piece.nodes]
        assert len(made) == len({*made})
        assert {*made} | {*pieces.norms} >= {node.name for node in graph.nodes}


def test_groups_are_normalised_together() -> None:
    network = trained(FEATURES["group norm of all channels"])
    assert any(isinstance(node.layer, GroupNorm) for node in network.graph.nodes)
    volume = volume_for(network)
    made = at_once(network, volume)
    assert off(at_once(network, volume + 3), made) > 0.01  # a map that sees statistics of its own
