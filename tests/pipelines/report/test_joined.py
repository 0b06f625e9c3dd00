"""A report that several runs of one batch write together."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.reports import BATCH, failed, row, written

from cuda_cyclegan.pipelines.errors import ReportFileError
from cuda_cyclegan.pipelines.report.comparison import joined, report_so_far
from cuda_cyclegan.pipelines.report.report import BatchReport, StudyReport, Use

SETTINGS = BATCH.options.resolved()


def kept(name: str) -> StudyReport:
    return replace(row(name, 0.0), status="up to date", seconds=0.0, stages={}, peak_memory=None)


def so_far(file: Path) -> BatchReport | None:
    return report_so_far(file, BATCH.model.sha256, SETTINGS, BATCH.output)


def test_studies_done_before_keep_their_rows_and_seconds_count_together() -> None:
    second = replace(row("b.nii", 6.0), when={"read": (0.0, 1.0)})
    now = replace(
        BATCH,
        studies=(kept("a.nii"), second),
        seconds=3.0,
        started="2026-01-03T00:00:00+00:00",
        use=Use(wall=2.0, busy=6.0, computing=1.0, devices=1),
    )
    earlier = replace(BATCH, studies=(row("a.nii", 4.0),), not_reached=1)
    whole = joined(earlier, now, ["a.nii", "b.nii"])
    assert whole.studies == (row("a.nii", 4.0), replace(second, when={"read": (10.0, 11.0)}))
    assert (whole.seconds, whole.started, whole.runs) == (13.0, BATCH.started, 2)
    assert whole.use == Use(wall=12.0, busy=16.0, computing=6.0, devices=1)
    assert not whole.interrupted


def test_after_a_finished_run_the_report_is_still_of_the_whole_batch() -> None:
    again = replace(BATCH, studies=(kept("a.nii"), kept("b.nii")), seconds=0.1)
    whole = joined(BATCH, again, ["a.nii", "b.nii"])
    assert whole.studies == BATCH.studies


def test_a_stopped_run_loses_nothing_that_an_earlier_one_did() -> None:
    stopped = replace(BATCH, studies=(failed("c.nii", "empty"),), not_reached=3)
    whole = joined(BATCH, stopped, ["a.nii", "c.nii", "b.nii", "d.nii"])
    assert [found.name for found in whole.studies] == ["a.nii", "c.nii", "b.nii"]
    assert (whole.not_reached, whole.interrupted) == (1, True)


def test_results_of_studies_that_are_not_asked_for_stay_and_their_failures_go() -> None:
    earlier = replace(BATCH, studies=(row("a.nii", 4.0), failed("bad.nii", "empty")))
    whole = joined(earlier, replace(BATCH, studies=(row("b.nii", 1.0),)), ["b.nii"])
    assert [found.name for found in whole.studies] == ["b.nii", "a.nii"]


def test_a_run_that_does_all_anew_shows_of_itself_alone() -> None:
    anew = replace(BATCH, seconds=7.0)
    assert joined(BATCH, anew, ["a.nii", "b.nii"]) is anew


def test_no_file_and_an_empty_one_hold_no_report(tmp_path: Path) -> None:
    assert so_far(tmp_path / "none.json") is None
    (tmp_path / "empty.json").touch()
    assert so_far(tmp_path / "empty.json") is None


def test_the_report_of_this_batch_is_found_and_of_another_refused(tmp_path: Path) -> None:
    assert so_far(written(BATCH, tmp_path / "r.json")) == BATCH
    others = (
        ("another model", replace(BATCH, model=replace(BATCH.model, sha256="1" * 64))),
        ("another output folder", replace(BATCH, output=Path("elsewhere"))),
        ("other settings", replace(BATCH, options=replace(BATCH.options, overlap=0.5))),
        ("other settings", replace(BATCH, options=replace(BATCH.options, precision=None))),
    )
    for what, other in others:
        reported = f"is the report of another batch, of 2026-01-02.*, with {what};"
        with pytest.raises(ReportFileError, match=reported):
            so_far(written(other, tmp_path / "other.json"))


@pytest.mark.parametrize("content", ["my notes", "{}", json.dumps({"schema": "x/1"})])
def test_a_file_that_is_no_report_is_never_lost(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(ReportFileError, match="cannot be continued"):
        so_far(tmp_path / "mine.json")
