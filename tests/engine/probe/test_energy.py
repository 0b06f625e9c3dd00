"""What cards consumed, by NVML's counter; two calls of NVML are a stand-in's."""

from collections.abc import Callable
from typing import Any

import pytest

from cuda_cyclegan.engine.probe import energy
from cuda_cyclegan.engine.probe.energy import Energy, EnergyMeter

NOT_SUPPORTED = 3


class Management:
    """NVML with the counters of cards by their addresses, in millijoules; None: has none."""

    def __init__(self, counters: dict[str, int | None]) -> None:
        self.counters = counters
        self._handles = list(counters)

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 1 + self._handles.index(bus.decode())
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, counted: Any) -> int:  # noqa: N802
        value = self.counters[self._handles[handle.value - 1]]
        if value is None:
            return NOT_SUPPORTED
        counted._obj.value = value
        return 0


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Management | None], None]:
    return lambda library: monkeypatch.setattr(energy, "management_library", lambda: library)


def test_joules_are_of_the_cards_that_were_named(use: Callable[[Management], None]) -> None:
    library = Management({"bus 0": 5_000_000_000_000, "bus 1": 70_000})
    use(library)
    both, second = EnergyMeter(["bus 0", "bus 1"]), EnergyMeter(["bus 1"])
    library.counters = {"bus 0": 5_000_000_002_500, "bus 1": 71_000}
    of_both, of_second = both.read(), second.read()
    assert of_both
    assert of_second
    assert (of_both.joules, of_second.joules) == (3.5, 1.0)
    assert of_both.seconds > 0


def test_nothing_is_told_where_a_card_has_no_counter(use: Callable[[Management], None]) -> None:
    use(Management({"bus 0": 1000, "bus 1": None}))
    assert EnergyMeter(["bus 0"]).read()
    assert EnergyMeter(["bus 0", "bus 1"]).read() is None


def test_nothing_is_told_without_a_card_or_nvml(use: Callable[[Management | None], None]) -> None:
    use(Management({"bus 0": 1000}))
    assert EnergyMeter([]).read() is None
    use(None)
    assert EnergyMeter(["bus 0"]).read() is None


def test_watts_are_joules_by_seconds() -> None:
    assert Energy(300.0, 2.0).watts == 150.0
    assert Energy(0.0, 0.0).watts == 0.0


def test_only_what_outlasts_the_counters_steps_is_exact() -> None:
    assert Energy(300.0, 2.0).is_exact
    assert not Energy(300.0, 0.4).is_exact
