"""Jobs as the queue stores them, by this version and by the one before."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs.queue.job import (
    FIRST_VERSIONS,
    VERSION,
    JobRow,
    StudyJob,
    Transfer,
)
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.summary import report_of
from cuda_cyclegan.pipelines.report.codec import as_stored, job_row, row_of_job
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.settings import OMITTED, CycleCheck, TranslateOptions

STORED = (
    '{"version": 1, "study": "a/\\udcff.nii", "files": ["/in/\\udcff.nii"], "output": "/out", '
    '"model": "/m.safetensors", "model_sha256": "00", "patch": [16, 16, 24], "overlap": 0.5, '
    '"blend": "linear", "precision": null, "volume_index": 2, "overwrite": true, '
    '"output_format": "nifti", "fewest_slices": 3, "allow_uneven": true, "preview": true, '
    '"seam_score": false, "keep_private": true}'
)
"""Job as the previous version wrote it, with fields in the job itself."""

JOB = StudyJob(
    study="a/\udcff.nii",
    files=("/in/\udcff.nii",),
    output="/out",
    model="/m.safetensors",
    model_sha256="00",
    options=TranslateOptions(
        patch=(16, 16, 24),
        overlap=0.5,
        blend="linear",
        volume_index=2,
        overwrite=True,
        output_format="nifti",
        fewest_slices=3,
        allow_uneven=True,
        preview=True,
        keep_private=True,
    ),
)


def row(payload: str, **result: object) -> JobRow:
    scheduling = SchedulingClass("normal")
    return JobRow("b/1", "done", scheduling, 1, "w", 0.0, None, 1.0, 2.0, payload, result)


def test_a_job_is_stored_as_the_version_before_stored_it() -> None:
    assert JOB.to_json() == STORED
    assert StudyJob.from_json(STORED) == JOB


LATER: dict[str, tuple[int, object, str]] = {
    "links": (1, "all", '"all"'),
    "verify": (2, 3, "3"),
    "any_modality": (3, True, "true"),
    "nan_to": (3, 0.0, "0.0"),
    "strict_input": (4, True, "true"),
    "cycle_check": (
        4,
        CycleCheck("/b", "1a"),
        '{"model": "/b", "sha256": "1a", "has_map": false}',
    ),
    "spread": (4, 2, "2"),
    "resample_channels": (4, True, "true"),
}
"""Options that came later: the version of a job with one, a value, and how it is written."""


@pytest.mark.parametrize("name", LATER)
def test_an_option_that_came_later_is_stored_behind_the_others(name: str) -> None:
    version, value, written = LATER[name]
    job = replace(JOB, options=replace(JOB.options, **{name: value}))
    expected = STORED.replace('"version": 1', f'"version": {version}')
    assert job.to_json() == expected.removesuffix("}") + f', "{name}": {written}' + "}"
    assert StudyJob.from_json(job.to_json()) == job


def test_each_option_that_is_omitted_has_its_version() -> None:
    assert OMITTED - FIRST_VERSIONS.keys() == {"keep_private"}


RELEASED: dict[str, dict[str, int]] = json.loads(
    (Path(__file__).parents[3] / "fixtures" / "released" / "jobs.json").read_text()
)
"""Fields of a job of each release, with their first versions."""


@pytest.mark.parametrize("release", RELEASED)
def test_fields_of_released_jobs_keep_their_versions(release: str) -> None:
    """A new field has a version that no released worker handles, so that it asks for an update."""
    released = RELEASED[release]
    now = {*StudyJob.__dataclass_fields__, *TranslateOptions.__dataclass_fields__} - {"options"}
    assert {name: FIRST_VERSIONS.get(name, 1) for name in released} == released
    new = now - released.keys()
    assert {name for name in new if FIRST_VERSIONS.get(name, 1) <= max(released.values())} == set()


def test_options_that_came_later_are_stored_in_one_order() -> None:
    asked = {name: value for name, (_, value, _) in LATER.items()}
    text = replace(JOB, options=replace(JOB.options, **asked)).to_json()
    assert list(json.loads(text))[-len(LATER) :] == [*LATER]
    assert json.loads(text)["version"] == 4


def test_listed_option_requires_a_worker_that_heeds_it_and_makes_no_other_job(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a"
    file.touch()
    plain = replace(JOB, files=(str(file),))
    listed = replace(plain, listed=(("/in", 1_700_000_000_000_000_000),))
    assert json.loads(listed.to_json())["version"] == 6
    assert StudyJob.from_json(listed.to_json()) == listed
    assert listed.key() == plain.key()
    assert listed.is_like(plain)


def test_which_images_are_meant_asks_for_a_worker_that_heeds_it(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.touch()
    one, other = (replace(JOB, files=(str(file),), images=(each,)) for each in ("1a", "2b"))
    assert json.loads(one.to_json())["version"] == 7
    assert StudyJob.from_json(one.to_json()) == one
    assert one.key() != other.key()
    assert one.is_like(other)


def test_an_incomplete_source_asks_for_a_worker_that_reports_it(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.touch()
    whole = replace(JOB, files=(str(file),))
    part = replace(whole, incomplete="the source was incomplete")
    assert json.loads(part.to_json())["version"] == 8
    assert StudyJob.from_json(part.to_json()) == part
    assert part.key() != whole.key()
    assert part.is_like(whole)


def test_a_job_from_before_an_option_was_there_takes_its_default() -> None:
    fields = json.loads(STORED)
    for name in ("output_format", "fewest_slices", "preview", "keep_private"):
        del fields[name]
    expected = replace(
        JOB.options, output_format="same", fewest_slices=8, preview=False, keep_private=False
    )
    assert StudyJob.from_json(json.dumps(fields)) == replace(JOB, options=expected)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"version": VERSION + 1}, "newer version"),
        ({"version": None}, "'version' must be an integer"),
        ({"patch": None}, "'patch' is missing"),
        ({"patch": [16, 16]}, "'patch' must be a list of length 3"),
        ({"overlap": "half"}, "'overlap' must be a number or a list or null, not text"),
        ({"precision": "fp8"}, "'precision' must be one of bf16, fp16, fp32, tf32"),
        ({"verify": -2}, r"verify=-2 is out of its bounds; use at least 0; submit it again\."),
        ({"files": []}, "'files' must name a file"),
        ({"files": "a"}, "'files' must be a list, not text"),
        ({"files": ["/in/a\0"]}, "'files' contains a zero byte, which no name may have"),
        ({"output": "/out\0"}, "'output' contains a zero byte"),
        ({"rotate": True}, "'rotate' is not known to this version"),
    ],
)
def test_a_job_that_cannot_be_done_right_is_refused(
    changed: dict[str, object], complaint: str
) -> None:
    with pytest.raises(QueueError, match=complaint):
        StudyJob.from_json(json.dumps({**json.loads(STORED), **changed}))


@pytest.mark.parametrize("text", ["", "damaged", "[]", "null", "{}"])
def test_text_that_is_no_job_is_refused(text: str) -> None:
    with pytest.raises(QueueError, match="cannot be read"):
        StudyJob.from_json(text)


def test_the_summary_of_a_batch_knows_what_was_asked() -> None:
    report = report_of([row(STORED, row={"status": "up to date"})])
    assert report.options == JOB.options
    assert report.options.keep_private
    assert report.options.precision is None


def test_a_batch_takes_no_less_than_its_longest_study() -> None:
    """The batch's jobs may begin and end in one second of the queue's clock."""
    done = {"status": "translated", "stages": {"read": 0.5, "infer": 1.75}, "seconds": 2.25}
    ended_at_once = replace(row(STORED, row=done), ended=1.0)
    report = report_of([ended_at_once])
    assert report.seconds == report.use.wall == report.studies[0].seconds > 2
    assert report.use.computing_share < 1


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    done = {"status": "translated", "stages": {"infer": 1.75}, "seconds": 1.75}
    transfers: dict[Transfer, tuple[float, float]] = {
        "receive": (900.0, 100.0),
        "send": (300.0, 8.0),
    }
    set_back = replace(row(STORED, row=done), started=900.0, ended=200.0, transfers=transfers)
    report = report_of([set_back])
    assert report.seconds == 1.75
    assert report.studies[0].stages == {"receive": 0.0, "infer": 1.75, "send": 0.0}
    assert as_stored(report, Path("batch")).batch.seconds == 1.75


def test_a_row_that_cannot_be_read_is_a_failure_that_names_the_field() -> None:
    [study] = report_of([row(STORED, row={"status": "translated", "tiles": "8"})]).studies
    assert study.failure
    assert "'tiles' must be an integer, not text" in study.failure.reason
    assert study.name == JOB.study


@given(
    stages=st.dictionaries(st.sampled_from(["read", "infer"]), st.floats(0, 9)),
    notes=st.lists(st.text()).map(tuple),
)
def test_a_study_s_row_comes_back_from_the_queue(
    stages: dict[str, float], notes: tuple[str, ...]
) -> None:
    made = StudyReport("a", Path("b"), Path("c"), "translated", stages=stages, notes=notes)  # pyright: ignore[reportArgumentType]
    stored = json.loads(json.dumps({**job_row(made), "weather": "fine"}))
    stored["stages"]["rotate"] = 1.0
    assert row_of_job(stored, "a", Path("b"), Path("c")) == made
