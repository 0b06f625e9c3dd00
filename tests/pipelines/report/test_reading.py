"""Reports come back from their files as they went in, and nothing else does."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reports import BATCH, row, written
from support.tiers import WITH_FIXTURES, examples

from cuda_cyclegan.engine.probe.gpus import Energy
from cuda_cyclegan.pipelines.errors import ReportFileError
from cuda_cyclegan.pipelines.host.memory import PeakMemory
from cuda_cyclegan.pipelines.report.codec import read_report
from cuda_cyclegan.pipelines.report.comparison import Comparison, compare
from cuda_cyclegan.pipelines.report.report import BatchReport, Failure, Skip, StudyReport
from cuda_cyclegan.pipelines.stopwatch import STAGES, Stage
from cuda_cyclegan.pipelines.study.figures import (
    CycleError,
    Measures,
    SeamScore,
    SpreadFigures,
)

SECONDS = st.just(0.0) | st.floats(1e-9, 1e6)
ROWS = st.builds(
    StudyReport,
    name=st.text(min_size=1),
    source=st.builds(Path, st.text(st.characters(exclude_characters="\0"), min_size=1)),
    output=st.just(Path("out/a.nii")),
    status=st.sampled_from(["translated", "up to date", "interrupted"]),
    due=st.none() | st.text(min_size=1),
    seconds=SECONDS,
    stages=st.dictionaries(st.sampled_from(STAGES), SECONDS),
    when=st.dictionaries(
        st.sampled_from(STAGES),
        st.tuples(SECONDS, SECONDS).map(lambda pair: (min(pair), max(pair))),
    ),
    notes=st.lists(st.text(), max_size=2).map(tuple),
    voxels=st.integers(0, 2**40),
    tiles=st.integers(0, 10**6),
    peak_memory=st.none() | st.builds(PeakMemory, st.integers(0, 2**45), st.booleans()),
    preview=st.none() | st.just(Path("out/a.nii.preview.png")),
    seams=st.none() | st.builds(SeamScore, st.tuples(*[st.none() | SECONDS] * 3)),
)
FAILED = st.builds(
    lambda made, failure: replace(made, status="failed", failure=failure),
    ROWS,
    st.builds(
        Failure,
        st.sampled_from(["unreadable", "internal"]),
        st.text(),
        st.none() | st.sampled_from(["read", "blend"]),
    ),
)


@pytest.mark.parametrize("value", [-1000.0, 0.0, 3e38])
def test_any_value_for_nan_comes_back(value: float, tmp_path: Path) -> None:
    batch = replace(BATCH, options=replace(BATCH.options, nan_to=value))
    assert read_report(written(batch, tmp_path / "r.json")).batch.options.nan_to == value


@settings(
    max_examples=examples(60),
    suppress_health_check=WITH_FIXTURES,
)
@given(rows=st.lists(ROWS | FAILED, max_size=4), not_reached=st.integers(0, 9))
def test_a_report_comes_back_as_it_went_in(
    tmp_path: Path, rows: list[StudyReport], not_reached: int
) -> None:
    skipped = (Skip(Path("in/\udcff.mgz"), "no"),)
    report = replace(BATCH, studies=tuple(rows), skipped=skipped, not_reached=not_reached)
    assert read_report(written(report, tmp_path / "report.json")).batch == report


@pytest.mark.parametrize("level", [-3e38, 3e38])
def test_figures_of_the_largest_voxels_come_back(level: float, tmp_path: Path) -> None:
    """A scan may have any slope; a report that is not read again would end every later run."""
    largest = abs(level)
    measures = Measures(0, 1, 1, distance=largest, levels=((level,) * 3,), disagreement=largest)
    cycle, spread = CycleError(largest, largest, "a"), SpreadFigures(2, largest)
    study = replace(row("a.nii", 1.0), measures=measures, cycle=cycle, spread=spread)
    batch = replace(BATCH, studies=(study,))
    assert read_report(written(batch, tmp_path / "r.json")).batch == batch


def test_energy_comes_back_and_scripts_find_watts_and_parts(tmp_path: Path) -> None:
    measured = replace(BATCH, energy=Energy(2500.0, 10.0))
    file = written(measured, tmp_path / "report.json")
    assert read_report(file).batch == measured
    content = json.loads(file.read_text())
    assert content["energy"] == {"joules": 2500.0, "seconds": 10.0, "average_watts": 250.0}
    assert [study["apportioned_joules"] for study in content["studies"]] == [1000.0, 1500.0]


class Counted(dict[Stage, float]):
    """Seconds that count how often somebody looks."""

    looks = 0

    def __getitem__(self, stage: Stage) -> float:
        Counted.looks += 1
        return super().__getitem__(stage)

    def get(self, stage: Stage, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(stage, default)


def test_work_on_a_report_grows_with_its_studies_not_with_their_square(tmp_path: Path) -> None:
    rows = [replace(row(f"{at}.nii", 1.0), stages=Counted({"infer": 0.5})) for at in range(300)]
    many = replace(BATCH, studies=tuple(rows), energy=Energy(2500.0, 10.0))
    written(many, tmp_path / "report.json")
    assert Counted.looks < 20 * len(rows)


def test_statements_of_the_file_alone_are_read_too(tmp_path: Path) -> None:
    stored = read_report(written(BATCH, tmp_path / "report.json"))
    assert stored.program
    assert stored.machine.cores > 0
    assert stored.libraries["numpy"]


def test_fields_of_the_future_do_not_hurt(tmp_path: Path) -> None:
    file = written(BATCH, tmp_path / "report.json")
    content = json.loads(file.read_text())
    content["weather"] = content["studies"][0]["weather"] = ["fine"]
    file.write_text(json.dumps(content))
    assert read_report(file).batch == BATCH


ALWAYS_STORED = {
    "BatchReport": "model options device output started seconds use studies skipped",
    "ModelName": "name path sha256",
    "ResultReference": "studies spacing measures",
    "UsualMeasure": "measure median sd",
    "TranslateOptions": "",
    "CycleCheck": "model",
    "Use": "wall busy computing devices",
    "StudyReport": "name source output status",
    "PeakMemory": "bytes of_run",
    "SeamScore": "axes",
    "Verified": "places tiles error allowed seconds",
    "Failure": "kind reason stage",
    "Content": "files bytes sha256",
    "CycleError": "error unit back",
    "SpreadFigures": "flips deviation",
    "Measures": "cut_off edges detail",
    "Skip": "path reason",
    "Energy": "joules seconds",
}
"""Fields without a default; one that is added later needs it, as older reports and jobs lack it."""


def test_a_field_that_older_reports_lack_has_a_default() -> None:
    found = {
        record.__name__: " ".join(
            field.name
            for field in fields(record)
            if field.default is MISSING and field.default_factory is MISSING
        )
        for record in records(BatchReport)
    }
    assert found == ALWAYS_STORED


def records(kind: Any) -> Iterator[Any]:
    """The records that a type refers to, itself included."""
    for inner in get_args(kind):
        yield from records(inner)
    if isinstance(kind, type) and is_dataclass(kind):
        yield kind
        for inner in get_type_hints(kind).values():
            yield from records(inner)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"schema": NaN}', "is not JSON"),
        (b"[]", "contains no JSON object"),
        (b"{}", "is not a report of a batch"),
        (b'{"schema": "somebody/else/1"}', "is not a report of a batch"),
        (b'{"schema": ["cuda-cyclegan/translate-report/1"]}', "is not a report of a batch"),
        (b'{"schema": "cuda-cyclegan/translate-report/2"}', "has layout 2 and this version reads"),
        (b'{"schema": "cuda-cyclegan/translate-report/1"}', "its field machine is missing"),
    ],
)
def test_foreign_files_are_told_apart(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(ReportFileError, match=complaint):
        read_report(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportFileError, match="cannot be read: No such file"):
        read_report(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (["seconds"], -1, "seconds must be a number >= 0"),
        (["seconds"], 1e999, "is not JSON"),
        (["seconds"], 10**400, "seconds must be a finite number"),
        (["studies", 0, "voxels"], 10**400, r"studies\[0\].voxels must be an integer"),
        (["seconds"], True, "seconds must be a number, not true or false"),
        (["studies", 0, "name"], 7, r"studies\[0\].name must be text, not an integer"),
        (["studies", 0, "status"], "great", r"studies\[0\].status must be one of .*translated"),
        (
            ["studies", 0, "stages", "infer"],
            "1",
            r"studies\[0\].stages.infer must be a number",
        ),
        (
            ["studies", 0, "seam_score"],
            1.0,
            r"studies\[0\].seam_score must be an object or null",
        ),
        (["studies", 0, "when"], {"read": [2, 1]}, r"when.read must be a start and an end"),
        (["studies", 0, "notes"], [1], r"studies\[0\].notes\[0\] must be text, not an integer"),
        (["studies", 0], [], r"studies\[0\] must be an object, not a list"),
        (["settings", "patch"], [16, 16], "settings.patch must be a list of length 3, not 2"),
        (["totals"], None, "totals must be an object, not null"),
    ],
)
def test_a_damaged_field_is_named(
    tmp_path: Path, place: list[Any], value: object, complaint: str
) -> None:
    file = written(BATCH, tmp_path / "report.json")
    content = json.loads(file.read_text())
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(ReportFileError, match=complaint):
        read_report(file)


def compared(first: BatchReport, second: BatchReport, tmp_path: Path) -> Comparison:
    return compare(
        read_report(written(first, tmp_path / "1.json")),
        read_report(written(second, tmp_path / "2.json")),
    )


def test_a_comparison_is_over_the_studies_in_both(tmp_path: Path) -> None:
    ones = (row("a", 4.0), row("b", 6.0), row("grown", 5.0), row("only first", 100.0))
    others = (row("b", 2.0), row("a", 3.0), replace(row("grown", 5.0), voxels=1))
    first = replace(BATCH, studies=ones)
    second = replace(BATCH, studies=others, device="another")
    found = compared(first, second, tmp_path)
    assert [(p.first.name, p.second.seconds) for p in found.pairs] == [("a", 3.0), ("b", 2.0)]
    assert found.work == (10.0, 5.0)
    assert found.stages()["infer"] == (5.0, 2.5)
    assert found.unmatched == (2, 1)
    assert found.speedup is None, "wall times are of other studies"
    assert found.rate == pytest.approx(2001 / 4000)
    assert dict(found.differences) == {"device": ("numpy", "another")}


def test_studies_of_one_scan_compare_whatever_their_results_are_called(tmp_path: Path) -> None:
    a, b = (replace(row(name, 4.0), source=Path("/in") / name) for name in ("a", "b"))
    series = [replace(row(name, 4.0), source=Path("/in/several")) for name in ("s-1", "s-2")]
    named = [replace(one, name=f"{one.name}_T2", seconds=2.0) for one in (a, *series)]
    first = replace(BATCH, studies=(a, b, *series))
    found = compared(first, replace(BATCH, studies=(*named, b)), tmp_path)
    assert [(p.first.name, p.second.name) for p in found.pairs] == [("a", "a_T2"), ("b", "b")]
    assert found.unmatched == (2, 2)


def test_batches_of_the_same_studies_compare_by_wall_time_not_by_work_that_overlaps(
    tmp_path: Path,
) -> None:
    busier = replace(BATCH, studies=(row("a.nii", 9.0), row("b.nii", 9.0)), seconds=5.0)
    found = compared(BATCH, busier, tmp_path)
    assert (found.wall, found.speedup) == ((10.0, 5.0), 2.0)
    assert found.work == (10.0, 18.0)
