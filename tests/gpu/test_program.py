"""Guarantees of a compiled program besides its numbers: memory, starts, errors."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.described_gpus import H200
from support.gpu_networks import untrained_network
from support.poisoned_memory import poison_generator

from cuda_cyclegan.engine.errors import DeviceMemoryError, PatchShapeError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.probe.gpus import cuda_devices

NETWORK = untrained_network(build(ResNetSpec(1, 1, width=32, blocks=3)), seed=1)
PATCH = (32, 40, 48)


@pytest.fixture(scope="module")
def open_generator(tmp_path_factory):
    """Function that opens the network; kernels and plans are kept between tests."""
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator

    options = CudaOptions(cache=tmp_path_factory.mktemp("cache"))
    return lambda batch=1, **choices: open_cuda_generator(
        NETWORK, replace(options, **choices), PATCH, batch
    )


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, (count, 1, *PATCH)).astype(np.float32)


def test_any_number_of_patches_gives_what_single_ones_give(open_generator):
    patches = noise(5)
    with open_generator() as single, open_generator(batch=2) as double:
        wanted = np.concatenate([single(patch[None]) for patch in patches])
        assert np.linalg.norm(double(patches) - wanted) < 5e-3 * np.linalg.norm(wanted)


def test_runs_are_the_same_to_the_last_bit(open_generator):
    patches = noise(1)
    with open_generator() as generator:
        first = generator(patches)
        poison_generator(generator)
        assert np.array_equal(generator(patches), first)
    with open_generator() as generator:
        assert np.array_equal(generator(patches), first)


@pytest.mark.parametrize("blocks", [1, 7])
def test_a_gpu_that_runs_few_blocks_at_once_gives_the_same(open_generator, monkeypatch, blocks):
    patches = noise(1)
    with open_generator() as generator:
        wanted = generator(patches)
    monkeypatch.setattr(
        "cuda_cyclegan.engine.cuda.kernel_images.concurrent_blocks", lambda *_: blocks
    )
    with open_generator() as generator:
        assert np.linalg.norm(generator(patches) - wanted) < 5e-3 * np.linalg.norm(wanted)


def test_a_gpu_shows_what_launches_are_fitted_to():
    from cuda_cyclegan.engine.cuda.driver import Context

    with Context(0) as context:
        gpu = context.properties
        print(context.name, gpu)
        if "H200" in context.name:
            assert gpu == H200
    [first, *_] = cuda_devices()
    assert gpu.capability == first.capability
    assert gpu.multiprocessors > 0
    assert gpu.l2_bytes >= 1 << 20
    assert 48 << 10 <= gpu.shared_per_block <= gpu.shared_per_multiprocessor


def test_nothing_is_allocated_during_runs(open_generator):
    from cuda_cyclegan.engine.cuda.driver import Context

    with Context(0) as context, open_generator() as generator:
        generator(noise(1))
        before = context.memory
        for _ in range(3):
            generator(noise(1))
        assert context.memory == before


def test_a_limit_that_is_too_low_names_the_lowest_that_would_do(open_generator):
    with pytest.raises(DeviceMemoryError) as caught, open_generator(vram_limit=1 << 20):
        pass
    [lowest] = re.findall(r"setting vram-limit of at least (\d+) MiB", str(caught.value))
    limit = int(lowest) << 20
    with open_generator(vram_limit=limit, batch=4) as generator:
        assert generator.memory.bytes <= limit
        assert generator.batch == 1
        assert np.isfinite(generator(noise(2))).all()


def test_the_second_start_needs_no_tuning_and_less_than_two_seconds(open_generator):
    with open_generator() as generator:
        generator(noise(1))
    from cuda_cyclegan.engine.options import SearchSettings

    begin = time.perf_counter()
    with open_generator(search=SearchSettings("full")) as generator:
        generator(noise(1))
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize("effort", ["off", "quick"])
def test_less_tuning_gives_the_same_result(open_generator, effort):
    from cuda_cyclegan.engine.options import SearchSettings

    patches = noise(1)
    with (
        open_generator() as tuned,
        open_generator(cache=None, search=SearchSettings(effort)) as other,
    ):
        wanted = tuned(patches)
        assert np.linalg.norm(other(patches) - wanted) < 5e-3 * np.linalg.norm(wanted)


def test_patches_of_another_shape_are_refused(open_generator):
    with open_generator() as generator, pytest.raises(PatchShapeError):
        generator(np.zeros((1, 1, 8, 8, 8), np.float32))


LOSING = """
from support.described_gpus import H200
from support.gpu_networks import untrained_network
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
from cuda_cyclegan.engine.probe.gpus import cuda_devices
from cuda_cyclegan.engine.errors import CudaError
from cuda_cyclegan.engine.compiler.kernel_source import structure

network = untrained_network(build(ResNetSpec(1, 1, 16, 1)), 0)
nobody = 256  # an address that no process owns
one = 1, 1, 1
off = 0, 0, 0
pack = structure("pack.cu", "Pack")
arguments = pack(nobody, nobody, 1, one, one, 8, off, (1, 1), (1, 1), 2, 1, 1)
try:
    with open_cuda_generator(network, CudaOptions(), (16, 16, 16)) as generator:
        gpu = generator._gpu
        kernel = gpu.kernels.kernel("pack", "pack")
        gpu.stream.launch(kernel, (1, 1, 1), (32, 1, 1), 64, arguments)
        gpu.stream.wait()
except CudaError as error:
    print(error.is_sticky, error)
"""


def test_an_error_that_ends_the_context_is_reported_and_everything_is_let_go(open_generator):
    places = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    child = [sys.executable, "-c", LOSING]
    shown = subprocess.run(
        child, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("True cuStreamSynchronize failed: ILLEGAL_ADDRESS")
    assert "start this program again" in shown.stdout
    with open_generator() as generator:
        assert np.isfinite(generator(noise(1))).all()
