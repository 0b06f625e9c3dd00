"""An evaluation as one page that needs no other file and no network, the worst studies first."""

from collections.abc import Iterator, Sequence
from functools import partial
from xml.etree.ElementTree import Element

from ....pipelines.evaluation.report import METRICS, Evaluation, Metric, PairRow
from ..html.distribution import distribution
from ..html.markup import Child, document, element, openable, plots, table, tiles
from ..html.markup import figure as pictured
from ..terminal.settings import flagged
from ..terminal.text import counted, duration, seconds
from .text import data_range, figure, rules

PICTURES = 60
"""Studies that are shown; at some 40 kB each a page stays usable."""

FEW = 3
"""Pictures that are large from the beginning, if there are no more."""


def page(evaluation: Evaluation) -> str:
    """The page; what has no figures stands before all else."""
    title = f"Evaluation by protocol {evaluation.protocol.name}"
    return document(title, element("main", *_parts(evaluation, title)))


def _parts(evaluation: Evaluation, title: str) -> Iterator[Child]:
    yield element("h1", title)
    yield element("p", rules(evaluation.protocol), class_="faint")
    yield _counts(evaluation)
    yield from _without_figures(evaluation)
    worst_first = sorted(evaluation.rows, key=_by_error)
    if evaluation.evaluated():
        yield element("h2", "All studies together")
        yield _summary(evaluation)
        yield element("h2", "Distributions")
        yield _distributions(evaluation)
        yield from _pictures(worst_first)
        yield element("h2", "Studies, the largest error first")
        yield openable(_studies(evaluation, worst_first), len(evaluation.evaluated()))
    yield from _notes(evaluation)


def _by_error(row: PairRow) -> tuple[float, str]:
    return (-row.figures.mae if row.figures else 0.0, row.name)


def _counts(evaluation: Evaluation) -> Element:
    spent = evaluation.seconds
    figures = {
        "evaluated": str(evaluation.count("evaluated")),
        "without a partner": str(evaluation.count("missing") or ""),
        "failed": str(evaluation.count("failed") or ""),
        "stopped": str(evaluation.count("stopped") or ""),
        "time": duration(spent) if spent >= 60 else f"{seconds(spent)} s",
    }
    return tiles(figures, bad=("without a partner", "failed", "stopped"))


def _without_figures(evaluation: Evaluation) -> Iterator[Child]:
    rows = [row for row in evaluation.rows if not row.figures]
    if rows:
        yield element("h2", f"{counted(len(rows), 'study', 'studies')} without figures")
        lines = [[row.name, row.status, flagged(row.reason or "")] for row in rows]
        yield openable(table(["study", "", "reason"], lines), len(rows))


def _summary(evaluation: Evaluation) -> Element:
    return table(
        ["metric", "mean", "sd", "median", "worst", "worst study"],
        [
            [
                each.metric.title,
                *(figure(each.metric, v) for v in (each.mean, each.sd, each.median, each.worst)),
                each.worst_study,
            ]
            for each in evaluation.summaries()
        ],
        numbers=range(1, 5),
    )


def _distributions(evaluation: Evaluation) -> Element:
    named = [(metric, evaluation.values(metric)) for metric in METRICS]
    return plots(
        (_caption(metric), distribution(values, partial(figure, metric)))
        for metric, values in named
        if values
    )


def _caption(metric: Metric) -> str:
    better = "larger" if metric.larger_is_better else "smaller"
    return f"{metric.title} ({better} is better)"


def _pictures(worst_first: Sequence[PairRow]) -> Iterator[Child]:
    shown = [(row, row.picture) for row in worst_first if row.picture]
    if not shown:
        return
    yield element("h2", "The largest errors first")
    told = (
        "Planes through the largest error of each study, or the middle ones where no error stands "
        "out. A click shows one large or small."
    )
    count = sum(row.figures is not None for row in worst_first)
    if count > len(shown):
        told += f" The {len(shown)} worst of {count}."
    yield element("p", told, class_="faint")
    figures = (
        pictured(
            _told(row),
            f"Truth, result and difference of {row.name}",
            picture,
            is_large=len(shown) <= FEW,
        )
        for row, picture in shown
    )
    yield element("div", *figures, class_="previews")


def _told(row: PairRow) -> str:
    assert row.figures
    values = ((metric, metric.of(row.figures)) for metric in METRICS[:3])
    named = (
        f"{metric.title} {figure(metric, value)}" for metric, value in values if value is not None
    )
    return f"{row.name}: {'; '.join(named)}"


def _studies(evaluation: Evaluation, worst_first: Sequence[PairRow]) -> Element:
    own_ranges = evaluation.protocol.data_range is None
    head = ["study", *(m.title for m in METRICS), *(["data range"] if own_ranges else []), "voxels"]
    return table(
        head,
        [
            [
                row.name,
                *(figure(metric, metric.of(row.figures)) for metric in METRICS),
                *([data_range(row.data_range)] if own_ranges else []),
                str(row.voxels),
            ]
            for row in worst_first
            if row.figures
        ],
        numbers=range(1, len(head)),
    )


def _notes(evaluation: Evaluation) -> Iterator[Child]:
    noted = [[row.name, note] for row in evaluation.rows for note in row.notes]
    if noted:
        yield element("h2", "Notes")
        yield openable(table(["study", "note"], noted), len(noted))
