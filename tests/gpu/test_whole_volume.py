"""A volume through a network on the GPU at once: PyTorch's single pass, at every limit."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.gpu_networks import TRANSPOSED, random_network, transposed_graph, untrained_network
from support.kernel_samples import computed_by

from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Constant, Elu, FloatArray, Triple
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.scaling import Scaling, Stored
from cuda_cyclegan.engine.whole_volume import padded_extents

torch = pytest.importorskip("torch")

LIMITS: dict[Precision, float] = {"fp16": 5e-3, "fp32": 1e-5}
RESNET = ResNetSpec(1, 1, width=32, blocks=2)
UNET = UNetSpec(1, 1, width=16, levels=4)
NETWORKS: dict[str, tuple[Spec, Triple]] = {
    "resnet, reflect": (RESNET, (150, 101, 139)),
    "resnet, replicate, stored norm": (
        replace(RESNET, padding="replicate", down_padding="replicate", norm="stored"),
        (77, 150, 70),
    ),
    "resnet, zero, group norm, nearest": (
        replace(RESNET, padding="zero", norm=Groups(8), upsampling="nearest"),
        (77, 150, 70),
    ),
    "resnet, 2 to 3 channels, width 5": (
        replace(RESNET, in_channels=2, out_channels=3, width=5),
        (61, 150, 70),
    ),
    "resnet, smaller than a block": (RESNET, (21, 9, 30)),
    "resnet, elu, low resolutions of narrow blocks at once": (
        replace(RESNET, activation=Elu(), blur=Blur(2, Constant(1.0))),
        (64, 96, 130),
    ),
    "unet, affine norm": (replace(UNET, norm="instance_affine"), (150, 100, 139)),
    "unet, nearest": (replace(UNET, upsampling="nearest"), (77, 150, 70)),
    "resnet, no stride along the slices": (replace(RESNET, stride=(1, 2, 2)), (40, 101, 139)),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def options(cache: Path, **choices: Any) -> Any:
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.options import SearchSettings

    return CudaOptions(cache=cache, search=SearchSettings("quick", 20.0), **choices)


def opened(network: Network, chosen: Any) -> Any:
    from cuda_cyclegan.engine.cuda.volume.volume_generator import open_cuda_volume_generator

    return open_cuda_volume_generator(network, chosen)


def noise(graph: Any, extents: Triple) -> FloatArray:
    shape = graph.in_channels, *extents
    return np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)


def translated(generator: Any, volume: FloatArray) -> FloatArray:
    made = np.full((generator.graph.out_channels, *volume.shape[1:]), np.nan, np.float32)
    generator.translate_volume(Stored(volume), Stored(made), lambda _: None)
    return made


def single_pass(network: Network, volume: FloatArray) -> FloatArray:
    """Compute the volume in one pass by PyTorch, in fp32."""
    from cuda_cyclegan.engine.benchmark.pytorch import as_module

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    d, h, w = volume.shape[1:]
    padded = padded_extents(network.graph, (d, h, w))
    sizes = [(0, p - e) for p, e in zip(padded, (d, h, w), strict=True)]
    given = torch.from_numpy(np.pad(volume, [(0, 0), *sizes], "edge"))[None].cuda()
    with torch.inference_mode():
        made = as_module(network).cuda()(given)[0].cpu().numpy()
    return made[:, :d, :h, :w]


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_volume_is_what_a_single_pass_makes(name: str, precision: Precision, cache: Path) -> None:
    spec, extents = NETWORKS[name]
    network = untrained_network(build(spec), 1)
    volume = noise(network.graph, extents)
    with opened(network, options(cache, precision=precision)) as generator:
        made = translated(generator, volume)
    wanted = single_pass(network, volume)
    error = np.linalg.norm(made - wanted) / np.linalg.norm(wanted)
    print(name, precision, error)
    assert error <= LIMITS[precision]


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("kind", TRANSPOSED)
def test_transposed_convolutions_of_any_stride(
    kind: Any, precision: Precision, cache: Path
) -> None:
    graph = transposed_graph(*kind, width=16)
    assert graph is not None
    network = random_network(graph, 1)
    volume = noise(graph, (78, 150, 72))
    with opened(network, options(cache, precision=precision)) as generator:
        made = translated(generator, volume)
    wanted = single_pass(network, volume)
    error = np.linalg.norm(made - wanted) / np.linalg.norm(wanted)
    assert error <= LIMITS[precision]


@pytest.mark.parametrize("spec", [RESNET, UNET], ids=["resnet", "unet"])
def test_volumes_of_several_threads_are_as_each_by_itself(spec: Spec, cache: Path) -> None:
    """Volumes of one grid overlap on the GPU; one of another grid waits until it is idle."""
    network = untrained_network(build(spec), 1)
    large, small = noise(network.graph, (150, 101, 139)), noise(network.graph, (77, 150, 70))
    volumes = [large, -large, large / 2, small, large / 3, -small, small / 2, large / 4] * 2
    with opened(network, options(cache)) as generator:
        alone = [translated(generator, volume) for volume in volumes[:8]]
    with opened(network, options(cache)) as generator, ThreadPoolExecutor(3) as threads:
        together = list(threads.map(partial(translated, generator), volumes))
    for number, made in enumerate(together):
        assert np.array_equal(made, alone[number % 8]), number


@pytest.mark.parametrize("spec", [RESNET, UNET], ids=["resnet", "unet"])
def test_no_limit_changes_a_byte(spec: Spec, cache: Path) -> None:
    """Maps may be kept anywhere, in a first run and in a second, which runs captured graphs."""
    network = untrained_network(build(spec), 1)
    volume = noise(network.graph, (300, 201, 279))
    with opened(network, options(cache)) as generator:
        wanted = translated(generator, volume)
        memory = generator.memory
        assert memory.host_bytes == 0
        assert np.array_equal(translated(generator, volume), wanted)
        assert np.array_equal(translated(generator, volume), wanted)
    with (
        pytest.raises(DeviceMemoryError) as refused,
        opened(network, options(cache, vram_limit=1 << 20)) as generator,
    ):
        translated(generator, volume)
    least = refused.value.wanted
    assert least is not None
    found: list[str] = []
    for limit in (memory.device_bytes - 1, (least + memory.device_bytes) // 2, least):
        with opened(network, options(cache, vram_limit=limit)) as generator:
            for _ in range(2):
                assert np.array_equal(translated(generator, volume), wanted)
            assert generator.memory.device_bytes <= limit
            found.append(generator.memory.residence)
    assert found[0] == ("recomputed" if spec == RESNET else "host")
    assert found[-1] == "host"


def test_a_volume_is_what_one_patch_of_its_extents_makes(cache: Path) -> None:
    """Both use the same custom kernels, in another order of sums."""
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
    from cuda_cyclegan.engine.options import SearchSettings

    network = untrained_network(build(RESNET), 1)
    volume = noise(network.graph, (160, 132, 192))
    with opened(network, options(cache)) as generator:
        made = translated(generator, volume)
        measuring = [step for one in generator.memory.passes for _, step in one.measured]
    d, h, w = volume.shape[1:]
    quickly = SearchSettings("quick", 20.0)
    with open_cuda_generator(
        network, CudaOptions(cache=cache, search=quickly), (d, h, w)
    ) as generator:
        wanted = generator(volume[None])[0]
    assert np.linalg.norm(made - wanted) <= LIMITS["fp16"] * np.linalg.norm(wanted)
    if torch.cuda.get_device_capability() == (9, 0):
        names = "convolve_patches_wgmma", "convolve_strided", "conv_transpose_to_cells"
        assert {step.kernel for step in computed_by(measuring, *names)} == {*names}


def test_volumes_of_different_extents_one_after_another(cache: Path) -> None:
    network = untrained_network(build(RESNET), 1)
    volumes = [noise(network.graph, extents) for extents in ((70, 150, 40), (33, 40, 50))]
    wanted: list[FloatArray] = []
    for volume in volumes:
        with opened(network, options(cache)) as generator:
            wanted.append(translated(generator, volume))
    with opened(network, options(cache)) as generator:
        for _ in range(2):
            for volume, right in zip(volumes, wanted, strict=True):
                assert np.array_equal(translated(generator, volume), right)


def test_voxels_in_any_order_as_they_are_stored(cache: Path) -> None:
    network = untrained_network(build(RESNET), 1)
    random = np.random.default_rng(1)
    stored = random.integers(-900, 2000, (1, 66, 50, 41)).astype(np.int16)
    scaling = Scaling(500.0, 1500.0, clips=True)
    with opened(network, options(cache)) as generator:
        plain = np.zeros_like(stored)
        generator.translate_volume(Stored(stored, scaling), Stored(plain, scaling), lambda _: None)
        turned = np.asfortranarray(stored[0])[::-1, :, ::-1]  # in memory x, y, z, two turned
        laid = np.ascontiguousarray(turned)[::-1, :, ::-1][None]
        assert np.array_equal(laid, stored)
        made = np.zeros((41, 66, 50), np.int16).transpose(1, 2, 0)[None][:, :, ::-1]
        generator.translate_volume(Stored(laid, scaling), Stored(made, scaling), lambda _: None)
    assert np.array_equal(made, plain)
    assert len(np.unique(plain)) > 50


def test_planned_memory_is_the_memory_taken(cache: Path) -> None:
    from cuda_cyclegan.engine.cuda.volume.volume_generator import planned_volume

    network = untrained_network(build(RESNET), 1)
    extents = (150, 101, 139)
    with opened(network, options(cache)) as generator:
        for _ in range(3):
            translated(generator, noise(network.graph, extents))
        memory, lanes = generator.memory, generator._preparation.ready.lanes
    plan = planned_volume(network, options(cache), extents)
    assert plan.device_bytes == memory.device_bytes + lanes.bytes
    assert lanes.count == 3
    assert (plan.host_bytes, plan.residence) == (0, "card")
    assert plan.padded == (152, 104, 140)
    assert plan.seconds is not None
    assert plan.seconds > 0
