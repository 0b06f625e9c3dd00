"""Random networks on the GPU between guards of unmapped memory, against PyTorch in double."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from support.gpu_networks import OFF_GRID, random_network
from support.random_graphs import random_graph

from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.engine.whole_volume import padded_extents, volume_refusal

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

CHANNELS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
LARGEST: dict[str, Any] = {"numbers": 30_000_000, "weights": 3_000_000, "channels": CHANNELS}
PRECISIONS: tuple[Precision, ...] = ("fp16", "fp16", "fp16", "bf16", "tf32", "fp32")
ALLOWED: dict[Precision, float] = {"fp16": 4e-3, "bf16": 3e-2, "tf32": 3e-3, "fp32": 2e-5}
"""Error beside eight times that of PyTorch in the same precision, relative to the result."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def guards(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.guarded_memory import guard_device_memory

    guard_device_memory(monkeypatch)


def a_generator(random: Random) -> Network:
    """Return a generator with one of the family's features, of any width."""
    from support.network_features import random_spec, trained

    spec = random_spec(random, (8, 16, 24, 32, 64), blocks=(1, 2, 3))
    return trained(spec, random.randrange(1 << 30))


def a_graph(random: Random, *, for_volumes: bool = False) -> Network:
    """Return a graph of layers in any order."""
    while True:
        patch, off_grid = random.choice(((16, 16, 16), (32, 16, 24))), random.random() < 0.5
        graph = random_graph(random, patch, **LARGEST, off_grid=off_grid)
        if graph is not None and not (for_volumes and volume_refusal(graph)):
            return random_network(graph, random.randrange(1 << 30))


def a_network(random: Random, *, for_volumes: bool = False) -> Network:
    network = a_generator(random)
    if random.random() < 0.5 or (for_volumes and volume_refusal(network.graph)):
        return a_graph(random, for_volumes=for_volumes)
    return network


def noise(random: Random, shape: tuple[int, ...]) -> FloatArray:
    numbers = np.random.default_rng(random.randrange(1 << 30))
    return numbers.uniform(-1, 0.9, shape).astype(np.float32)


def by_torch(network: Network, patches: FloatArray, kind: Any, tf32: bool = False) -> Any:
    from cuda_cyclegan.engine.benchmark.pytorch import as_module

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    with torch.inference_mode():
        made = as_module(network).cuda().to(kind)(torch.from_numpy(patches).cuda().to(kind))
    return made.double().cpu().numpy()


def error(made: Any, wanted: Any) -> float:
    size = np.linalg.norm(wanted) or 1.0  # of a last ReLU that sees nothing above 0
    return float(np.linalg.norm(made - wanted) / size)


def allowed(network: Network, patches: FloatArray, wanted: Any, precision: Precision) -> float:
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    of_torch = error(by_torch(network, patches, kind, precision == "tf32"), wanted)
    return 8 * of_torch + ALLOWED[precision]


@pytest.mark.parametrize("seed", range(30))
def test_patches(seed: int, folder: Path) -> None:
    from support.poisoned_memory import poison_generator

    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
    from cuda_cyclegan.engine.options import SearchSettings

    random = Random(seed)
    network, precision, batch = a_network(random), random.choice(PRECISIONS), random.randint(1, 3)
    patch: Any = tuple(
        step * max(1, random.choice((16, 24, 32, 40)) // step) for step in network.graph.stride
    )
    patches = noise(random, (batch, network.graph.in_channels, *patch))
    wanted = by_torch(network, patches, torch.float64)
    most = allowed(network, patches, wanted, precision)
    options = CudaOptions(precision, cache=folder, search=SearchSettings("quick", 5.0))
    with open_cuda_generator(network, options, patch, batch) as generator:
        for _ in range(2):
            poison_generator(generator)
            assert error(generator(patches), wanted) <= most


@pytest.mark.parametrize("seed", range(30))
def test_volumes_at_every_limit(seed: int, folder: Path) -> None:
    random = Random(1000 + seed)
    network = a_network(random, for_volumes=True)
    precision: Precision = random.choice(("fp16", "fp16", "fp16", "fp32"))
    extents: Any = tuple(random.choice((17, 24, 33, 48, 64, 70, 96, 130)) for _ in range(3))
    check_at_every_limit(network, precision, extents, random, folder)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", OFF_GRID)
def test_maps_off_the_grid_at_every_limit(name: str, precision: Precision, folder: Path) -> None:
    network = random_network(OFF_GRID[name], 1)
    found = check_at_every_limit(network, precision, (78, 150, 128), Random(1), folder)
    print(name, precision, found)
    assert found <= {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2}[precision]


def check_at_every_limit(
    network: Network, precision: Precision, extents: Triple, random: Random, folder: Path
) -> float:
    """Return the error of a volume beside PyTorch in double; its bytes are equal at every limit."""
    volume = noise(random, (network.graph.in_channels, *extents))
    padded = padded_extents(network.graph, extents)
    behind = [(0, whole - edge) for whole, edge in zip(padded, extents, strict=True)]
    given = np.pad(volume, [(0, 0), *behind], "edge")[None]
    wanted = by_torch(network, given, torch.float64)
    most = allowed(network, given, wanted, precision)
    depth, height, width = extents
    made, taken = translated(network, volume, precision, folder)
    found = error(made, wanted[0, :, :depth, :height, :width])
    assert found <= most
    with pytest.raises(DeviceMemoryError) as refused:
        translated(network, volume, precision, folder, 1 << 20)
    least = refused.value.wanted
    assert least is not None
    for limit in {least, *(max(least, less) for less in ((least + taken) // 2, taken - 1))}:
        again, bytes_taken = translated(network, volume, precision, folder, limit)
        assert bytes_taken <= limit
        assert again.tobytes() == made.tobytes()
    return found


def translated(
    network: Network,
    volume: FloatArray,
    precision: Precision,
    folder: Path,
    limit: int | None = None,
) -> tuple[FloatArray, int]:
    """Return the output of a second run, which finds graphs and another volume, and the GPU bytes
    that it took.
    """
    from cuda_cyclegan.engine.cuda.volume.volume_generator import (
        CudaOptions,
        open_cuda_volume_generator,
    )
    from cuda_cyclegan.engine.options import SearchSettings

    options = CudaOptions(
        precision, vram_limit=limit, cache=folder, search=SearchSettings("quick", 5.0)
    )
    extents: Triple = (volume.shape[1], volume.shape[2], volume.shape[3])
    made = np.full((network.graph.out_channels, *extents), np.nan, np.float32)
    with open_cuda_volume_generator(network, options) as generator:
        for given in (-volume, volume):
            made[:] = np.nan
            generator.translate_volume(Stored(given), Stored(made), lambda _: None)
        return made, generator.memory.device_bytes
