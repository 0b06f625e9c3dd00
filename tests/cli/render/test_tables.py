"""Fit of studies, figures and sentences in a terminal."""

import pytest
from rich.cells import cell_len

from cuda_cyclegan.cli.render.tables import Row, TextTable, distinguishable, listing, shortened
from cuda_cyclegan.cli.render.terminal import broken
from cuda_cyclegan.cli.render.text import duration, memory, printable, scaled, seconds

TABLE = TextTable(
    head=Row("study", ["seconds", "status"]),
    rows=[
        Row("a.nii", ["0.12", "done"]),
        Row("患者一.nii.gz", ["1234", "failed"]),
        Row("sub-000/ses-01/anat/sub-000_ses-01_acq-mprage_T1w.nii.gz", ["", "redone"]),
    ],
    total=Row("total", ["1.23", ""]),
)


@pytest.mark.parametrize("columns", [None, 200, 100, 60, 40, 32])
def test_columns_stand_under_each_other_and_long_names_lose_their_middle(
    columns: int | None,
) -> None:
    lines = list(TABLE.lines(columns))
    assert all(cell_len(line) <= (columns or 1000) for line in lines)
    with_status = [line for line in lines if line.endswith(("done", "failed", "redone", "status"))]
    starts = {cell_len(line.removesuffix(line.split()[-1])) for line in with_status}
    assert len(starts) == 1
    long = TABLE.rows[-1].name
    if columns is None or columns >= 100:
        assert any(line.startswith(long) for line in lines)
    else:
        [shown] = [line.split()[0] for line in lines if "…" in line]
        assert long.startswith(shown.split("…")[0])
        assert long.endswith(shown.split("…")[1])


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (80, ["seconds", "peak", "RAM", "status"]),
        (39, ["seconds", "peak", "RAM", "status"]),
        (38, ["seconds", "status"]),
        (28, ["status"]),
        (8, ["status"]),
    ],
)
def test_a_narrow_terminal_loses_figures_and_keeps_the_last_word(
    columns: int, kept: list[str]
) -> None:
    table = TextTable(
        Row("study", ["seconds", "peak RAM", "status"]),
        [Row(name, ["1.20", "240 MiB", "failed"]) for name in RUNS],
        Row("wall time", ["4.22", "241 MiB", ""]),
    )
    lines = list(table.lines(columns))
    assert lines[0].split()[1:] == kept
    assert all(line.endswith("failed") for line in lines[2:-2])
    assert columns < 20 or max(map(cell_len, lines)) <= columns


def test_a_total_of_one_line_has_a_name_longer_than_all_others() -> None:
    table = TextTable(Row("study", ["s"]), [Row("a", ["1"])], Row("wall time", ["2"]))
    assert list(table.lines(None))[-1] == "wall time  2"


RUNS = [f"sub-01/ses-baseline/anat/sub-01_run-{run:02}_acq-mprage_T1w.nii.gz" for run in range(12)]


@pytest.mark.parametrize("width", [16, 24, 40, 60])
def test_names_that_differ_in_the_middle_are_told_apart(width: int) -> None:
    shown = distinguishable([*RUNS, "short", RUNS[0]], width)
    assert len(set(shown)) == len(RUNS) + 1
    assert shown[-1] == shown[0]
    assert all(cell_len(name) <= width for name in shown)


def test_an_empty_table_has_no_lines() -> None:
    assert list(TextTable(TABLE.head, []).lines(80)) == []


def test_a_sentence_breaks_between_words_and_never_within_a_path() -> None:
    path = "/data/" + "x" * 50
    lines = broken(f"failed: {path} is empty; copy or export it again.", 40)
    assert lines == ["failed:", f"  {path}", "  is empty; copy or export it again."]


@pytest.mark.parametrize("name", ["a" * 100, "患" * 50, "sub-01/" + "é" * 80 + "T1w.nii.gz"])
@pytest.mark.parametrize("width", [12, 13, 26, 40])
def test_a_shortened_name_fits_and_keeps_both_ends(name: str, width: int) -> None:
    short = shortened(name, width)
    assert width - 2 <= cell_len(short) <= width
    head, tail = short.split("…")
    assert name.startswith(head)
    assert name.endswith(tail)
    assert head
    assert tail
    assert shortened("short", width) == "short"


def test_control_characters_are_shown_and_letters_of_all_scripts_kept() -> None:
    assert printable("a\n\x1b[31m\u202eü山\udcff") == r"a\n\x1b[31m\u202eü山\udcff"


def test_figures_keep_three_digits() -> None:
    assert [seconds(value) for value in (0.004, 1.234, 12.34, 123.4)] == [
        "0.00",
        "1.23",
        "12.3",
        "123",
    ]
    assert [scaled(value) for value in (950, 999.7, 45_600, 1.23e6)] == [
        "950",
        "1.00k",
        "45.6k",
        "1.23M",
    ]
    assert [memory(value << 20) for value in (206, 1536)] == ["206 MiB", "1.50 GiB"]
    assert [memory(value << 10) for value in (400, 1024)] == ["400 KiB", "1 MiB"]
    assert duration(3725) == "1:02:05"


FACTS = [
    ("padding", "reflect", "the file's option --padding says so, and no other would fit the keys"),
    ("患者", "a" * 70, "b" * 70),
]


@pytest.mark.parametrize("columns", [None, 100, 72])
def test_a_listing_breaks_its_cells_to_fit_and_loses_nothing(columns: int | None) -> None:
    lines = list(listing(FACTS, columns))
    assert all(cell_len(line) <= (columns or 1000) for line in lines)
    starts = [line.find(cell[:8]) for line, cell in ((lines[0], "reflect"), (lines[0], "the file"))]
    assert starts == [9, 41]
    assert "".join(lines).count("a") - sum(cell.count("a") for cell in FACTS[0]) == 70
    assert "".join(lines).count("b") - sum(cell.count("b") for cell in FACTS[0]) == 70


def test_a_count_stays_with_what_it_counts() -> None:
    lines = listing([("layers", "Conv x 10, ConvTranspose x 2468", "")], 100)
    assert [line.split() for line in lines] == [
        ["layers", "Conv", "x", "10,"],
        ["ConvTranspose", "x", "2468"],
    ]
