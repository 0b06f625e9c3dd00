"""Studies one after another: the trouble of one is its own."""

from pathlib import Path, PurePosixPath

from cuda_cyclegan.io.errors import UnreadableScanError
from cuda_cyclegan.io.volume import Blocker, Study
from cuda_cyclegan.pipelines.calibration import one_by_one
from cuda_cyclegan.pipelines.report.report import Failure
from cuda_cyclegan.pipelines.stopwatch import Stopwatch

REFUSED = Blocker("unsupported", "its modality is CT")
STUDIES = [
    Study(PurePosixPath("a.nii"), (Path("a.nii"),), "nifti"),
    Study(PurePosixPath("b.nii"), (Path("b.nii"),), "nifti"),
    Study(PurePosixPath("c"), (Path("c"),), "dicom", blocker=REFUSED),
    Study(PurePosixPath("d.nii"), (Path("d.nii"),), "nifti"),
]


def test_each_study_has_its_outcome_and_one_with_a_blocker_is_not_worked_on() -> None:
    worked_on, reported = list[str](), list[tuple[int, int]]()

    def work(study: Study, timer: Stopwatch) -> int:
        worked_on.append(study.name.name)
        with timer.time("read"):
            if study.name.name == "b.nii":
                raise UnreadableScanError("b.nii is damaged.")
        return len(worked_on)

    found = list(one_by_one(STUDIES, work, lambda *counts: reported.append(counts)))
    assert found == [
        ("a.nii", 1),
        ("b.nii", Failure("unreadable", "b.nii is damaged.", "read")),
        ("c", Failure("unsupported", "its modality is CT", None)),
        ("d.nii", 3),
    ]
    assert worked_on == ["a.nii", "b.nii", "d.nii"]
    assert reported == [(0, 4), (1, 4), (2, 4), (3, 4)]
