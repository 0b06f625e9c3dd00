"""Time left."""

from pathlib import Path, PurePosixPath

import pytest

from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines.events import BatchStarted, Pace, StudyDone, StudyStarted, TilesDone
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results.resume import Action, PlannedStudy


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def planned(folder: Path, name: str, size: int, action: Action = "translate") -> PlannedStudy:
    file = folder / name
    file.write_bytes(bytes(size))
    return PlannedStudy(Study(PurePosixPath(name), (file,), "nifti"), folder / "out", action)


def done(plan: PlannedStudy) -> StudyDone:
    return StudyDone(StudyReport(str(plan.study.name), Path(), Path(), "translated"))


def test_time_left_follows_the_bytes_that_are_still_due(tmp_path: Path) -> None:
    small, large = planned(tmp_path, "a", 999), planned(tmp_path, "b", 2999)
    kept = planned(tmp_path, "c", 10**6, "keep")
    clock = Clock()
    pace = Pace(clock)
    pace.handle(BatchStarted((kept, small, large)))
    pace.handle(done(kept))
    pace.handle(StudyStarted(small))
    assert pace.seconds_left is None
    clock.now += 10
    pace.handle(done(small))
    assert (pace.done, pace.total) == (2, 3)
    assert pace.seconds_left == pytest.approx(30)

    pace.handle(StudyStarted(large))
    pace.handle(TilesDone("b", 0, 4))
    clock.now += 5
    pace.handle(TilesDone("b", 2, 4))
    assert pace.patches_per_second == pytest.approx(0.4)
    assert pace.seconds_left == pytest.approx(15 * 1500 / 2500)
