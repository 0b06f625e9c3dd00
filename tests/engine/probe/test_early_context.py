"""A card's context that is made while the program loads; the driver is a stand-in."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from cuda_cyclegan.engine import card_startup
from cuda_cyclegan.engine.probe import early_context as early
from cuda_cyclegan.engine.probe.cards import OLDEST_CAPABILITY, CudaDevice

PATIENCE = 30.0
BAD = 101


class Driver:
    """Numbers its devices from 100; status: what keeping a context comes to."""

    def __init__(self, status: int = 0) -> None:
        self._status = status
        self.calls: list[tuple[str, int]] = []

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 100 + index
        return 0

    def cuDevicePrimaryCtxRetain(self, _context: object, device: Any) -> int:  # noqa: N802
        self.calls.append(("retain", device.value))
        return self._status

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:  # noqa: N802
        self.calls.append(("release", device))
        return 0


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Driver | None], None]:
    return lambda driver: monkeypatch.setattr(early, "driver_library", lambda: driver)


def test_the_context_is_made_beside_the_block_and_kept_until_its_end(
    use: Callable[[Driver | None], None],
) -> None:
    driver, begun, chosen = Driver(), threading.Event(), threading.Event()
    use(driver)

    def choose() -> int:
        assert begun.wait(PATIENCE)  # which only the block sets
        chosen.set()
        return 1

    with early.early_context(choose, lambda: None):
        begun.set()
        assert chosen.wait(PATIENCE)
    assert driver.calls == [("retain", 101), ("release", 101)]


def test_a_context_that_is_refused_is_not_released(use: Callable[[Driver | None], None]) -> None:
    driver = Driver(BAD)
    use(driver)
    with early.early_context(lambda: 0, lambda: None):
        pass
    assert driver.calls == [("retain", 100)]


def test_nothing_happens_without_a_driver_or_a_choice(use: Callable[[Driver | None], None]) -> None:
    use(None)
    with early.early_context(lambda: 0, lambda: None):
        pass
    driver = Driver()
    use(driver)
    with early.early_context(lambda: None, lambda: None):
        pass
    assert driver.calls == []


def test_what_opens_the_card_is_loaded_beside_its_context(
    use: Callable[[Driver | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, is_loaded = Driver(), threading.Event()
    use(driver)
    retain = driver.cuDevicePrimaryCtxRetain

    def retain_later(context: object, device: Any) -> int:
        assert is_loaded.wait(PATIENCE)
        return retain(context, device)

    def load() -> None:
        is_loaded.set()
        raise ImportError("cudnn")  # which opening the card tells of

    monkeypatch.setattr(driver, "cuDevicePrimaryCtxRetain", retain_later)
    with early.early_context(lambda: 0, load):
        pass
    assert driver.calls == [("retain", 100), ("release", 100)]


def test_nothing_is_loaded_where_there_is_no_card(use: Callable[[Driver | None], None]) -> None:
    use(Driver())
    loaded = list[str]()
    with early.early_context(lambda: None, lambda: loaded.append("packages")):
        pass
    assert loaded == []


@pytest.mark.parametrize(
    ("asked", "cards", "expected"),
    [
        ("cuda:3", [], 3),
        ("cuda:0,1", [(0, (9, 0)), (1, (9, 0))], None),
        ("cuda", [(0, (9, 0)), (1, (9, 0))], None),
        ("cuda", [(0, (7, 0)), (1, (9, 0))], 1),
        ("auto", [(0, (7, 0)), (1, (9, 0)), (2, (9, 0))], 1),
        ("auto", [], None),
        ("cpu", [(0, (9, 0))], None),
        ("onnxruntime:TensorRT", [(0, (9, 0))], None),
    ],
)
def test_it_is_the_context_of_the_one_card_that_a_name_stands_for(
    asked: str,
    cards: list[tuple[int, tuple[int, int]]],
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [CudaDevice(index, "card", chip, 1 << 34, None, "CUDA 13") for index, chip in cards]
    chosen: list[int | None] = []
    usable = [card for card in there if card.capability >= OLDEST_CAPABILITY]
    monkeypatch.setattr(card_startup, "usable_cards", lambda: usable)
    monkeypatch.setattr(card_startup, "early_context", lambda choose, _: chosen.append(choose()))
    card_startup.early_card_context(asked)
    assert chosen == [expected]
