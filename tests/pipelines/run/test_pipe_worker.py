"""Messages of a worker process to its supervisor."""

from collections.abc import Iterator
from itertools import chain

from cuda_cyclegan.pipelines.events import Event, Remark, TilesDone, Worked
from cuda_cyclegan.pipelines.run.pipe_worker import bundled
from cuda_cyclegan.pipelines.stopwatch import Span

PATCHES = 1000


def of_patches() -> Iterator[Event]:
    """Yield the events of a study: a span of work and a report for each of its patches."""
    yield TilesDone("a.nii", 0, PATCHES)
    for number in range(PATCHES):
        yield Worked(Span("a.nii", "infer", "cpu", number, number + 1))
        yield TilesDone("a.nii", number + 1, PATCHES)


def test_patches_of_a_moment_take_three_messages() -> None:
    bundles = [*bundled(of_patches(), lambda: 7.0)]
    assert [each[-1] for each in bundles] == [
        TilesDone("a.nii", done, PATCHES) for done in (0, 1, PATCHES)
    ]
    spans = [event for event in chain(*bundles) if isinstance(event, Worked)]
    assert spans == [event for event in of_patches() if isinstance(event, Worked)]


def test_patches_are_reported_ten_times_a_second() -> None:
    now = 7.0

    def patches_of_ten_milliseconds() -> Iterator[Event]:
        nonlocal now
        for event in of_patches():
            yield event
            now += 0.01 * isinstance(event, TilesDone)

    bundles = [*bundled(patches_of_ten_milliseconds(), lambda: now)]
    assert PATCHES // 12 < len(bundles) <= PATCHES // 10 + 2


def test_other_events_wait_for_nothing_and_no_span_is_lost() -> None:
    span = Worked(Span("a.nii", "write", "write", 0.0, 1.0))
    events = [Remark("first"), span, Remark("second"), span]
    assert [*bundled(events)] == [(Remark("first"),), (span, Remark("second")), (span,)]
