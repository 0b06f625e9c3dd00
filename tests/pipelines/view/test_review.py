"""Marks: rows of one CSV file, as the program and as spreadsheets write it."""

import csv
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.pipelines.errors import ReviewFileError
from cuda_cyclegan.pipelines.view.review import COLUMNS, Change, Mark, Review, load_marks, login

HEAD = ",".join(COLUMNS)
WHEN = "2026-11-28T10:00:00+00:00"


def review_in(folder: Path, reader: str = "me") -> Review:
    return Review(folder / "review.csv", reader)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_a_mark_is_a_row_with_reader_and_time(tmp_path: Path) -> None:
    review = review_in(tmp_path)
    review.put("b.nii", Change(mark="bad", comment="folded, at the neck"))
    review.put("a.nii", Change(mark="good"))
    review.put("b.nii", Change(mark="doubtful"))
    found = rows(review.file)
    assert [(row["study"], row["mark"], row["comment"], row["reader"]) for row in found] == [
        ("a.nii", "good", "", "me"),
        ("b.nii", "doubtful", "folded, at the neck", "me"),
    ]
    assert all("T" in row["when"] for row in found)
    assert set(review_in(tmp_path).marks) == set(review.marks) == set(load_marks(review.file))
    assert [file.name for file in tmp_path.iterdir()] == ["review.csv"]


def test_no_mark_and_no_comment_is_no_row(tmp_path: Path) -> None:
    review = review_in(tmp_path)
    review.put("a.nii", Change(comment="look again"))
    assert review.own("a.nii").mark is None
    review.put("a.nii", Change(comment=""))
    assert review_in(tmp_path).marks == ()


def test_two_readers_never_replace_each_other(tmp_path: Path) -> None:
    """Readers see the mark of the other only after their own one, unless they request it."""
    anna, bert = review_in(tmp_path, "anna"), review_in(tmp_path, "bert")
    anna.put("a.nii", Change(mark="good", comment="clear"))
    assert review_in(tmp_path, "bert").others("a.nii") == ()
    consensus = Review(anna.file, "bert", shows_all=True)
    assert [mark.mark for mark in consensus.others("a.nii")] == ["good"]
    bert.put("a.nii", Change(comment="hm"))
    assert bert.others("a.nii") == ()
    bert.put("a.nii", Change(mark="bad"))
    assert [(mark.reader, mark.comment) for mark in bert.others("a.nii")] == [("anna", "clear")]
    assert [(row["reader"], row["mark"]) for row in rows(anna.file)] == [
        ("anna", "good"),
        ("bert", "bad"),
    ]


SPREADSHEETS = {
    "bom": f"\ufeff{HEAD}\na.nii,good,,me,{WHEN}\nb.nii,bad,fold,me,{WHEN}\n",
    "semicolons": f"{HEAD.replace(',', ';')}\na.nii;good;;me;{WHEN}\nb.nii;bad;fold;me;{WHEN}\n",
    "tabs": f"{HEAD}\na.nii,good,,me,{WHEN}\nb.nii,bad,fold,me,{WHEN}\n".replace(",", "\t"),
    "crlf": f"{HEAD}\r\na.nii,good,,me,{WHEN}\r\nb.nii,bad,fold,me,{WHEN}\r\n,,,,\r\n",
    "order": f"When,Reader,Mark,Study,Comment\n{WHEN},me,Good,a.nii,\n{WHEN},me,BAD,b.nii,fold\n",
}
SPREADSHEETS["sep"] = f"sep=;\r\n{SPREADSHEETS['semicolons']}"


@pytest.mark.parametrize("habit", SPREADSHEETS)
def test_a_table_that_a_spreadsheet_stored_is_read(tmp_path: Path, habit: str) -> None:
    (tmp_path / "review.csv").write_bytes(SPREADSHEETS[habit].encode())
    marks = (Mark("a.nii", "good", "", "me", WHEN), Mark("b.nii", "bad", "fold", "me", WHEN))
    assert review_in(tmp_path).marks == marks
    (tmp_path / "review.csv").write_bytes(SPREADSHEETS[habit].lstrip("\ufeff").encode("utf-16"))
    assert review_in(tmp_path).marks == marks


def test_addition_of_a_user_is_kept(tmp_path: Path) -> None:
    """Rows of studies that are not shown, and columns."""
    table = f"{HEAD},site\na.nii,good,,me,{WHEN},Bonn\ngone.nii,bad,,other,{WHEN},=Ulm\n"
    (tmp_path / "review.csv").write_text(table)
    review_in(tmp_path).put("a.nii", Change(mark="bad"))
    found = rows(tmp_path / "review.csv")
    assert [(row["study"], row["mark"], row["site"]) for row in found] == [
        ("a.nii", "bad", "Bonn"),
        ("gone.nii", "bad", "'=Ulm"),
    ]


def test_the_json_of_earlier_versions_is_read_only_without_a_csv(tmp_path: Path) -> None:
    mark = {"study": "a.nii", "mark": "good", "comment": "", "reader": "old", "when": WHEN}
    content = json.dumps({"schema": "cuda-cyclegan/review/1", "marks": [mark]})
    (tmp_path / "review.json").write_text(content)
    review_in(tmp_path).put("b.nii", Change(mark="bad"))
    assert [row["study"] for row in rows(tmp_path / "review.csv")] == ["a.nii", "b.nii"]
    (tmp_path / "review.csv").write_text(f"{HEAD}\n")  # as if all marks had been removed
    assert review_in(tmp_path).marks == ()
    assert (tmp_path / "review.json").read_text() == content


FOREIGN = {
    "participants": "participant_id,age,sex\nsub-0010,34,F\n",
    "empty": "",
    "few columns": "study,mark\na.nii,good\n",
    "word": f"{HEAD}\na.nii,godo,,me,{WHEN}\n",
    "no study": f"{HEAD}\n,good,,me,{WHEN}\n",
    "twice": f"{HEAD}\na.nii,good,,me,{WHEN}\na.nii,bad,,me,{WHEN}\n",
    "cells": f"{HEAD}\na.nii,good,,me,{WHEN},more\n",
    "quote": f'{HEAD}\na.nii,good,"fold,me,{WHEN}\n',
    "header twice": f"{HEAD},mark\na.nii,good,,me,{WHEN},bad\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_review_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "review.csv"
    review = review_in(tmp_path)
    file.write_text(FOREIGN[kind])
    with pytest.raises(ReviewFileError, match=r"review\.csv is not a review, and stays as it is"):
        Review(file, "me")
    with pytest.raises(ReviewFileError):
        review.put("a.nii", Change(mark="good"))
    assert file.read_text() == FOREIGN[kind]


def test_text_that_is_not_utf_8_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "review.csv").write_bytes(f"{HEAD}\na.nii,good,f\xfcr,me,\n".encode("latin-1"))
    with pytest.raises(ReviewFileError, match="CSV UTF-8"):
        review_in(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": "x", "marks": []}', '{"schema": 1, "marks": [{}]}']
)
def test_a_foreign_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "review.json").write_text(content)
    with pytest.raises(ReviewFileError, match=r"review\.json"):
        review_in(tmp_path)
    with pytest.raises(ReviewFileError, match=r"\.csv"):
        Review(tmp_path / "review.json", "me")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "'=x", "''@", "'quoted'"])
def test_no_cell_is_a_formula_and_the_comment_stays_whole(tmp_path: Path, text: str) -> None:
    review = review_in(tmp_path)
    for _ in range(2):
        review.put(text, Change(mark="bad", comment=text))
    [row] = rows(review.file)
    assert not row["comment"].startswith(("=", "+", "-", "@", "\t"))
    assert review_in(tmp_path).own(text).comment == text


TEXT = st.text(st.characters(exclude_categories=())) | st.text(
    "'=-+@\t\r\n\\u05cd8f\udcfc\ud83d,;\""
)


@given(study=TEXT.filter(bool), comment=TEXT, reader=st.text("ab =-'", min_size=1).map(str.strip))
def test_any_text_comes_back_as_it_was(study: str, comment: str, reader: str) -> None:
    """Names that are not UTF-8, and halves of characters, are included."""
    from cuda_cyclegan.pipelines.view import review as tested

    mark = Mark(study, "good", comment, reader, WHEN)
    table = tested._table([mark])  # pyright: ignore[reportPrivateUsage]
    table.decode()
    assert tested._from_table(table) == (mark,)  # pyright: ignore[reportPrivateUsage]
    assert len(list(csv.reader(io.StringIO(table.decode(), newline="")))) == 2


def test_marks_of_two_pages_of_one_folder_are_all_kept(tmp_path: Path) -> None:
    """The same holds for one reader, who typed a comment on one and marked on the other."""
    first, second = review_in(tmp_path), review_in(tmp_path)
    first.put("a", Change(mark="good"))
    second.put("b", Change(mark="bad"))
    first.put("b", Change(comment="fold"))
    assert {mark.study: (mark.mark, mark.comment) for mark in load_marks(first.file)} == {
        "a": ("good", ""),
        "b": ("bad", "fold"),
    }


def test_marks_that_two_programs_store_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    def mark(reader: str) -> None:
        review = review_in(tmp_path, reader)
        start.wait()
        for number in range(10):
            review.put(str(number), Change(mark="good"))

    start = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(mark, "ab"))
    assert len(load_marks(tmp_path / "review.csv")) == 20


def test_a_user_without_a_name_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user would otherwise share a row with other such users."""

    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("cuda_cyclegan.pipelines.view.review.getuser", unknown)
    with pytest.raises(ReviewFileError, match="reader"):
        login()
