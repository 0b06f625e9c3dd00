"""The networks that are open on a device, some of them before anything asks for them."""

import threading
from collections.abc import Generator as Iterated
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.batch_world import tiny_model
from support.fake_networks import networks_opened_by
from support.numerics_models import FunctionGenerator
from support.waiting import ENOUGH

from cuda_cyclegan.engine.devices import Device as Hardware
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.generator import AnyGenerator, Generator
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import CudaLimits, Precision, Progress
from cuda_cyclegan.pipelines.run import networks as owning
from cuda_cyclegan.pipelines.run.networks import Networks
from cuda_cyclegan.pipelines.settings import TranslateOptions

FP16 = TranslateOptions((16, 16, 16), precision="fp16").resolved()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(tiny_model(tmp_path_factory.mktemp("model") / "model.safetensors"))


class Device:
    """Device that opens once it may, notes what is opened and closed, and reports a search
    meanwhile.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.may_open, self.is_open = threading.Event(), threading.Event()
        self.reported = threading.Event()
        self._error = error

    @contextmanager
    def __call__(self, precision: Precision, progress: Progress) -> Iterated[Generator]:
        progress("a convolution", 0.5)
        self.reported.set()
        assert self.may_open.wait(ENOUGH)
        if self._error:
            raise self._error
        progress("", 1.0)
        self.calls.append(f"open {precision}")
        self.is_open.set()
        yield FunctionGenerator()
        self.calls.append(f"close {precision}")


@pytest.fixture
def device() -> Device:
    ready = Device()
    ready.may_open.set()
    return ready


def test_the_first_use_takes_what_opened_meanwhile_and_closes_it(
    model: Model, device: Device
) -> None:
    with networks_opened_by(device, "fp16") as networks:
        networks.open_early(model, FP16)
        assert device.is_open.wait(ENOUGH)
        with networks.use((model, FP16)) as (network,):
            network.open("fp16")
            assert device.calls == ["open fp16"]
        assert device.calls == ["open fp16", "close fp16"]
    assert device.calls == ["open fp16", "close fp16"]


def test_a_use_before_it_is_open_gets_all_reports_of_the_search(model: Model) -> None:
    device, heard = Device(), list[tuple[str, float | None]]()

    def handle(what: str, share: float | None) -> None:
        heard.append((what, share))
        device.may_open.set()

    with networks_opened_by(device, "fp16") as networks:
        networks.open_early(model, FP16)
        assert device.reported.wait(ENOUGH)
        with networks.use((model, FP16), progress=handle) as (network,):
            network.open("fp16")
            assert heard == [("a convolution", 0.5), ("", 1.0)]


def test_it_is_taken_once_and_in_its_precision_only(model: Model, device: Device) -> None:
    with networks_opened_by(device, "fp16", "bf16") as networks:
        networks.open_early(model, FP16)
        assert device.is_open.wait(ENOUGH)
        with networks.use((model, FP16)) as (network,):
            network.open("bf16")
            assert device.calls == ["open fp16", "open bf16"]
            network.open("fp16")
            assert device.calls.count("open fp16") == 1
            network.open("bf16")
            network.open("fp16")
            assert device.calls.count("open fp16") == 2
    assert device.calls.count("close fp16") == 2


def test_unused_network_is_closed(model: Model, device: Device) -> None:
    with networks_opened_by(device, "fp16") as networks:
        networks.open_early(model, FP16)
        for thread in threading.enumerate():
            if thread.name == "opening":
                thread.join(ENOUGH)
        assert device.calls == ["open fp16"]
    assert device.calls == ["open fp16", "close fp16"]


def test_error_of_opening_is_raised_by_its_use_and_by_nothing_else(model: Model) -> None:
    device = Device(DeviceMemoryError("no room"))
    device.may_open.set()
    with networks_opened_by(device, "fp16") as networks:
        networks.open_early(model, FP16)
        with (
            networks.use((model, FP16)) as (network,),
            pytest.raises(DeviceMemoryError, match="no room"),
        ):
            network.open("fp16")
    with networks_opened_by(device, "fp16") as networks:
        networks.open_early(model, FP16)


class Opened:
    """Network that is open on a GPU, with the memory limit that it was opened with."""

    def __init__(self) -> None:
        self.now: list[tuple[Triple | None, int | None]] = []
        self.count = 0

    @contextmanager
    def __call__(
        self, _: Network, card: Hardware, patch: Triple | None, *__: object
    ) -> Iterated[AnyGenerator]:
        self.count += 1
        self.now.append((patch, card.limits.vram))
        yield FunctionGenerator()
        self.now.remove((patch, card.limits.vram))


@pytest.mark.parametrize("keeps", [False, True])
def test_networks_stay_open_after_their_use_only_if_they_are_kept(
    model: Model, *, keeps: bool
) -> None:
    opened = Opened()
    with Networks(Hardware("cpu", "fp32", ("fp32",)), keeps=keeps, open_network=opened) as networks:
        for _ in range(2):
            with networks.use((model, FP16)) as (network,):
                network.open("fp32")
            assert len(opened.now) == keeps
        assert opened.count == (1 if keeps else 2)
        other = replace(FP16, patch=(8, 8, 8))
        with networks.use((model, other)) as (network,):
            assert opened.now == []
            network.open("fp32")
    assert opened.now == []


@pytest.mark.parametrize(("is_halved", "limit"), [(False, 50), (True, 100)])
def test_two_networks_share_the_memory_of_their_device(
    model: Model, monkeypatch: pytest.MonkeyPatch, *, is_halved: bool, limit: int
) -> None:
    def half(card: Hardware) -> Hardware:
        return replace(card, limits=CudaLimits(vram=50))

    monkeypatch.setattr(owning, "with_half_the_memory", half)
    card, opened = Hardware("cuda", "fp16", ("fp16",), limits=CudaLimits(vram=100)), Opened()
    other = replace(FP16, patch=(8, 8, 8))
    with Networks(card, is_halved=is_halved, open_network=opened) as networks:
        with networks.use((model, FP16), (model, other)) as both:
            for network in both:
                network.open("fp16")
            assert opened.now == [((16, 16, 16), limit), ((8, 8, 8), limit)]
        with networks.use((model, FP16)) as (network,):
            network.open("fp16")
            assert opened.now == [((16, 16, 16), 100)]


def test_a_verifier_stays_until_another_models_is_asked_for(model: Model, tmp_path: Path) -> None:
    other = load_model(tiny_model(tmp_path / "other.safetensors", seed=1))
    with Networks(Hardware("cpu", "fp32", ("fp32",))) as networks:
        first = networks.verifier(model)
        assert networks.verifier(model) is first
        assert networks.verifier(other) is not first


def test_an_end_leaves_networks_to_a_thread_that_still_uses_them(
    model: Model, device: Device
) -> None:
    """A device may hang after an interrupt."""
    networks = networks_opened_by(device, "fp16")
    with networks.use((model, FP16)) as (network,):
        network.open("fp16")
        networks.close()
        assert device.calls == ["open fp16"]
    assert device.calls == ["open fp16", "close fp16"]
