"""A network that opens before anybody asks for it."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from support.numerics_models import FunctionGenerator

from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.generator import PatchGenerator
from cuda_cyclegan.engine.options import Precision, Progress, ignore_progress
from cuda_cyclegan.pipelines.execution.network_opening import early_opening

PATIENCE = 30.0


class Device:
    """Opens once it may; notes what is opened and closed, and tells of a search meanwhile."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.may_open, self.is_open = threading.Event(), threading.Event()
        self.told = threading.Event()
        self._error = error

    @contextmanager
    def __call__(self, precision: Precision, progress: Progress) -> Generator[PatchGenerator]:
        progress("a convolution", 0.5)
        self.told.set()
        assert self.may_open.wait(PATIENCE)
        if self._error:
            raise self._error
        progress("", 1.0)
        self.calls.append(f"open {precision}")
        self.is_open.set()
        yield FunctionGenerator()
        self.calls.append(f"close {precision}")


def test_who_asks_is_given_what_opened_meanwhile_and_closes_it() -> None:
    device = Device()
    device.may_open.set()
    with early_opening(device, "fp16") as opening:
        assert device.is_open.wait(PATIENCE)
        with opening("fp16", ignore_progress):
            assert device.calls == ["open fp16"]
        assert device.calls == ["open fp16", "close fp16"]
    assert device.calls == ["open fp16", "close fp16"]


def test_who_asks_before_it_is_open_hears_all_of_the_search() -> None:
    device, heard = Device(), list[tuple[str, float | None]]()
    with early_opening(device, "fp16") as opening:
        assert device.told.wait(PATIENCE)

        def hear(what: str, share: float | None) -> None:
            heard.append((what, share))
            device.may_open.set()

        with opening("fp16", hear):
            assert heard == [("a convolution", 0.5), ("", 1.0)]


def test_it_is_given_once_and_in_its_precision_only() -> None:
    device = Device()
    device.may_open.set()
    with early_opening(device, "fp16") as opening:
        assert device.is_open.wait(PATIENCE)
        with opening("bf16", ignore_progress):
            assert device.calls == ["open fp16", "open bf16"]
        with opening("fp16", ignore_progress), opening("fp16", ignore_progress):
            assert device.calls[-1] == "open fp16"
            assert device.calls.count("open fp16") == 2
    assert device.calls.count("close fp16") == 2


def test_what_nobody_asked_for_is_closed() -> None:
    device = Device()
    device.may_open.set()
    with early_opening(device, "fp16"):
        for thread in threading.enumerate():
            if thread.name == "opening":
                thread.join(PATIENCE)
        assert device.calls == ["open fp16"]
    assert device.calls == ["open fp16", "close fp16"]


def test_what_kept_it_from_opening_is_told_to_who_asks_and_else_to_nobody() -> None:
    device = Device(DeviceMemoryError("no room"))
    device.may_open.set()
    with (
        early_opening(device, "fp16") as opening,
        pytest.raises(DeviceMemoryError, match="no room"),
        opening("fp16", ignore_progress),
    ):
        pass
    with early_opening(device, "fp16"):
        pass
