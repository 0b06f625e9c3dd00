"""Predicted seconds."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.pipelines.rates import RateCache, Rates, Work, wall_seconds
from cuda_cyclegan.pipelines.report import StudyReport
from cuda_cyclegan.pipelines.stopwatch import Stage

STAGES: dict[Stage, float] = {
    "read": 1.0,
    "prepare": 2.0,
    "infer": 8.0,
    "blend": 1.0,
    "finish": 3.0,
    "write": 4.0,
}
ROW = StudyReport(
    "a", Path(), Path(), "translated", seconds=19.0, stages=STAGES, voxels=128, tiles=9
)
seconds = st.floats(0.01, 100)
works = st.lists(st.builds(Work, seconds, seconds, seconds), min_size=1, max_size=8)


def test_rates_foretell_the_study_that_they_were_measured_on() -> None:
    rates = Rates.measured([ROW, replace(ROW, status="failed", voxels=0)])
    assert rates is not None
    assert Work.of(ROW.voxels, ROW.tiles, rates).seconds == pytest.approx(ROW.seconds)
    assert Work.of(2 * ROW.voxels, ROW.tiles, rates) == Work(6.0, 9.0, 14.0)


def test_nothing_translated_is_no_rate() -> None:
    assert Rates.measured([replace(ROW, status="failed")]) is None


def test_a_batch_is_as_fast_as_its_slowest_station() -> None:
    batch = [Work(1, 5, 2)] * 10
    assert wall_seconds(batch) == 1 + 50 + 2
    assert wall_seconds([Work(1, 2, 5)] * 10) == 3 + 50


@given(works)
def test_a_batch_takes_no_longer_than_its_studies_one_by_one(batch: list[Work]) -> None:
    wall = wall_seconds(batch)
    alone = [sum(getattr(work, name) for work in batch) for name in ("load", "network", "store")]
    assert max(alone) * (1 - 1e-9) <= wall <= sum(alone) * (1 + 1e-9)


class TestTheCache:
    def test_what_is_kept_is_found_again_under_its_key_only(self, tmp_path: Path) -> None:
        RateCache(tmp_path / "new").put("a", Rates(1, 2, 3))
        RateCache(tmp_path / "new").put("b", Rates(4, 5, 6))
        assert RateCache(tmp_path / "new").get("a") == Rates(1, 2, 3)
        assert RateCache(tmp_path / "new").get("c") is None

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', '{"a": {"tile": "x"}}', "null"])
    def test_a_damaged_file_counts_as_empty_and_is_replaced(
        self, tmp_path: Path, content: str
    ) -> None:
        (tmp_path / "rates.json").write_text(content)
        cache = RateCache(tmp_path)
        assert cache.get("a") is None
        cache.put("a", Rates(1, 2, 3))
        assert cache.get("a") == Rates(1, 2, 3)

    def test_a_folder_that_cannot_be_made_is_no_trouble(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        cache = RateCache(tmp_path / "file" / "folder")
        cache.put("a", Rates(1, 2, 3))
        assert cache.get("a") is None
