"""Which planted bad results are suspicious, and which honest ones are, in three cohorts.

    python planted_results.py [--honest 300] [--each 2] [--seed 1000] [--to FILE]

Each cohort of `support.planted_results` is drawn from seeds on which no rule was chosen. Honest
results are judged together, and each planted one among all honest ones. `before` counts those found
by the measures of the planes alone. The reading order is that of 1,000 results or as many as were
drawn, 3 % of them bad.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.planted_results import COHORTS, KEPT_BACK, PLANTED, Case, Image, Others, Pair

from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.report.suspicion import reading_order, suspicions
from cuda_cyclegan.pipelines.study.figures import Measures
from cuda_cyclegan.pipelines.study.measures import measure

OTHERS = 5
"""Further patients, of whom others' results are."""


def row(name: str, pair: Pair, result: Image) -> StudyReport:
    """The row of a result as a batch would have it, of stored whole numbers."""
    scan, stored = (
        np.ascontiguousarray(np.round(each).astype(np.int16).T) for each in (pair.scan, result)
    )
    spacing = pair.spacing[2], pair.spacing[1], pair.spacing[0]
    found = measure(scan, stored, spacing)
    found = found and replace(found, spacing=spacing)
    return StudyReport(name, Path(name), Path(name), "translated", measures=found)


def in_planes(rows: Sequence[StudyReport]) -> list[StudyReport]:
    """The rows with the measures that older programs took."""
    return [
        replace(
            each,
            measures=each.measures
            and Measures(each.measures.cut_off, each.measures.edges, each.measures.detail),
        )
        for each in rows
    ]


def is_found(honest: Sequence[StudyReport], one: StudyReport) -> tuple[bool, tuple[str, ...]]:
    """Whether a planted result is suspicious among honest ones, and by which measures."""
    found = suspicions([*honest, one])[-1]
    return found.is_suspicious, tuple(each.key.partition(".")[0] for each in found.findings)


def planted(
    draw: Any, kinds: dict[str, Any], others: Others, seeds: range
) -> Iterator[StudyReport]:
    for at, (kind, plant) in enumerate(kinds.items()):
        for seed in seeds:
            pair = draw(seed + 100 * at)
            yield row(kind, pair, plant(Case(pair.scan, pair.result, others)))


def figures(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    draw, first = COHORTS[name], asked.seed
    honest = [
        row(f"honest {seed}", pair, pair.result)
        for seed in range(first, first + asked.honest)
        for pair in [draw(seed)]
    ]
    others = Others(
        tuple(draw(first + 50_000 + at).result for at in range(OTHERS)),
        np.random.default_rng(first),
    )
    seeds = range(first + 100_000, first + 100_000 + asked.each)
    groups = {
        label: list(planted(draw, kinds, others, seeds))
        for label, kinds in (("tuned", PLANTED), ("kept_back", KEPT_BACK))
    }
    started = time.process_time()
    judged = suspicions(honest)
    spent = time.process_time() - started
    found: dict[str, Any] = {
        "honest": len(honest),
        "false_alarms": sum(each.is_suspicious for each in judged),
        "false_alarms_before": sum(each.is_suspicious for each in suspicions(in_planes(honest))),
        "milliseconds_to_judge": 1e3 * spent,
    }
    by_measure: dict[str, int] = {}
    missed: dict[str, int] = {}
    for label, rows in groups.items():
        outcomes = [is_found(honest, each) for each in rows]
        before = [is_found(in_planes(honest), each) for each in in_planes(rows)]
        found[label] = {
            "planted": len(rows),
            "found": sum(each for each, _ in outcomes),
            "found_before": sum(each for each, _ in before),
        }
        for each, (is_bad, keys) in zip(rows, outcomes, strict=True):
            for key in set(keys):
                by_measure[key] = by_measure.get(key, 0) + 1
            if not is_bad:
                missed[each.name] = missed.get(each.name, 0) + 1
    bad = [*groups["tuned"], *groups["kept_back"]]
    count = max(1, round(len(honest) * 0.03))
    chosen = bad[:: max(1, len(bad) // count)][:count]
    order = reading_order(suspicions([*honest, *chosen]))
    places = sorted(order.index(len(honest) + at) + 1 for at in range(len(chosen)))
    found["found_by_measure"] = dict(sorted(by_measure.items(), key=lambda each: -each[1]))
    found["missed"] = missed
    found["reading_order"] = {
        "bad": len(chosen),
        "all": len(order),
        "within_twice_their_number": sum(place <= 2 * len(chosen) for place in places),
        "last": places[-1],
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=300)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    found = {name: figures(name, asked) for name in COHORTS}
    text = f"{json.dumps(found, indent=2)}\n"
    print(text)
    if asked.to:
        asked.to.write_text(text)


if __name__ == "__main__":
    main()
