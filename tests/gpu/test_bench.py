"""The figures of `bench` on a GPU, held against what other clocks and counters say."""

import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from support.gpu_networks import random_network
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.benchmark.measurement import Budget
from cuda_cyclegan.engine.devices import choose_device
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.options import CudaLimits
from cuda_cyclegan.pipelines.bench.measurement import Bench, Setting, Subject, measure
from cuda_cyclegan.pipelines.bench.parameter_sweep import Candidates, Scan, sweep
from cuda_cyclegan.pipelines.bench.rivals import CudnnTask, PytorchTask, Rival, in_child

SPEC = ResNetSpec(1, 1, width=32, blocks=9)
NETWORK = random_network(build(SPEC), seed=0)
PATCH = (96, 96, 96)
QUICK = CudaLimits(tune="quick")
ROUNDS, LAUNCHES = 11, 200


@pytest.fixture(autouse=True, scope="module")
def plans(tmp_path_factory):
    """One folder of plans for all tests, so that all run the same program."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def bench(patch=PATCH, seconds=1.0, layers=False, batch=1) -> Bench:
    setting = Setting(choose_device("cuda:0", QUICK), patch, batch, "fp16")
    return Bench(Subject(SPEC), setting, Budget(seconds, layers))


@pytest.mark.parametrize("patch", [(64, 64, 64), PATCH, (128, 128, 128)])
def test_its_median_agrees_with_an_outside_clock_within_3_percent(monkeypatch, patch):
    from cuda_cyclegan.engine.cuda.patches import patch_generator as cuda

    outside = []

    class Clocked(cuda.CudaGenerator):
        """Generator that the host times too: another program of the same network has its own
        memory.
        """

        def times(self, repeats):
            own = super().times(repeats)
            outside.append(median(clocked(self) for _ in range(ROUNDS)))
            return own

    monkeypatch.setattr(cuda, "CudaGenerator", Clocked)
    own = measure(bench(patch), NETWORK).measured.latency
    print(f"{patch}: own {own}, outside {outside}")
    assert abs(own.median / outside[-1] - 1) < 0.03


def clocked(generator) -> float:
    """Seconds of a run by the host's clock, over many that are queued at once."""
    begin = time.perf_counter()
    for _ in range(LAUNCHES):
        generator._program.launch()
    generator._gpu.stream.wait()
    return (time.perf_counter() - begin) / LAUNCHES


def test_its_layers_add_up_to_the_whole_and_stay_below_the_peaks():
    measured = measure(bench((128, 128, 128), layers=True), NETWORK).measured
    total = sum(layer.seconds for layer in measured.layers)
    assert total == pytest.approx(measured.latency.median, rel=0.15)
    assert sum(layer.flops for layer in measured.layers) == measured.flops
    ceilings = measured.ceilings
    assert ceilings is not None
    assert all(layer.flops / layer.seconds < 1.05 * ceilings.flops for layer in measured.layers)


def test_the_gpu_loses_what_was_planned_and_little_more():
    memory = measure(bench((128, 128, 128)), NETWORK).measured.memory
    assert memory.planned is not None
    assert 0 <= memory.taken - memory.planned < 256 << 20


def test_another_process_finds_the_same_for_the_library_in_use():
    folders = {
        Path(line.split(maxsplit=5)[-1].strip()).parent
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libcudnn_graph" in line
    }
    asked = bench()
    own = measure(asked)
    [folder] = folders
    found = in_child(CudnnTask(folder, asked, own.output), 120)
    assert isinstance(found, Rival), found
    assert found.latency.median == pytest.approx(own.measured.latency.median, rel=0.05)
    assert found.difference == 0


def test_pytorch_computes_the_same_network():
    pytest.importorskip("torch")
    asked = bench()
    own = measure(asked)
    found = in_child(PytorchTask("eager half", asked, own.output), 120)
    assert isinstance(found, Rival), found
    assert found.difference < 1e-2
    assert found.allocated is not None
    assert found.latency.median > own.measured.latency.median


def test_a_sweep_keeps_to_the_limit():
    asked = bench(seconds=0.1)
    limited = choose_device("cuda:0", CudaLimits(96 << 20, "quick"))
    asked = replace(asked, setting=replace(asked.setting, device=limited))
    tried = Candidates(((64, 64, 64), PATCH, (192, 192, 192)), (1, 2, 4, 8), ("fp16",))
    rows = list(sweep(asked, NETWORK, tried, Scan()))
    assert rows[0].measured is not None
    assert rows[-1].is_too_large
    for row in rows:
        if row.measured:
            assert row.measured.memory.planned is not None
            assert row.measured.memory.planned <= 96 << 20


def test_the_command_writes_what_it_measured(tmp_path):
    target = tmp_path / "bench.json"
    arguments = ["bench", "--patch", "64,64,64", "--tune", "quick", "--seconds", "0.2"]
    done = CliRunner().invoke(app, [*arguments, "--json", str(target)])
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text())
    assert found["setting"]["precision"] == "fp16"
    assert "cuDNN" in found["device"]
    assert {layer["plan"] for layer in found["layers"]} - {"custom kernel"}
    assert np.isfinite(found["measured"]["ceilings"]["flops"])


def test_no_space_is_one_sentence():
    done = CliRunner().invoke(app, ["bench", "--vram-limit", "1MiB"])
    assert done.exit_code == 2
    assert "GPU memory" in done.stderr
    assert "Traceback" not in done.stderr
