"""Seconds until a device is ready, without the search for plans that later starts are spared."""

from cuda_cyclegan.pipelines.events import BatchStarted, DeviceOpened, Event, Tuning
from cuda_cyclegan.pipelines.timeline import Opening


def opened(*heard: tuple[float, Event]) -> float | None:
    now = 0.0
    opening = Opening(lambda: now)
    for at, event in heard:
        now = at
        opening.handle(event)
    return opening.seconds


def test_without_tuning_it_is_all_of_the_time() -> None:
    assert opened((0.1, BatchStarted(())), (1.5, DeviceOpened("card"))) == 1.5
    assert opened((0.1, BatchStarted(()))) is None


def test_tuning_is_left_out() -> None:
    events = [
        (1.0, Tuning("a", 0.0)),
        (4.0, Tuning("b", 0.5)),
        (9.0, Tuning("", 1.0)),
        (9.5, DeviceOpened("card")),
    ]
    assert opened(*events) == 1.5
    assert opened(*events, (30.0, DeviceOpened("another"))) == 1.5
