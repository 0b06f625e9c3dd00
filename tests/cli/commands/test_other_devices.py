"""`--device onnxruntime:PROVIDER` in each command that takes a device."""

from pathlib import Path

import pytest
from support.batch_world import scan
from support.provider_stand_in import StandIn, install
from support.translate_world import World
from typer.testing import CliRunner

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine import devices
from cuda_cyclegan.pipelines.doctor import self_test
from cuda_cyclegan.pipelines.doctor.findings import Finding
from cuda_cyclegan.pipelines.doctor.self_test import examine_devices

DEVICE = "onnxruntime:StandIn"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    scan(world.inputs / "a.nii.gz")
    return world


def test_a_right_provider_translates_as_the_cpu_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.translate("--device", "cpu").exit_code == 0
    [on_cpu] = [data for name, data in world.files().items() if name == "a.nii.gz"]
    install(monkeypatch, StandIn(share=0.5))
    done = world.translate("--device", DEVICE, "--overwrite", "--report", str(world.report))
    assert done.exit_code == 0, done.output
    assert world.files()["a.nii.gz"] == on_cpu
    assert '"StandIn for 96 of 191 operators, ONNX Runtime ' in world.report.read_text()


def test_nothing_is_written_on_a_wrong_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StandIn(factor=1.01))
    done = world.translate("--device", DEVICE)
    assert done.exit_code == 4
    words = "16x16x16 is 1.0e-02, but at most 1.0e-05 is allowed; use --device cpu."
    assert words in done.output
    assert "a.nii.gz" not in world.files()


def test_a_missing_one_is_answered_with_those_installed(world: World) -> None:
    done = world.translate("--device", "onnxruntime:Missing")
    assert done.exit_code == 4
    assert "ONNX Runtime has no provider Missing on this machine; it has " in done.output
    assert not world.output.exists()


def test_plan_and_worker_take_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StandIn())
    planned = CliRunner().invoke(app, ["plan", *world.arguments("--device", DEVICE)])
    assert planned.exit_code == 0, planned.output
    missing = ["worker", "--device", "onnxruntime:Missing", "--until-empty"]
    refused = CliRunner().invoke(app, [*missing, "--queue", str(world.output / "q.db")])
    assert refused.exit_code == 4
    assert "it has StandIn, CPU" in refused.output


@pytest.mark.process
def test_a_worker_computes_on_it(world: World) -> None:
    queue = ["--queue", str(world.inputs.parent / "queue.db")]
    submitted = CliRunner().invoke(app, ["submit", *world.arguments(*queue)])
    assert submitted.exit_code == 0, submitted.output
    asked = ["worker", "--device", "onnxruntime:CPU", "--until-empty", "--fail-on-error", *queue]
    worked = CliRunner().invoke(app, asked)
    assert worked.exit_code == 0, worked.output
    assert "onnxruntime:CPU: " in worked.output
    assert (world.output / "a.nii.gz").exists()


def test_bench_does_not_measure_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StandIn())
    done = CliRunner().invoke(app, ["bench", "--arch", "resnet", "--device", DEVICE])
    assert done.exit_code == 2
    assert f"Device {DEVICE} cannot be measured" in done.output


def test_a_translator_opens_on_it_and_refuses_a_wrong_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cc.load_model(world.model)
    install(monkeypatch, StandIn())
    with cc.Translator(model, device=DEVICE) as translator:
        assert translator.device.startswith("StandIn for 191 of 191 operators")
    install(monkeypatch, StandIn(factor=-1))
    with pytest.raises(cc.DeviceUnavailableError, match=r"the error .* is 2\.0e\+00,"):
        cc.Translator(model, device=DEVICE)


def doctors_line(monkeypatch: pytest.MonkeyPatch, like: StandIn) -> Finding:
    monkeypatch.setattr(devices, "why_no_cuda", lambda: "no NVIDIA driver is installed")
    install(monkeypatch, like)
    [cpu, found] = examine_devices()
    assert (cpu.subject, cpu.state) == ("Self-test, CPU", "ok")
    assert found.subject == f"Self-test, {DEVICE}"
    return found


@pytest.fixture
def small_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_test._USUAL == (128, 128, 128)
    monkeypatch.setattr(self_test, "_USUAL", (32, 24, 16))
    monkeypatch.setattr(self_test, "_USUAL_ON_CPU", (32, 24, 16))


@pytest.mark.usefixtures("small_patches")
def test_doctor_tests_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = doctors_line(monkeypatch, StandIn())
    assert right.state == "ok"
    assert "with patches of 16x16x16 and 32x24x16" in right.words
    assert "does not start" in doctors_line(monkeypatch, StandIn(starts=False)).words


@pytest.mark.usefixtures("small_patches")
def test_doctor_says_how_far_off_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = doctors_line(monkeypatch, StandIn(factor=1.01, wrong_from=20))
    assert wrong.state == "warning"
    assert "the error on a patch of 32x24x16 is 1.0e-02," in wrong.words
