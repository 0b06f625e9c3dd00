"""Marks: stored as CSV and JSON, read again, and compared between readers."""

import csv
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuda_cyclegan.pipelines.errors import ReviewFileError
from cuda_cyclegan.pipelines.view.review import (
    GRADES,
    SCHEMA,
    Grade,
    Mark,
    Review,
    agreement,
    load_marks,
)


def marked(**grades: Grade | None) -> dict[str, Mark]:
    return {name: Mark(name, grade, "", "me", "") for name, grade in grades.items()}


def test_a_mark_is_a_row_with_reader_and_time_in_both_files(tmp_path: Path) -> None:
    review = Review(tmp_path / "review.csv")
    review.put("b.nii", "bad", "folded, at the neck")
    review.put("a.nii", "good", "")
    review.put("b.nii", "doubtful", "folded, at the neck")
    with review.file.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["study"], row["mark"], row["comment"]) for row in rows] == [
        ("a.nii", "good", ""),
        ("b.nii", "doubtful", "folded, at the neck"),
    ]
    assert all(row["reader"] and "T" in row["when"] for row in rows)
    stored = json.loads(review.json.read_text())
    assert stored == {"schema": SCHEMA, "marks": rows}
    assert Review(review.file).marks == review.marks == load_marks(review.file)


def test_no_mark_and_no_comment_is_no_row(tmp_path: Path) -> None:
    review = Review(tmp_path / "review.csv")
    review.put("a.nii", None, "look again")
    assert review.marks["a.nii"].mark is None
    review.put("a.nii", None, "")
    assert Review(review.file).marks == {}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_no_cell_is_a_formula_and_the_comment_stays_whole(tmp_path: Path, text: str) -> None:
    review = Review(tmp_path / "review.csv")
    review.put(text, "bad", text)
    with review.file.open(newline="") as file:
        [row] = csv.DictReader(file)
    assert row["study"] == row["comment"] == f"'{text}"
    assert Review(review.file).marks[text].comment == text


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": "x", "marks": []}', '{"schema": 1, "marks": [{}]}']
)
def test_a_foreign_file_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    (tmp_path / "review.json").write_text(content)
    with pytest.raises(ReviewFileError, match=r"review\.json"):
        Review(tmp_path / "review.csv")
    assert (tmp_path / "review.json").read_text() == content


def test_kappa_of_the_textbook() -> None:
    """Both yes 20, both no 15, first alone 5, second alone 10: kappa 0.4 (Cohen 1960)."""
    pairs = [("good", "good")] * 20 + [("bad", "bad")] * 15
    pairs += [("good", "bad")] * 5 + [("bad", "good")] * 10
    first = {str(n): Mark(str(n), one, "", "", "") for n, (one, _) in enumerate(pairs)}  # pyright: ignore[reportArgumentType]
    second = {str(n): Mark(str(n), other, "", "", "") for n, (_, other) in enumerate(pairs)}  # pyright: ignore[reportArgumentType]
    found = agreement(first, second)
    assert (found.both, found.alike) == (50, 35)
    assert found.kappa == pytest.approx(0.4)
    assert len(found.unlike) == 15


def test_only_studies_that_both_marked_are_compared() -> None:
    found = agreement(marked(a="good", b="bad", c=None), marked(b="bad", d="good", e="bad"))
    assert (found.both, found.alike, found.alone) == (1, 1, (1, 2))
    assert found.kappa is None  # both use one mark only, so chance agrees as well
    assert agreement({}, {}).kappa is None


@pytest.mark.parametrize("grade", GRADES)
def test_full_agreement_over_several_marks_is_one(grade: Grade) -> None:
    marks = marked(a="good", b="bad", c=grade)
    assert agreement(marks, marks).kappa == 1


def test_marks_of_two_pages_of_one_folder_are_all_kept(tmp_path: Path) -> None:
    """As of `view` and `jobs view`, by two people."""
    first, second = Review(tmp_path / "review.csv"), Review(tmp_path / "review.csv")
    first.put("a", "good", "")
    second.put("b", "bad", "")
    first.put("c", "good", "")
    assert set(load_marks(first.file)) == {"a", "b", "c"} == set(first.marks)


def test_marks_that_two_programs_store_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    def mark(reader: str) -> None:
        review = Review(tmp_path / "review.csv")
        start.wait()
        for number in range(10):
            review.put(f"{reader}{number}", "good", "")

    start = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(mark, "ab"))
    assert len(load_marks(tmp_path / "review.json")) == 20
    with (tmp_path / "review.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 20
