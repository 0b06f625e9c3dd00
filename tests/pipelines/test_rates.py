"""Predicted seconds."""

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_world import scan, tiny_model

from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines import rates, translate
from cuda_cyclegan.pipelines.rates import (
    HostRates,
    NetworkRates,
    RateCache,
    StageConcurrency,
    Work,
    host_keys,
    wall_seconds,
)
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.request import Request
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.stopwatch import Stage
from cuda_cyclegan.pipelines.translate import open_job, run_job

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
    rows = [ROW, replace(ROW, status="failed", voxels=0)]
    assert HostRates.measured(rows) == HostRates(3.0 / 128, 7.0 / 128)
    assert NetworkRates.measured(rows, 1.5) == NetworkRates(1.0, 1.5)


def test_nothing_translated_is_no_rate() -> None:
    assert HostRates.measured([replace(ROW, status="failed")]) is None
    assert NetworkRates.measured([replace(ROW, status="failed")], 1.0) is None


def test_a_batch_is_as_fast_as_its_slowest_stage() -> None:
    assert wall_seconds([Work(1, 5, 2)] * 10, StageConcurrency()) == 1 + 50 + 2
    assert wall_seconds([Work(1, 2, 5)] * 10, StageConcurrency()) == 3 + 50
    assert wall_seconds([], StageConcurrency()) == 0


def test_more_hands_share_the_work() -> None:
    assert wall_seconds([Work(4, 1, 4)] * 8, StageConcurrency(4, 1, 4)) == pytest.approx(4 + 8 + 4)
    assert wall_seconds([Work(1, 10, 1)] * 8, StageConcurrency(4, 2, 4)) == 1 + 40 + 1


def test_a_device_that_opens_slowly_delays_only_what_it_does() -> None:
    assert wall_seconds([Work(1, 5, 2)] * 2, StageConcurrency(opening=4.0)) == 4 + 10 + 2
    assert wall_seconds([Work(6, 5, 2)], StageConcurrency(opening=4.0)) == 6 + 5 + 2


@given(works, st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_a_batch_takes_no_longer_than_its_studies_one_by_one(
    batch: list[Work], readers: int, devices: int, writers: int
) -> None:
    wall = wall_seconds(batch, StageConcurrency(readers, devices, writers))
    hands = {"load": readers, "network": devices, "store": writers}
    least = [sum(getattr(work, name) for work in batch) / hands[name] for name in hands]
    longest = max(work.seconds for work in batch)
    assert max(*least, longest) * (1 - 1e-9) <= wall
    assert wall <= sum(work.seconds for work in batch) * (1 + 1e-9)


def test_source_read_with_less_work_has_rates_of_its_own() -> None:
    plain, packed, series = (
        host_keys(Study(PurePosixPath("a"), (Path(file),), form), "model", "same")
        for file, form in (("a.nii", "nifti"), ("a.nii.gz", "nifti"), ("a/1.2.840.113", "dicom"))
    )
    assert len({plain[1], packed[1], series[1]}) == 3
    assert (
        host_keys(Study(PurePosixPath("b"), (Path("b.nii"),), "nifti"), "m", "same")[1] == plain[1]
    )


class TestTheCache:
    def test_rate_is_found_again_under_its_key_only(self, tmp_path: Path) -> None:
        RateCache(tmp_path / "new").put({"a": NetworkRates(1, 2), "c": NetworkRates(1, 2)})
        RateCache(tmp_path / "new").put({"b": HostRates(4, 5)})
        cache = RateCache(tmp_path / "new")
        assert cache.get(NetworkRates, "a") == cache.get(NetworkRates, "d", "c")
        assert cache.get(NetworkRates, "a") == NetworkRates(1, 2)
        assert cache.get(HostRates, "b") == HostRates(4, 5)
        assert cache.get(NetworkRates, "b") is None
        assert cache.get(NetworkRates, "d") is None

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', '{"a": {"load": "x"}}', "null"])
    def test_a_damaged_file_counts_as_empty_and_is_replaced(
        self, tmp_path: Path, content: str
    ) -> None:
        (tmp_path / "rates.json").write_text(content)
        cache = RateCache(tmp_path)
        assert cache.get(HostRates, "a") is None
        cache.put({"a": HostRates(1, 2)})
        assert cache.get(HostRates, "a") == HostRates(1, 2)

    def test_a_folder_that_cannot_be_made_is_no_trouble(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        cache = RateCache(tmp_path / "file" / "folder")
        cache.put({"a": HostRates(1, 2)})
        assert cache.get(HostRates, "a") is None

    def test_a_batch_writes_it_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file has the speeds of the network, of the opening and of files of two kinds."""
        written = list[Path]()

        def counted(path: Path, content: bytes) -> None:
            written.append(path)
            path.write_bytes(content)

        monkeypatch.setattr(rates, "write_document", counted)
        monkeypatch.setattr(translate, "cache_folder", lambda: tmp_path)
        inputs = scan(tmp_path / "scans" / "a.nii"), scan(tmp_path / "scans" / "b.nii.gz", 1)
        model = tiny_model(tmp_path / "model.safetensors")
        options = TranslateOptions((16, 16, 16), precision="fp32").resolved()
        request = Request(inputs, model, tmp_path / "results", device="cpu", options=options)
        run_job(open_job(request), lambda _: None)
        assert written == [tmp_path / "rates.json"]
        assert len(json.loads(written[0].read_text())) == 2 + 2 * 2
