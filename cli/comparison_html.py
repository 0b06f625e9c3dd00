"""Two batches beside each other, as part of a page."""

from collections.abc import Iterator

from ..pipelines.comparing import Comparison
from .charts import legend, stage_bar
from .markup import Child, element, table
from .report_text import outcome, ratio
from .text import memory, seconds


def comparison(found: Comparison) -> Iterator[Child]:
    """The second batch against the first."""
    yield element("h1", f"{found.second.file.name} against {found.first.file.name}")
    for sentence in outcome(found):
        yield element("p", sentence)
    if found.pairs:
        yield element("h2", "Time by stage, studies in both")
        yield legend()
        yield _stages(found)
        yield element("h2", "Studies in both")
        yield _pairs(found)
    if found.differences:
        yield element("h2", "What differs")
        yield table(
            ["", "first", "second"],
            [[name, *words] for name, words in found.differences.items()],
        )


def _stages(found: Comparison) -> Child:
    longest = max(second for pair in found.stages().values() for second in pair)
    rows: list[list[Child]] = [
        [
            stage,
            element("div", stage_bar({stage: first}, longest), stage_bar({stage: second}, longest)),
            seconds(first),
            seconds(second),
            ratio(first / second if first and second else None),
        ]
        for stage, (first, second) in found.stages().items()
    ]
    first, second = found.peaks
    if first and second:
        rows.append(["peak memory", "", memory(first), memory(second), ratio(first / second)])
    return table(["stage", "", "first", "second", "first / second"], rows, numbers=(2, 3, 4))


def _pairs(found: Comparison) -> Child:
    longest = max(
        max(sum(p.first.stages.values()), sum(p.second.stages.values())) for p in found.pairs
    )
    return table(
        ["study", "stages", "first, s", "second, s", "first / second"],
        [
            [
                pair.first.name,
                element(
                    "div",
                    stage_bar(pair.first.stages, longest),
                    stage_bar(pair.second.stages, longest),
                ),
                seconds(pair.first.seconds),
                seconds(pair.second.seconds),
                ratio(pair.speedup),
            ]
            for pair in found.pairs
        ],
        numbers=(2, 3, 4),
        total=["total", "", *map(seconds, found.seconds), ratio(found.speedup)],
    )
