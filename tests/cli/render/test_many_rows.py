"""The table at the end of a large batch, and what has a colour on a terminal."""

from dataclasses import replace

import pytest
from support.reports import BATCH, failed, row

from cuda_cyclegan.cli.render.batch_summary import MOST_ROWS, table
from cuda_cyclegan.cli.render.terminal import coloured, has_colours
from cuda_cyclegan.pipelines.report.report import StudyReport


def names(*rows: StudyReport, all_rows: bool = False) -> list[str]:
    """First words of the rows, without head, rules and wall time."""
    lines = list(table(replace(BATCH, studies=rows), None, all_rows=all_rows))
    first = [line.split()[0] for line in lines[2:] if not line.startswith("─")]
    return [name for name in first if name != "wall"]


def many(count: int) -> tuple[StudyReport, ...]:
    return tuple(row(f"{number}.nii", 1.0) for number in range(count))


def test_of_many_studies_those_that_failed_or_have_a_note_are_shown_and_a_count() -> None:
    noted, bad = replace(row("noted.nii", 1.0), notes=("odd",)), failed("bad.nii", "It is empty.")
    rows = *many(998), noted, bad
    assert names(*rows) == ["noted.nii", "bad.nii", "998"]
    assert len(names(*rows, all_rows=True)) == 1000
    *_, last = table(replace(BATCH, studies=rows), None)
    assert last == "998 more studies; --all-rows shows all"


def test_of_few_studies_all_are_shown() -> None:
    assert len(names(*many(MOST_ROWS))) == MOST_ROWS
    assert names(*many(MOST_ROWS + 1)) == ["0.nii", str(MOST_ROWS)]


def test_of_many_odd_studies_the_first_are_shown() -> None:
    rows = tuple(failed(f"{number}.nii", "It is empty.") for number in range(100))
    assert names(*rows) == [*(f"{number}.nii" for number in range(MOST_ROWS)), "60"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("failed: a.nii: unreadable", "\x1b[31mfailed\x1b[39m: a.nii: unreadable"),
        ("Error: no", "\x1b[31mError\x1b[39m: no"),
        ("note: a.nii: odd", "\x1b[33mnote\x1b[39m: a.nii: odd"),
        ("a.nii  0.01  failed", "a.nii  0.01  \x1b[31mfailed\x1b[39m"),
        ("a.nii  0.01  done", "a.nii  0.01  done"),
        ("noted: nothing failed", "noted: nothing failed"),
    ],
)
def test_failures_are_red_and_notes_yellow(line: str, shown: str) -> None:
    assert coloured(line) == shown


@pytest.mark.parametrize(
    ("environment", "has"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_no_colour_is_respected(
    environment: dict[str, str], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert has_colours() == has
