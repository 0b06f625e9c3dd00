"""Planted bad results that are suspicious, and honest ones that are, in three cohorts.

    python planted_results.py [--honest 300] [--each 2] [--seed 1000] [--head T1] [--to FILE]

Each cohort of `support.planted_results` is drawn from seeds on which no rule was chosen. Honest
results are judged together, and each planted one among all honest ones. `before` counts those found
by the measures of the planes alone. The reading order is that of all honest results, and of 3 % bad
ones among them; the last one is that of the three cohorts in one list.

With --head the cohorts are made from another head than the sample's. One whose licence allows it is
Colin 27: `apt-get download mricron-data`, `dpkg -x mricron-data_*.deb FOLDER`, and
FOLDER/usr/share/mricron/templates/ch2.nii.gz.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.planted_results import (
    COHORTS,
    KEPT_BACK,
    PLANTED,
    Case,
    Image,
    Others,
    Pair,
    cohorts_of,
)

from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.report.suspicion import Origin, Suspicion, reading_order, suspicions
from cuda_cyclegan.pipelines.study.figures import Measures
from cuda_cyclegan.pipelines.study.measures import measure

OTHERS = 5
"""Further patients, of whom others' results are."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """Rows of honest results, and of planted ones by group of kinds."""

    honest: list[StudyReport]
    planted: dict[str, list[StudyReport]]


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


def judged_among(honest: Sequence[StudyReport], one: StudyReport) -> Suspicion:
    """Judgement of a planted result among honest ones."""
    return suspicions([*honest, one])[-1]


def keys(found: Suspicion) -> set[str]:
    """Measures beyond their limits, without the channels of levels."""
    return {each.key.partition(".")[0] for each in found.findings}


def counted(names: Iterable[str]) -> dict[str, int]:
    """Names with how often each occurs, the most frequent first."""
    return dict(Counter(names).most_common())


def planted(
    draw: Any, kinds: dict[str, Any], others: Others, seeds: range
) -> Iterator[StudyReport]:
    for at, (kind, plant) in enumerate(kinds.items()):
        for seed in seeds:
            pair = draw(seed + 100 * at)
            yield row(kind, pair, plant(Case(pair.scan, pair.result, others)))


def cohort(draw: Callable[[int], Pair], asked: argparse.Namespace) -> Cohort:
    first = asked.seed
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
    return Cohort(honest, groups)


def figures(cohort: Cohort) -> dict[str, Any]:
    honest, groups = cohort.honest, cohort.planted
    started = time.process_time()
    judged = suspicions(honest)
    spent = time.process_time() - started
    found: dict[str, Any] = {
        "honest": len(honest),
        "false_alarms": sum(each.is_suspicious for each in judged),
        "false_alarms_by_measure": counted(each for found in judged for each in keys(found)),
        "false_alarms_before": sum(each.is_suspicious for each in suspicions(in_planes(honest))),
        "milliseconds_to_judge": 1e3 * spent,
    }
    missed: list[str] = []
    by_measure: list[str] = []
    for label, rows in groups.items():
        outcomes = [judged_among(honest, each) for each in rows]
        before = [judged_among(in_planes(honest), each) for each in in_planes(rows)]
        found[label] = {
            "planted": len(rows),
            "found": sum(each.is_suspicious for each in outcomes),
            "found_before": sum(each.is_suspicious for each in before),
        }
        by_measure += [key for each in outcomes for key in keys(each)]
        missed += [
            row.name for row, each in zip(rows, outcomes, strict=True) if not each.is_suspicious
        ]
    found["found_by_measure"] = counted(by_measure)
    found["missed"] = counted(missed)
    found["reading_order"] = read_first([cohort])
    return found


def read_first(cohorts: Sequence[Cohort]) -> dict[str, int]:
    """Places of the bad results in the reading order of one list, 3 % of which are bad."""
    rows: list[tuple[int, StudyReport]] = []
    chosen: list[tuple[int, StudyReport]] = []
    for at, cohort in enumerate(cohorts):
        rows += [(at, each) for each in cohort.honest]
        bad = [each for group in cohort.planted.values() for each in group]
        count = max(1, round(len(cohort.honest) * 0.03))
        # Evenly through all kinds, the last of which is reached too.
        chosen += [(at, bad[place * len(bad) // count]) for place in range(count)]
    listed = [*rows, *chosen]
    origins = [Origin(str(at)) for at, _ in listed]
    order = reading_order(suspicions([row for _, row in listed], origins))
    places = sorted(order.index(len(rows) + at) + 1 for at in range(len(chosen)))
    return {
        "bad": len(chosen),
        "all": len(listed),
        "within_twice_their_number": sum(place <= 2 * len(chosen) for place in places),
        "last": places[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=300)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    draws = cohorts_of(asked.head) if asked.head else COHORTS
    cohorts = {name: cohort(draw, asked) for name, draw in draws.items()}
    found: dict[str, Any] = {name: figures(each) for name, each in cohorts.items()}
    found["one_list"] = read_first(list(cohorts.values()))
    text = f"{json.dumps(found, indent=2)}\n"
    print(text)
    if asked.to:
        asked.to.write_text(text)


if __name__ == "__main__":
    main()
