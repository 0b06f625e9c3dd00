"""Suspicion: odd results among usual ones are found, and uncompared ones are not "usual"."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.product_source import ROOT
from support.reports import BATCH, written

from cuda_cyclegan.cli.render.review import MEASURES
from cuda_cyclegan.pipelines.report.codec import read_report
from cuda_cyclegan.pipelines.report.measure_rules import RULES, MeasureRule
from cuda_cyclegan.pipelines.report.report import BatchReport, Content, Failure, StudyReport
from cuda_cyclegan.pipelines.report.result_groups import FEWEST, reference_of
from cuda_cyclegan.pipelines.report.suspicion import (
    Origin,
    has_suspicious,
    reading_order,
    suspicions,
)
from cuda_cyclegan.pipelines.study.figures import CycleError, Measures, SpreadFigures


def usual(number: int, **changed: Any) -> StudyReport:
    """A study whose measures scatter a little around the same values."""
    random = Random(number)
    measures = Measures(
        cut_off=0.0,
        edges=random.gauss(0.6, 0.02),
        detail=random.gauss(1.5, 0.1),
        match=random.gauss(0.9, 0.01),
        mirrored=random.gauss(-0.3, 0.05),
        shift=abs(random.gauss(0, 0.1)),
        empty=0.0,
        breaks=abs(random.gauss(0.1, 0.02)),
        local=abs(random.gauss(0.05, 0.01)),
        values=160,
        levels=((0.0, random.gauss(400, 5), random.gauss(700, 10)),),
        spacing=(1.0, 1.0, 2.0),
        patterns=(f"{random.getrandbits(128):032x}", f"{random.getrandbits(128):032x}"),
        disagreement=random.gauss(20, 1),
    )
    name = f"{number}.nii"
    content = Content(1, 100, f"{number:064x}")
    return StudyReport(
        name,
        Path(name),
        Path(name),
        "translated",
        source_content=content,
        measures=replace(measures, **changed),
    )


HONEST = [usual(number) for number in range(40)]


def report_of(rows: Sequence[StudyReport]) -> BatchReport:
    return replace(BATCH, studies=tuple(rows))


def test_among_usual_results_none_is_suspicious() -> None:
    assert {found.state for found in suspicions(HONEST)} == {"usual"}


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("edges", {"edges": 0.3}),
        ("match", {"match": 0.6}),
        ("detail", {"detail": 0.5}),
        ("detail", {"detail": 4.0}),
        ("cut_off", {"cut_off": 0.05}),
        ("mirrored", {"mirrored": 0.1}),
        ("shift", {"shift": 3.0}),
        ("empty", {"empty": 0.05}),
        ("breaks", {"breaks": 0.5}),
        ("local", {"local": 0.2}),
        ("values", {"values": 8}),
        ("levels.0.0", {"levels": ((-1024.0, 400.0, 700.0),)}),
        ("levels.0.2", {"levels": ((0.0, 400.0, 1100.0),)}),
        ("disagreement", {"disagreement": 40.0}),
    ],
)
def test_an_odd_measure_is_named_with_its_usual_range(key: str, changed: Any) -> None:
    found = suspicions([*HONEST, usual(99, **changed)])[-1]
    assert (found.state, found.findings[0].key) == ("suspicious", key)
    first = found.findings[0]
    assert not first.low <= first.value <= first.high
    assert f"{first.value:.3g}" in found.note
    assert "usual" in found.note


def test_better_values_than_usual_are_not_suspicious() -> None:
    good = usual(99, edges=0.99, match=0.999, mirrored=-0.9, values=255)
    assert suspicions([*HONEST, good])[-1].state == "usual"


def test_fewer_scans_than_needed_are_not_judged_but_for_limits_of_any_batch() -> None:
    few = [usual(number) for number in range(FEWEST - 1)]
    assert {found.state for found in suspicions(few)} == {"not judged"}
    assert f"{FEWEST - 1} similar scans" in suspicions(few)[0].why
    assert suspicions([*few, usual(99)])[0].state == "usual"
    assert suspicions([usual(0, empty=0.5)])[0].state == "suspicious"


def test_copies_of_a_scan_count_once() -> None:
    same = [replace(usual(number), source_content=Content(1, 1, "a" * 64)) for number in range(30)]
    assert {found.state for found in suspicions(same)} == {"not judged"}


def test_only_similar_spacings_of_the_same_origin_are_compared() -> None:
    coarse = [usual(number, spacing=(1.0, 1.0, 4.0), edges=0.2) for number in range(50, 55)]
    assert [found.state for found in suspicions([*HONEST, *coarse])[40:]] == ["not judged"] * 5
    near = usual(99, spacing=(1.1, 1.1, 2.2))
    assert suspicions([*HONEST, near])[-1].state == "usual"
    other = usual(98, edges=0.2)
    assert (
        suspicions([*HONEST, other], [*[Origin("a")] * 40, Origin("b")])[-1].state == "not judged"
    )


def test_most_of_a_batch_bad_is_found_by_the_limits() -> None:
    rows = [*(usual(number, mirrored=0.2) for number in range(30)), *HONEST[:10]]
    assert [found.is_suspicious for found in suspicions(rows)] == [True] * 30 + [False] * 10


def test_results_that_repeat_that_of_another_scan_are_suspicious() -> None:
    pattern = HONEST[3].measures and HONEST[3].measures.patterns
    assert pattern
    flipped = f"{int(pattern[1], 16) ^ 0b1010:032x}"
    copied = usual(99, patterns=("f" * 32, flipped))
    found = suspicions([*HONEST, copied])
    assert [at for at, each in enumerate(found) if each.is_suspicious] == [3, 40]
    assert found[-1].findings[0].key == "repeats"
    again = usual(99, patterns=pattern)  # the same scan, translated twice
    assert not has_suspicious(report_of([*HONEST, again]))


def test_the_reading_order_begins_with_results_without_measures() -> None:
    bad = Failure("unreadable", "It is empty.", "read")
    failed = replace(usual(97), status="failed", failure=bad, measures=None)
    rows = [failed, *HONEST, usual(98, empty=0.2), replace(usual(99), measures=None)]
    found = suspicions(rows)
    assert reading_order(found)[:2] == [42, 41]
    assert reading_order(found)[-1] == 0
    assert (found[42].state, found[42].far) == ("not judged", inf)
    assert has_suspicious(report_of(rows[42:]))
    assert not has_suspicious(report_of([failed]))


def test_a_cycle_error_beyond_its_limit_is_suspicious_in_any_group() -> None:
    marked = replace(usual(1), cycle=CycleError(50.0, 1.0, "back", limit=20.0))
    assert suspicions([marked])[0].findings[0].key == "cycle"


def test_measures_of_older_programs_are_judged_by_what_they_have() -> None:
    old = [
        replace(usual(number), measures=Measures(0.0, Random(number).gauss(0.6, 0.02), 1.5))
        for number in range(20)
    ]
    bad = replace(usual(99), measures=Measures(0.4, 0.1, 1.5))
    assert [found.state for found in suspicions([*old, bad])] == ["usual"] * 20 + ["suspicious"]


def direction(rule: MeasureRule) -> str:
    words = [word for word, counts in (("low", rule.low), ("high", rule.high)) if counts]
    return " or ".join(words) or f"above {rule.most:g}"


def test_page_and_list_have_the_measures_of_the_rules() -> None:
    lines = (ROOT / "docs" / "view.md").read_text("utf-8").splitlines()
    start = lines.index("| measure | | suspicious | finds |") + 2
    rows = [line.strip("| ").split(" | ")[:3] for line in lines[start : start + len(RULES)]]
    unit = {rule.key: f", in{rule.unit}" if rule.unit else "" for rule in RULES}
    assert rows == [[rule.title, f"{rule.help}{unit[rule.key]}", direction(rule)] for rule in RULES]
    assert not lines[start + len(RULES)]
    listed = [rule.key for rule in RULES if rule.is_listed]
    assert [one.key for one in MEASURES[: len(listed)]] == listed


def test_results_are_compared_with_those_of_the_reference_set() -> None:
    """Alone, in a batch that is mostly bad, and not at another spacing."""
    origin = Origin("a", reference_of(HONEST))
    bad = [usual(50 + number, match=0.5) for number in range(30)]
    rows = [usual(99), *bad]
    found = suspicions(rows, [origin] * len(rows))
    assert [one.state for one in found] == ["usual", *["suspicious"] * 30]
    assert "match" in {finding.key for finding in found[1].findings}
    assert suspicions(rows)[1].state == "usual"
    assert [one.state for one in suspicions([usual(99)], [origin])] == ["usual"]
    other = usual(99, spacing=(1.0, 1.0, 3.0), match=0.5)
    assert suspicions([other], [origin])[0].state == "not judged"


def test_every_rule_of_a_group_holds_for_the_reference_set() -> None:
    """Levels and measures in logarithms too, so that the set's own results are usual."""
    origin = Origin("a", reference_of(HONEST))
    assert {one.state for one in suspicions(HONEST, [origin] * 40)} == {"usual"}
    for key, changed in (
        ("levels.0.1", {"levels": ((0.0, 900.0, 950.0),)}),
        ("values", {"values": 40}),
    ):
        [found] = suspicions([usual(99, **changed)], [origin])
        assert key in {finding.key for finding in found.findings}


def test_measures_that_the_reference_set_lacks_are_compared_with_the_group() -> None:
    origin = Origin("a", reference_of(HONEST))
    rows = [replace(one, spread=SpreadFigures(8, 10.0 + at % 3)) for at, one in enumerate(HONEST)]
    odd = replace(usual(99), spread=SpreadFigures(8, 100.0))
    found = suspicions([*rows, odd], [origin] * 41)
    assert [finding.key for finding in found[-1].findings] == ["spread"]
    assert {one.state for one in found[:-1]} == {"usual"}


def test_a_small_reference_set_has_no_usual_results() -> None:
    assert reference_of(HONEST[: FEWEST - 1]) is None
    known = reference_of(HONEST[:FEWEST])
    assert known is not None
    assert known.studies == FEWEST


def test_a_report_is_judged_by_the_reference_set_of_its_model(tmp_path: Path) -> None:
    model = replace(BATCH.model, results=reference_of(HONEST))
    report = replace(BATCH, model=model, studies=(usual(99, match=0.5),))
    stored = read_report(written(report, tmp_path / "r.json"))
    assert stored.batch.model == model
    assert has_suspicious(stored.batch)
    assert not has_suspicious(replace(report, model=BATCH.model))
