"""The table at the end of a large batch, and what has a colour on a terminal."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.reports import BATCH, failed, row

from cuda_cyclegan.cli.render.batch_summary import FEW_STUDIES, MOST_ROWS, table, totals
from cuda_cyclegan.cli.render.terminal import coloured, has_colours
from cuda_cyclegan.cli.render.text import from_here
from cuda_cyclegan.pipelines.report.report import StudyReport


def names(*rows: StudyReport, all_rows: bool = False) -> list[str]:
    """First words of the rows, without head, rules and wall time."""
    lines = list(table(replace(BATCH, studies=rows), None, all_rows=all_rows))
    first = [line.split()[0] for line in lines[2:] if not line.startswith("─")]
    return [name for name in first if name != "wall"]


def many(count: int) -> tuple[StudyReport, ...]:
    return tuple(row(f"{number}.nii", 1.0) for number in range(count))


def test_failed_and_noted_ones_of_many_studies_are_shown_and_a_count() -> None:
    noted, bad = replace(row("noted.nii", 1.0), notes=("odd",)), failed("bad.nii", "It is empty.")
    rows = *many(998), noted, bad
    assert names(*rows) == ["noted.nii", "bad.nii", "998"]
    assert len(names(*rows, all_rows=True)) == 1000
    *_, last = table(replace(BATCH, studies=rows), None)
    assert last == "998 more studies; --all-rows shows all"


def test_few_studies_are_all_shown() -> None:
    assert len(names(*many(MOST_ROWS))) == MOST_ROWS
    assert names(*many(MOST_ROWS + 1)) == ["0.nii", str(MOST_ROWS)]


def test_first_of_many_odd_studies_are_shown() -> None:
    rows = tuple(failed(f"{number}.nii", "It is empty.") for number in range(100))
    assert names(*rows) == [*(f"{number}.nii" for number in range(MOST_ROWS)), "60"]


def said(*rows: StudyReport, verbose: bool = False) -> str:
    return "\n".join(totals(replace(BATCH, studies=rows), verbose=verbose))


def test_the_use_of_the_machine_is_shown_for_many_studies_or_on_request() -> None:
    for rows, verbose, shown in (
        (many(FEW_STUDIES), False, False),
        (many(FEW_STUDIES), True, True),
        (many(FEW_STUDIES + 1), False, True),
    ):
        text = said(*rows, verbose=verbose)
        assert ("Work by stage" in text, "network was computing" in text) == (shown, shown)


def test_the_place_of_previews_is_shown() -> None:
    drawn = [replace(one, preview=Path(f"r/{one.name}.preview.png")) for one in many(2)]
    assert "\nPreview: r/0.nii.preview.png" in said(drawn[0])
    assert "\nPreviews: next to the results, *.preview.png" in said(*drawn)
    assert "Preview" not in said(*many(2))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{}/a.nii is cut", "a.nii is cut"),
        ("failed: {}/in/a b.nii: odd ({}/c)", "failed: in/a b.nii: odd (c)"),
        ("{} and {}/", "{} and {}/"),
        ("/other{}/a.nii and {}2/a.nii", "/other{}/a.nii and {}2/a.nii"),
    ],
)
def test_paths_below_the_current_folder_are_relative_to_it(
    text: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_here(text.replace("{}", str(tmp_path))) == shown.replace("{}", str(tmp_path))
    monkeypatch.chdir("/")
    assert from_here(f"{tmp_path}/a.nii") == f"{tmp_path}/a.nii"


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
