"""Agreement of readers against textbooks, and the intervals against a plain bootstrap."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cuda_cyclegan.pipelines.view.agreement import (
    Reader,
    agreement,
    agreements,
    readers_of,
    unlike,
)
from cuda_cyclegan.pipelines.view.review import GRADES, Grade, Mark


def readers(*columns: Sequence[Grade]) -> list[Reader]:
    """Readers of as many studies."""
    return [
        Reader(name, dict(zip(map(str, range(len(grades))), grades, strict=True)))
        for name, grades in zip("abcdefghijklmn", columns, strict=False)
    ]


COHEN: list[tuple[Grade, Grade]] = (
    [("good", "good")] * 20 + [("bad", "bad")] * 15 + [("good", "bad")] * 5 + [("bad", "good")] * 10
)


def test_kappa_of_the_textbook() -> None:
    """Both yes 20, both no 15, first alone 5, second alone 10: kappa 0.4."""
    found = agreement(readers(*zip(*COHEN, strict=True)))
    assert (found.studies, found.alike, found.share.value) == (50, 35, 0.7)
    assert found.kappa.value == pytest.approx(0.4)


def test_the_interval_is_that_of_a_bootstrap_over_studies() -> None:
    found = agreement(readers(*zip(*COHEN, strict=True)))
    random = np.random.default_rng(1)
    pairs = np.array([[GRADES.index(one) for one in pair] for pair in COHEN])

    def kappa(drawn: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> float:
        shares = [[np.mean(drawn[:, reader] == grade) for grade in range(3)] for reader in (0, 1)]
        by_chance = float(np.dot(*shares))
        return (float(np.mean(drawn[:, 0] == drawn[:, 1])) - by_chance) / (1 - by_chance)

    drawn = [kappa(pairs[random.integers(0, 50, 50)]) for _ in range(2000)]
    assert found.kappa.interval == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.03)
    assert found.share.interval == pytest.approx((0.56, 0.82), abs=0.03)
    assert agreement(readers(*zip(*COHEN, strict=True))) == found  # the same each time


def test_fleiss_kappa_of_many_readers() -> None:
    """Three of Fleiss' formula by hand: votes (4,0,0), (2,2,0), (0,4,0), (1,1,2)."""
    votes = [(4, 0, 0), (2, 2, 0), (0, 4, 0), (1, 1, 2)]
    studies = [[g for g, n in zip(GRADES, row, strict=True) for _ in range(n)] for row in votes]
    found = agreement(readers(*zip(*studies, strict=True)))
    observed = np.mean([1, 4 / 12, 1, 2 / 12])
    by_chance = (7 / 16) ** 2 + (7 / 16) ** 2 + (2 / 16) ** 2
    assert found.kappa.value == pytest.approx((observed - by_chance) / (1 - by_chance))
    assert (found.studies, found.alike) == (4, 2)


def test_only_studies_that_all_marked_are_compared() -> None:
    first = Reader("a", {"1": "good", "2": "bad", "3": "good"})
    second, third = Reader("b", {"2": "bad", "3": "bad"}), Reader("c", {"3": "good", "4": "bad"})
    found = agreements([first, second, third])
    assert [(one.readers, one.studies, one.alike) for one in found] == [
        (("a", "b"), 2, 1),
        (("a", "c"), 1, 1),
        (("b", "c"), 1, 0),
        (("a", "b", "c"), 1, 0),
    ]
    assert unlike([first, second, third]) == {"3": {"a": "good", "b": "bad", "c": "good"}}


def test_nothing_is_claimed_without_evidence() -> None:
    """No kappa if one mark alone was used, and no interval from a few studies."""
    one_mark = agreement(readers(["good"] * 20, ["good"] * 20))
    assert (one_mark.alike, one_mark.kappa.value, one_mark.kappa.interval) == (20, None, None)
    few = agreement(readers(["good", "bad"], ["good", "bad"]))
    assert (few.kappa.value, few.kappa.interval, few.share.interval) == (1, None, None)
    none = agreement([Reader("a", {"1": "good"}), Reader("b", {"2": "good"})])
    assert (none.studies, none.share.value) == (0, None)


def test_one_name_in_two_files_is_two_readers() -> None:
    def mark(study: str, grade: Grade | None, reader: str) -> Mark:
        return Mark(study, grade, "x", reader, "")

    files = [
        (Path("review.csv"), [mark("1", "good", "root"), mark("2", None, "anna")]),
        (Path("second.csv"), [mark("1", "bad", "root"), mark("1", "bad", "bert")]),
    ]
    assert [reader.name for reader in readers_of(files)] == [
        "root (review.csv)",
        "root (second.csv)",
        "bert",
    ]
