"""Device that is selected for a request."""

from dataclasses import replace

import pytest

from cuda_cyclegan.engine import devices
from cuda_cyclegan.engine.errors import DeviceUnavailableError
from cuda_cyclegan.engine.options import CudaLimits
from cuda_cyclegan.engine.probe.gpus import CudaDevice

CARDS = (
    CudaDevice(0, "Tesla V100", (7, 0), 16 << 30, None, "CUDA 12.8"),
    CudaDevice(1, "NVIDIA A100", (8, 0), 80 << 30, None, "CUDA 12.8"),
    CudaDevice(2, "NVIDIA H200", (9, 0), 140 << 30, None, "CUDA 12.8"),
)


@pytest.fixture
def with_cards(monkeypatch):
    monkeypatch.setattr(devices, "why_no_cuda", lambda: None)
    monkeypatch.setattr(devices, "cuda_devices", lambda: CARDS)


@pytest.fixture
def without_cards(monkeypatch):
    monkeypatch.setattr(devices, "why_no_cuda", lambda: "no NVIDIA driver is installed")


@pytest.mark.usefixtures("with_cards")
def test_gpus_that_are_too_old_are_skipped():
    assert devices.choose_device("auto").index == 1
    assert "NVIDIA A100" in devices.choose_device("auto").note
    assert devices.choose_device("cuda").note is None
    assert devices.choose_device("cuda:2").index == 2
    assert devices.choose_device("cpu").kind == "cpu"
    with pytest.raises(DeviceUnavailableError, match=r"cuda:1 \(NVIDIA A100\)"):
        devices.choose_device("cuda:0")
    assert [d.index for d in devices.choose_devices("cuda:2,1,2")] == [2, 1, 2]
    assert [d.index for d in devices.choose_devices("cuda")] == [1, 2]
    assert [d.index for d in devices.choose_devices("auto")] == [1]


@pytest.mark.usefixtures("without_cards")
@pytest.mark.parametrize(
    ("free", "limit", "parts"),
    [(None, None, 70 << 30), (20 << 30, None, 10 << 30), (20 << 30, 4 << 30, 2 << 30)],
    ids=["of all", "of what is free", "of the limit"],
)
def test_a_gpu_that_is_named_twice_is_shared(free: int | None, limit: int | None, parts: int):
    gpus = [replace(card, free_bytes=free) for card in CARDS[1:]]
    first, other, second = devices.choose_devices("cuda:2,1,2", CudaLimits(vram=limit), gpus)
    assert first == second
    assert first.limits.vram is not None
    assert 0 <= parts - first.limits.vram < 1 << 30  # both have a context, too
    assert other.limits.vram == limit


def test_a_gpu_before_ampere_has_neither_bf16_nor_tf32(monkeypatch):
    turing = CudaDevice(0, "Tesla T4", (7, 5), 16 << 30, None, "CUDA 12.8")
    monkeypatch.setattr(devices, "why_no_cuda", lambda: None)
    monkeypatch.setattr(devices, "cuda_devices", lambda: (turing, CARDS[1]))
    found = devices.choose_devices("cuda")
    assert [d.precisions for d in found] == [("fp16", "fp32"), ("fp16", "bf16", "tf32", "fp32")]
    assert devices.choose_device("auto").precisions == ("fp16", "fp32")


@pytest.mark.usefixtures("without_cards")
def test_gpus_that_others_have_found_are_taken_without_a_driver():
    found = [replace(card, bus=f"bus {card.index}") for card in CARDS[1:]]
    chosen = devices.choose_devices("cuda:2,1", gpus=found)
    assert [(card.index, card.bus) for card in chosen] == [(2, "bus 2"), (1, "bus 1")]
    with pytest.raises(DeviceUnavailableError, match=r"cuda:3 does not exist; use cuda:1"):
        devices.choose_devices("cuda:1,3", gpus=found)


@pytest.mark.usefixtures("without_cards")
def test_only_auto_falls_back_on_the_cpu():
    assert devices.choose_device("auto").kind == "cpu"
    assert "no NVIDIA driver" in devices.choose_device("auto").note
    with pytest.raises(DeviceUnavailableError, match="no NVIDIA driver is installed"):
        devices.choose_device("cuda")


@pytest.mark.usefixtures("with_cards")
def test_limits_travel_with_a_gpu():
    limits = CudaLimits(vram=4 << 30, tune="off")
    assert devices.choose_device("cuda", limits).limits == limits
