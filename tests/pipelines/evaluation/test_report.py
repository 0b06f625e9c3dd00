"""The CSV of an evaluation in a spreadsheet: names stay text, and numbers stay numbers."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from cuda_cyclegan.pipelines.evaluation.protocols import Figures, general
from cuda_cyclegan.pipelines.evaluation.report import Evaluation, PairRow, csv_text
from cuda_cyclegan.pipelines.study.statistics import Range

BEGINNINGS = "=+-@\t\r\n＝＋－＠"  # noqa: RUF001


def cells(row: PairRow) -> dict[str, str]:
    """A row as csv reads it."""
    text = csv_text(Evaluation(general(None), (row,), 1.0))
    [read] = csv.DictReader(io.StringIO(text, newline=""))
    return read


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_what_a_spreadsheet_would_compute_is_marked_as_text(beginning: str) -> None:
    name = f"{beginning}HYPERLINK(1)"
    read = cells(PairRow(name, Path(name), Path("-5"), Path(f"@{name}"), "failed", f"+{name}"))
    assert read["name"] == read["result"] == f"'{name}"
    assert (read["truth"], read["mask"], read["reason"]) == ("'-5", f"'@{name}", f"'+{name}")


def test_numbers_below_zero_stay_numbers() -> None:
    for value in (-0.5, np.float64(-0.5), np.float32(-0.5), float("-inf")):
        figures = Figures(1.0, float(value), None, -1e-7, value)  # pyright: ignore[reportArgumentType]
        read = cells(PairRow("a", None, None, None, "evaluated", None, figures, Range(-1024, 3.0)))
        assert float(read["psnr"]) == float(read["r"]) == value
        assert (read["ssim"], read["data_range_low"], read["ms_ssim"]) == ("-1e-07", "-1024", "")


@settings(max_examples=examples(300))
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")))
def test_all_other_text_is_as_it_was(name: str) -> None:
    read = cells(PairRow(name, None, None, None, "missing", name))
    assert read["name"] == read["reason"]
    assert read["name"].removeprefix("'" if name[:1] in tuple(BEGINNINGS) else "") == name
    assert not read["name"].startswith(tuple(BEGINNINGS))
