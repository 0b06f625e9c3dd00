"""Other execution providers of ONNX Runtime: which are there, and none is used unchecked."""

from typing import Any

import numpy as np
import pytest
from support.provider_stand_in import StandIn, install

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.devices import choose_device, choose_devices, open_generator
from cuda_cyclegan.engine.errors import DeviceUnavailableError
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.engine.providers import installed_providers, open_provider_generator

PATCH = (16, 16, 16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    from support.batch_world import tiny_model

    return load_model(tiny_model(tmp_path_factory.mktemp("model") / "m.safetensors"))


def opened(model: Model, name: str = "onnxruntime:StandIn") -> Any:
    return open_generator(model.network, choose_device(name), "fp32", PATCH)


@pytest.mark.parametrize(
    ("like", "words"),
    [
        (StandIn(), "StandIn for 191 of 191 operators, "),
        (StandIn(share=0.4), "StandIn for 76 of 191 operators, "),
        (StandIn(tells=False), "StandIn, "),
        (StandIn(factor=1 + 1e-6), "StandIn for 191 of 191 operators, "),
    ],
)
def test_a_provider_that_is_right_computes(
    model: Model, monkeypatch: pytest.MonkeyPatch, like: StandIn, words: str
) -> None:
    install(monkeypatch, like)
    patch = np.random.default_rng(0).random((2, 1, *PATCH), np.float32)
    with opened(model) as generator, open_cpu_generator(model.network) as cpu:
        assert generator.device.startswith(f"{words}ONNX Runtime ")
        assert np.allclose(generator(patch), cpu(patch), rtol=1e-5)
        assert generator(patch).shape == patch.shape


@pytest.mark.parametrize(
    ("factor", "figure"), [(1.001, "1.0e-03"), (0.0, "1.0e\\+00"), (float("nan"), "nan")]
)
def test_one_that_is_wrong_is_refused_with_the_figure(
    model: Model, monkeypatch: pytest.MonkeyPatch, factor: float, figure: str
) -> None:
    install(monkeypatch, StandIn(factor))
    words = f"on a patch of 16x16x16 is {figure}, but at most 1.0e-05 is allowed"
    with pytest.raises(DeviceUnavailableError, match=words), opened(model):
        pass


def test_one_that_is_wrong_only_in_patches_to_come_is_refused(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, StandIn(2.0, wrong_from=24))
    device = choose_device("onnxruntime:StandIn")
    with opened(model):
        pass
    opening = open_generator(model.network, device, "fp32", (24, 16, 16))
    with pytest.raises(DeviceUnavailableError, match="on a patch of 24x16x16 is"), opening:
        pass


@pytest.mark.parametrize(
    ("like", "words"),
    [
        (StandIn(starts=False), "does not start on this machine"),
        (StandIn(share=0), "supports no operator of this network"),
        (StandIn(stops=True), r"failed on its first patch \(the device was removed\)"),
    ],
)
def test_one_that_leaves_all_to_the_cpu_or_stops_is_refused(
    model: Model, monkeypatch: pytest.MonkeyPatch, like: StandIn, words: str
) -> None:
    install(monkeypatch, like)
    with pytest.raises(DeviceUnavailableError, match=words), opened(model):
        pass


def test_a_provider_that_takes_nothing_is_refused_by_the_real_runtime_too(model: Model) -> None:
    with (
        pytest.raises(DeviceUnavailableError, match="supports no operator"),
        open_provider_generator(model.network, "Azure"),
    ):
        pass


def test_the_cpu_by_its_providers_name_computes_the_same_bits(model: Model) -> None:
    patch = np.random.default_rng(0).random((1, 1, *PATCH), np.float32)
    with opened(model, "onnxruntime:CPU") as generator, open_cpu_generator(model.network) as cpu:
        assert generator.device.startswith("CPU for 191 of 191 operators, ONNX Runtime ")
        assert generator(patch).tobytes() == cpu(patch).tobytes()


def test_a_provider_that_is_missing_is_answered_with_those_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DeviceUnavailableError) as refusal:
        choose_device("onnxruntime:CoreML")
    assert str(refusal.value) == (
        f"ONNX Runtime has no provider CoreML on this machine; it has "
        f"{', '.join(installed_providers())}."
    )
    install(monkeypatch, StandIn())
    with pytest.raises(DeviceUnavailableError, match="it has StandIn, CPU"):
        choose_device("onnxruntime:standin")


def test_a_provider_that_sends_patches_elsewhere_is_none_of_them() -> None:
    assert "Azure" not in installed_providers()
    with pytest.raises(DeviceUnavailableError, match="no provider Azure"):
        choose_device("onnxruntime:Azure")


def test_a_provider_is_one_device_of_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StandIn())
    [device] = choose_devices("onnxruntime:StandIn")
    assert (device.name, device.precisions) == ("onnxruntime:StandIn", ("fp32",))
    assert choose_device("cpu").name == "cpu"


def test_a_network_on_a_provider_runs_only_while_open(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, StandIn())
    with opened(model) as generator:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        generator(np.zeros((1, 1, *PATCH), np.float32))
