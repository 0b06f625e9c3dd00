"""`plan` tells what a card would hold, or that nobody knows; the card is a described one."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.batch_world import scan, tiny_model
from support.described_gpus import DESCRIBED, DescribedGpu
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine import devices
from cuda_cyclegan.engine.compiler.kernels.sliding_window import rings
from cuda_cyclegan.engine.compiler.program.fitting import (
    MemoryBudget,
    ProgramRequest,
    fit,
    usual_batch,
)
from cuda_cyclegan.engine.cuda.patches.device_plan import DevicePlan, ProgramPlan
from cuda_cyclegan.engine.cuda.tuning.cache import Candidate
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.probe.gpus import CudaDevice
from cuda_cyclegan.engine.whole_volume import VolumePlan
from cuda_cyclegan.pipelines import mode_cost
from cuda_cyclegan.pipelines.rates import HostRates, RateCache, host_keys
from cuda_cyclegan.pipelines.study.inference import window_grid
from cuda_cyclegan.pipelines.study.patches import cover

MIB = 1 << 20
CARD = Device("cuda", "fp16", ("fp16",))
PLAN = DevicePlan(
    "Described GPU", ProgramPlan(100 * MIB, 2, 0.25), 1000 * MIB, (1, 1), context=500 * MIB
)
PLAN_OF = Candidate("any", 0, 1.0)
LARGE = (200, 200, 400)


class World:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._monkeypatch = root, monkeypatch
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        tiny_model(root / "model.safetensors")
        scan(root / "scans" / "large.nii", shape=LARGE)
        for name in "ab":
            scan(root / "scans" / f"{name}.nii", shape=(16, 16, 16))

    def plan(self, reported: DevicePlan | Exception, device: Device = CARD, *options: str) -> str:
        def plan_device(*_: object) -> DevicePlan:
            if isinstance(reported, Exception):
                raise reported
            return reported

        self._monkeypatch.setattr(mode_cost, "plan_device", plan_device)
        self._monkeypatch.setattr(
            "cuda_cyclegan.pipelines.decisions.choose_devices", lambda *_: (device,)
        )
        words = [
            "plan",
            str(self._root / "scans"),
            "--model",
            str(self._root / "model.safetensors"),
        ]
        words += ["--output", str(self._root / "out"), *options]
        return CliRunner().invoke(app, words).output


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def arrays(extents: tuple[int, int, int], voxel: str = "int16") -> int:
    """Bytes of the rings; a NIfTI file's last axis is the slowest in memory."""
    array = np.empty(extents, voxel, order="F")[None]
    found = rings(window_grid(array, cover(extents, (16, 16, 16), 0.25)), (1, 1), 1 << 40)
    assert found is not None
    return found.bytes


def test_bytes_are_those_of_the_program_and_the_arrays(world: World) -> None:
    reported = world.plan(PLAN)
    large, small = ((100 * MIB + arrays(e)) / MIB for e in (LARGE, (16, 16, 16)))
    assert re.search(rf"large\.nii +\d+ +\d+ MiB +{large:.0f} MiB", reported)
    assert re.search(rf"a\.nii +1 +2 MiB +{small:.0f} MiB", reported)
    both = (100 * MIB + arrays(LARGE) + arrays((16, 16, 16))) / MIB
    assert "100 MiB for a program of 2 patches per run" in reported
    assert f"{both:.0f} MiB with the largest arrays" in reported
    assert "plus 500 MiB for CUDA itself" in reported


def test_a_seam_score_takes_network_intensities_to_the_gpu(world: World) -> None:
    reported = world.plan(PLAN, CARD, "--seam-score")
    large = (100 * MIB + arrays(LARGE, "float32")) / MIB
    assert re.search(rf"large\.nii +\d+ +\d+ MiB +{large:.0f} MiB", reported)


def test_a_way_back_is_a_second_program_in_the_other_half(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode_cost, "with_half_the_memory", lambda device: device)
    back = tiny_model(world._root / "back.safetensors", 1, "T2", "T1")
    reported = world.plan(PLAN, CARD, "--cycle-check", str(back))
    one = 100 * MIB + arrays((16, 16, 16))
    other = 100 * MIB + arrays((16, 16, 16), "float32")
    assert re.search(rf"a\.nii +1 +2 MiB +{(one + other) / MIB:.0f} MiB", reported)
    assert reported.count("100 MiB for a program of 2 patches per run") == 2
    patches = len(cover(LARGE, (16, 16, 16), 0.25)) + 2
    assert f"Cycle check: {patches} patches translated back" in reported


def test_seconds_with_a_way_back_are_those_of_both_programs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda_cyclegan.io.volume import Study

    monkeypatch.setattr(mode_cost, "with_half_the_memory", lambda device: device)
    back = tiny_model(world._root / "back.safetensors", 1, "T2", "T1")
    study = Study(Path("any.nii"), (Path("any.nii"),), "nifti")  # type: ignore[arg-type]
    cache = RateCache(world._root / "cache" / "cuda-cyclegan")
    cache.put(dict.fromkeys(host_keys(study, "another model", "same"), HostRates(0.0, 0.0)))
    reported = world.plan(PLAN, CARD, "--cycle-check", str(back))
    runs = 2 * (-(-len(cover(LARGE, (16, 16, 16), 0.25)) // 2) + 2)
    found = re.search(r"Total time: ([\d.]+)", reported)
    assert found is not None
    assert float(found[1]) == pytest.approx(runs * 0.25, rel=0.01)


def test_volumes_there_and_back_are_on_a_gpu_at_the_same_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda_cyclegan.io.volume import Study

    sizes = iter([(300, 0), (500, 70)] * 2)

    def plan_volume(*reported: object) -> VolumePlan:
        device, host = next(sizes)
        extents = reported[3]
        assert isinstance(extents, tuple)
        return VolumePlan(extents, device * MIB, host * MIB, "card", 0.5)

    monkeypatch.setattr(mode_cost, "with_half_the_memory", lambda device: device)
    monkeypatch.setattr(mode_cost, "plan_volume", plan_volume)
    back = tiny_model(world._root / "back.safetensors", 1, "T2", "T1")
    study = Study(Path("any.nii"), (Path("any.nii"),), "nifti")  # type: ignore[arg-type]
    cache = RateCache(world._root / "cache" / "cuda-cyclegan")
    cache.put(dict.fromkeys(host_keys(study, "another model", "same"), HostRates(0.0, 0.0)))
    reported = world.plan(PLAN, CARD, "--inference", "volume", "--cycle-check", str(back))
    assert re.search(r"a\.nii +volume +(7\d) MiB +800 MiB", reported)
    assert "Cycle check: 3 volumes translated back" in reported
    assert re.search(r"Total time: 3\.00 s$", reported, re.MULTILINE)


def test_seconds_are_those_of_the_program_once_such_files_were_read(world: World) -> None:
    assert "Total time: known after" in world.plan(PLAN)
    from cuda_cyclegan.io.volume import Study

    study = Study(Path("any.nii"), (Path("any.nii"),), "nifti")  # type: ignore[arg-type]
    cache = RateCache(world._root / "cache" / "cuda-cyclegan")
    cache.put(dict.fromkeys(host_keys(study, "another model", "same"), HostRates(0.0, 0.0)))
    reported = world.plan(PLAN)
    patches = len(cover(LARGE, (16, 16, 16), 0.25))
    runs = -(-patches // 2) + 2
    found = re.search(r"Total time: ([\d.]+)", reported)
    assert found is not None
    assert float(found[1]) == pytest.approx(runs * 0.25, rel=0.01)


def test_before_the_first_start_no_bytes_are_claimed(world: World) -> None:
    reported = world.plan(DevicePlan("Described GPU", None, 1000 * MIB, (1, 1)))
    assert "unknown until the first start on Described GPU" in reported
    assert "1000 MiB" not in reported.split("GPU memory")[0]
    assert "GPU " not in reported.splitlines()[0]


def test_a_machine_without_a_gpu_reports_it(world: World) -> None:
    note = "no CUDA device is used: no NVIDIA driver is installed"
    reported = world.plan(None, Device("cpu", "fp32", ("fp32",), note))  # type: ignore[arg-type]
    assert f"GPU memory: none; {note}" in reported


def test_a_gpu_without_space_is_an_error_and_no_plan(world: World) -> None:
    reported = world.plan(DeviceMemoryError("The network needs 90 MiB of device memory."))
    assert "needs 90 MiB" in reported
    assert "Traceback" not in reported


class TestOnDescribedCards:
    """`--device auto` finds the card; what its program takes is computed, and no start needed."""

    @pytest.fixture(
        params=[
            pytest.param(card, id=name, marks=[pytest.mark.slow] * (number % 4 != 0))
            for number, (name, card) in enumerate(DESCRIBED.items())
        ]
    )
    def card(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DescribedGpu:
        card: DescribedGpu = request.param
        found = CudaDevice(0, card.name, card.capability, card.memory << 30, None, "CUDA 12.8")
        monkeypatch.setattr(devices, "why_no_cuda", lambda: None)
        monkeypatch.setattr(devices, "cuda_devices", lambda: (found,))
        return card

    def plan(
        self, card: DescribedGpu, free: int, folder: Path, patch: str, *options: str
    ) -> Result:
        """Run `plan` with so many bytes free; any convolution was measured before."""

        def plan_device(
            network: Network, _: Device, precision: Precision, patch: Triple
        ) -> DevicePlan:
            batch = usual_batch(network.graph, patch, card.multiprocessors)
            wanted = ProgramRequest(patch, batch, precision, card.properties)
            room = MemoryBudget(free)
            fitted = fit(network, wanted, room, lambda shapes, _: dict.fromkeys(shapes, PLAN_OF))
            program = ProgramPlan(fitted.memory.bytes, fitted.lowered.layout.batch, None)
            return DevicePlan(card.name, program, room.bytes, (1, 1))

        words = ["plan", str(scan(folder / "scan.nii")), "--output", str(folder / "out")]
        words += ["--model", str(tiny_model(folder / "model.safetensors")), "--patch", patch]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(mode_cost, "plan_device", plan_device)
            patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            return CliRunner().invoke(app, [*words, "--device", "auto", *options])

    def test_each_precision_of_a_gpu_is_planned_and_no_other(
        self, card: DescribedGpu, tmp_path: Path
    ) -> None:
        for precision in ("fp16", "bf16", "tf32", "fp32"):
            asked = "--precision", precision
            done = self.plan(card, card.memory << 30, tmp_path, "64,64,64", *asked)
            if card.capability < (8, 0) and precision in ("bf16", "tf32"):
                assert done.exit_code == 2
                assert "supports only fp16 and fp32" in " ".join(done.stderr.split())
            else:
                assert done.exit_code == 0, done.output
                assert re.search(r"\d+ MiB for a program of \d patch(es)? per run", done.stdout)

    def test_a_gpu_with_too_little_memory_says_what_would_fit(
        self, card: DescribedGpu, tmp_path: Path
    ) -> None:
        done = self.plan(card, 96 * MIB, tmp_path, "256,256,256")
        assert done.exit_code != 0
        reported = " ".join(done.stderr.split())
        assert "for patches of 256x256x256, but only 32 MiB are free" in reported
        fitting = re.search(r"\(--patch (\d+,\d+,\d+) fits\)", reported)
        assert fitting, reported
        assert self.plan(card, 96 * MIB, tmp_path, fitting[1]).exit_code == 0
