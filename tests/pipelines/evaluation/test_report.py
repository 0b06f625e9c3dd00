"""The CSV of an evaluation in a spreadsheet: names stay text, and numbers stay numbers."""

import csv
import io
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from cuda_cyclegan import EvaluatedStudy
from cuda_cyclegan.pipelines.evaluation.protocols import Figures, general
from cuda_cyclegan.pipelines.evaluation.report import METRICS, Evaluation, PairRow, csv_text
from cuda_cyclegan.pipelines.study.statistics import Range

BEGINNINGS = "=+-@\t\r\n＝＋－＠"  # noqa: RUF001

NO_FILES: dict[str, None] = dict.fromkeys(("result", "truth", "mask"))
PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"


def test_each_metric_is_in_python_and_on_the_page() -> None:
    """`METRICS` is the one list: a figure that is missing elsewhere is found here."""
    names = {metric.name for metric in METRICS}
    others = {"name", "status", "voxels", "reason"}
    assert {field.name for field in fields(EvaluatedStudy)} == names | others
    described = re.findall(r"`studies\[\]\.(\w+)`", PAGE.read_text())
    assert names <= {*described}
    measured = {field.name for field in fields(Figures)} - {"tissues", "labels"}
    of_labels = {"dice_labels", "hd95_labels"}
    assert measured | of_labels == {each.name for each in METRICS if not each.is_of_tissue}


def cells(row: PairRow) -> dict[str, str]:
    """A row as csv reads it."""
    text = csv_text(Evaluation(general(None), (row,), 1.0))
    [read] = csv.DictReader(io.StringIO(text, newline=""))
    return read


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_text_that_a_spreadsheet_would_compute_is_marked_as_text(beginning: str) -> None:
    name = f"{beginning}HYPERLINK(1)"
    files = {"result": Path(name), "truth": Path("-5"), "mask": Path(f"@{name}")}
    read = cells(PairRow(name=name, **files, status="failed", reason=f"+{name}"))
    assert read["name"] == read["result"] == f"'{name}"
    assert (read["truth"], read["mask"], read["reason"]) == ("'-5", f"'@{name}", f"'+{name}")


def test_numbers_below_zero_stay_numbers() -> None:
    for value in (-0.5, np.float64(-0.5), np.float32(-0.5), float("-inf")):
        figures = Figures(
            mae=1.0,
            psnr=float(value),
            ms_ssim=None,
            ssim=-1e-7,
            r=value,  # pyright: ignore[reportArgumentType]
        )
        read = cells(
            PairRow(
                name="a",
                **NO_FILES,
                status="evaluated",
                figures=figures,
                data_range=Range(-1024, 3.0),
            )
        )
        assert float(read["psnr"]) == float(read["r"]) == value
        assert (read["ssim"], read["data_range_low"], read["ms_ssim"]) == ("-1e-07", "-1024", "")


@settings(max_examples=examples(300))
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")))
def test_all_other_text_is_as_it_was(name: str) -> None:
    read = cells(PairRow(name=name, **NO_FILES, status="missing", reason=name))
    assert read["name"] == read["reason"]
    assert read["name"].removeprefix("'" if name[:1] in tuple(BEGINNINGS) else "") == name
    assert not read["name"].startswith(tuple(BEGINNINGS))
