"""Tuning cache: measurements are kept for the same GPU and versions, and nothing damaged is
trusted.
"""

import json
from dataclasses import fields, replace

import pytest

from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.cuda.tuning.cache import (
    NOTHING,
    Candidate,
    TuningCache,
    TuningResult,
    key_of,
    worth_keeping,
)
from cuda_cyclegan.engine.cuda.user_cache import write_whole

IDENTITY = {"card": "NVIDIA H200", "driver": "13000", "cudnn": "91900/1.20.0", "precision": "fp16"}
FOUND = TuningResult("full", 1 << 20, (Candidate("eng1", 4096, 10.0), Candidate("eng2", 0, 12.5)))


def test_findings_are_there_at_the_next_start(tmp_path):
    TuningCache(tmp_path, IDENTITY).put("a convolution", FOUND)
    assert TuningCache(tmp_path, IDENTITY).get("a convolution") == FOUND
    assert TuningCache(tmp_path, IDENTITY).get("another one") == NOTHING


def test_whether_a_plan_knows_no_place_is_kept_by_plan_and_convolution(tmp_path):
    shape = ConvShape(
        1, (6, 7, 9), 8, (5, 6, 8), 8, (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), "fp16"
    )
    one, other = TuningCache(tmp_path, IDENTITY), TuningCache(tmp_path, IDENTITY)
    one.put_same_anywhere(shape, "eng1", True)
    other.put_same_anywhere(shape, "eng2", False)
    other._keep("places", f"eng4 {key_of(shape)}", True)  # by an older comparison
    kept = TuningCache(tmp_path, IDENTITY)
    assert kept.is_same_anywhere(shape, "eng1") is True
    assert kept.is_same_anywhere(shape, "eng2") is False
    assert kept.is_same_anywhere(shape, "eng3") is None
    assert kept.is_same_anywhere(shape, "eng4") is None
    assert kept.is_same_anywhere(replace(shape, batch=2), "eng1") is None


def test_each_field_of_a_convolution_is_in_its_key():
    shape = ConvShape(
        1, (6, 7, 9), 8, (5, 6, 8), 8, (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), "fp16"
    )
    others = [
        replace(shape, **{name: value})
        for name, value in (
            ("batch", 2),
            ("source_extents", (6, 7, 10)),
            ("source_channels", 16),
            ("target_extents", (5, 6, 9)),
            ("target_channels", 16),
            ("kernel", (2, 2, 3)),
            ("stride", (1, 1, 2)),
            ("before", (0, 0, 1)),
            ("after", (0, 0, 1)),
            ("precision", "bf16"),
            ("transposed", True),
            ("split_fp16", True),
            ("dilation", (1, 1, 2)),
            ("groups", 8),
        )
    ]
    assert len(others) == len(fields(ConvShape))
    assert len({key_of(each) for each in (shape, *others)}) == 1 + len(others)


@pytest.mark.parametrize("changed", IDENTITY)
def test_another_gpu_driver_version_or_precision_starts_anew(tmp_path, changed):
    TuningCache(tmp_path, IDENTITY).put("a convolution", FOUND)
    other = {**IDENTITY, changed: "other"}
    assert TuningCache(tmp_path, other).get("a convolution") == NOTHING


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("4096", "many"),
        lambda text: text.replace("full", "thorough"),
        lambda text: text.replace("NVIDIA", "RIVAL"),
        lambda text: json.dumps([text]),
        lambda _: "",
    ],
)
def test_a_damaged_file_counts_as_empty_and_is_written_anew(tmp_path, damage):
    TuningCache(tmp_path, IDENTITY).put("a convolution", FOUND)
    [path] = tmp_path.iterdir()
    path.write_text(damage(path.read_text()))
    cache = TuningCache(tmp_path, IDENTITY)
    assert cache.get("a convolution") == NOTHING
    cache.put("a convolution", FOUND)
    assert TuningCache(tmp_path, IDENTITY).get("a convolution") == FOUND


def test_two_programs_keep_each_other_s_findings(tmp_path):
    one, other = TuningCache(tmp_path, IDENTITY), TuningCache(tmp_path, IDENTITY)
    one.put("a convolution", FOUND)
    other.put("another one", FOUND)
    assert TuningCache(tmp_path, IDENTITY).get("a convolution") == FOUND


def test_second_of_two_measuring_programs_takes_the_plans_of_the_first(tmp_path):
    one, other = TuningCache(tmp_path, IDENTITY), TuningCache(tmp_path, IDENTITY)
    one.put("a convolution", FOUND)
    other.put("a convolution", replace(FOUND, candidates=(Candidate("eng3", 0, 9.0),)))
    assert other.get("a convolution") == FOUND
    assert TuningCache(tmp_path, IDENTITY).get("a convolution") == FOUND


def test_a_wider_search_at_the_same_time_counts_for_more(tmp_path):
    wider = replace(FOUND, workspace=2 << 20, candidates=(Candidate("eng3", 0, 9.0),))
    one, other = TuningCache(tmp_path, IDENTITY), TuningCache(tmp_path, IDENTITY)
    one.put("a convolution", FOUND)
    other.put("a convolution", wider)
    assert TuningCache(tmp_path, IDENTITY).get("a convolution") == wider


def test_refusal_of_one_program_is_not_undone_by_another(tmp_path):
    TuningCache(tmp_path, IDENTITY).put("a convolution", FOUND)
    one, other = TuningCache(tmp_path, IDENTITY), TuningCache(tmp_path, IDENTITY)
    refused = FOUND.without("eng1", "wrong results")
    one.put("a convolution", refused)
    other.put("another one", FOUND)
    assert other.get("a convolution") == refused
    other.put("a convolution", other.get("a convolution").with_proof("eng2", "1"))
    third = TuningCache(tmp_path, IDENTITY).get("a convolution")
    assert [one.name for one in third.candidates] == ["eng2"]
    assert third.refused == {"eng1": "wrong results"}


def test_refusals_of_two_programs_at_the_same_time_stay(tmp_path):
    TuningCache(tmp_path, IDENTITY).put("a convolution", FOUND)
    one, other = TuningCache(tmp_path, IDENTITY), TuningCache(tmp_path, IDENTITY)
    one.put("a convolution", FOUND.without("eng1", "wrong results"))
    other.put("a convolution", FOUND.without("eng2", "wrong too"))
    found = TuningCache(tmp_path, IDENTITY).get("a convolution")
    assert found.candidates == ()
    assert found.refused == {"eng1": "wrong results", "eng2": "wrong too"}


def test_a_folder_that_cannot_be_written_costs_only_the_memory_of_it(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = TuningCache(blocked / "folder", IDENTITY)
    cache.put("a convolution", FOUND)
    assert cache.get("a convolution") == FOUND


def test_the_fastest_candidate_within_the_workspace_is_taken():
    assert FOUND.best(1 << 20) == Candidate("eng1", 4096, 10.0)
    assert FOUND.best(0) == Candidate("eng2", 0, 12.5)
    assert TuningResult("full", 0, ()).best(0) is None


@pytest.mark.parametrize(("time", "taken"), [(10.1, "lean"), (10.3, "fast")])
def test_a_plan_without_workspace_is_taken_where_it_is_as_fast(time, taken):
    fast, lean = Candidate("fast", 4096, 10.0), Candidate("lean", 0, time)
    found = TuningResult("full", 8192, (fast, Candidate("greedy", 8192, 10.05), lean))
    best = found.best(8192)
    assert best is not None
    assert best.name == taken


def test_findings_serve_searches_that_are_no_harder_and_no_wider():
    assert FOUND.covers("full", 1 << 20)
    assert FOUND.covers("quick", 0)
    assert not FOUND.covers("quick", 2 << 20)
    assert not TuningResult("quick", 1 << 20, ()).covers("full", 0)


def test_slow_candidates_are_kept_where_they_need_less_workspace():
    fast = [Candidate(f"eng{i}", 4096, float(i)) for i in range(20)]
    lean, slow = Candidate("lean", 0, 30.0), Candidate("slow", 4096, 25.0)
    kept = worth_keeping([slow, lean, *reversed(fast)])
    assert kept == (*fast[:8], lean)


def test_failed_replacement_leaves_no_file(tmp_path):
    (tmp_path / "kept" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="kept"):
        write_whole(tmp_path / "kept", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
