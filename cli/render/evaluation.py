"""An evaluation as text and as a page, and inference modes compared."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import TypeAlias

from ...io.volume import NOTICE
from ...pipelines.calibration import ComparedStudy
from ...pipelines.evaluation.protocols import Protocol
from ...pipelines.evaluation.report import (
    MAIN_METRICS,
    METRICS,
    STATUSES,
    Evaluation,
    LabelSummary,
    Metric,
    PairRow,
    Summary,
)
from ...pipelines.report.report import Failure
from ...pipelines.study.statistics import Range
from . import charts
from .documents import rendered
from .progress_lines import failure_text
from .tables import Row, TextTable
from .text import counted, duration, flagged, printable, seconds


def tables(evaluation: Evaluation, columns: int | None) -> Iterator[str]:
    """Yield the studies, then the summary; columns: of the terminal, None for no limit."""
    yield from _studies(evaluation).lines(columns)
    evaluated = evaluation.evaluated()
    if evaluated:
        yield ""
        several = len(evaluated) > 1
        table = _summary(evaluation.summaries()) if several else _further(evaluated[0])
        yield from table.lines(columns)
    labels = evaluation.label_summaries()
    if labels:
        yield ""
        yield from _labels(labels).lines(columns)


def _labels(summaries: Sequence[LabelSummary]) -> TextTable:
    return TextTable(
        head=Row("label", ["studies", "Dice", "HD95, mm"]),
        rows=[
            Row(
                printable(f"{each.label} {each.name}".rstrip()),
                [
                    str(len(each.overlaps)),
                    "" if each.dice is None else f"{each.dice:.4f}",
                    "" if each.hd95 is None else f"{each.hd95:.2f}",
                ],
            )
            for each in summaries
        ],
    )


def _studies(evaluation: Evaluation) -> TextTable:
    own_ranges = evaluation.protocol.data_range is None
    return TextTable(
        head=Row(
            "study",
            [*(m.title for m in MAIN_METRICS), *(["data range"] if own_ranges else []), "status"],
        ),
        rows=[
            Row(
                printable(row.name),
                [
                    *(figure(m, m.of(row.figures) if row.figures else None) for m in MAIN_METRICS),
                    *([data_range(row.data_range)] if own_ranges else []),
                    row.status,
                ],
            )
            for row in evaluation.rows
        ],
    )


def _summary(summaries: Sequence[Summary]) -> TextTable:
    return TextTable(
        head=Row("overall", ["mean", "sd", "median", "worst", "worst study"]),
        rows=[
            Row(
                each.metric.title,
                [*summary_figures(each), printable(each.worst_study)],
            )
            for each in summaries
        ],
    )


def _further(row: PairRow) -> TextTable:
    """Return the metrics of the only study that are not in the table of studies."""
    assert row.figures
    values = [(m, m.of(row.figures)) for m in METRICS if m not in MAIN_METRICS]
    return TextTable(
        head=Row("metric", ["value"]),
        rows=[Row(m.title, [figure(m, value)]) for m, value in values if value is not None],
    )


def summary_figures(each: Summary) -> list[str]:
    """Return mean, sd, median and worst value; one study has no sd."""
    sd = each.sd if each.count > 1 else None
    return [figure(each.metric, value) for value in (each.mean, sd, each.median, each.worst)]


def totals(evaluation: Evaluation) -> Iterator[str]:
    """Return the outcome in a few sentences."""
    for row in evaluation.rows:
        for note in row.notes:
            yield f"note: {printable(row.name)}: {printable(note)}"
    yield rules(evaluation.protocol)
    counts = [(evaluation.count(status), status) for status in STATUSES]
    outcome = ", ".join(f"{count} {status}" for count, status in counts if count)
    studies = counted(len(evaluation.rows), "study", "studies")
    yield f"{studies} in {seconds(evaluation.seconds)} s: {outcome}"


def failures(evaluation: Evaluation) -> Iterator[str]:
    """Return the studies without figures, and their reasons."""
    return (
        f"{row.status}: {printable(row.name)}: {printable(flagged(row.reason))}"
        for row in evaluation.rows
        if row.reason
    )


def figure(metric: Metric, value: float | None) -> str:
    """Format a value with the decimals of its metric; empty if undefined."""
    if value is None:
        return ""
    places = metric.decimals
    return f"{value:#.4g}".rstrip(".") if places is None else f"{value:.{places}f}"


def data_range(ends: Range | None) -> str:
    """Format both ends of a range; empty if there is none."""
    return f"{ends.low:.6g} to {ends.high:.6g}" if ends else ""


def unit(protocol: Protocol) -> str:
    """Return the unit of the mean absolute error."""
    return "HU" if protocol.is_of_ct else "the truth's unit"


def rules(protocol: Protocol) -> str:
    """Describe the protocol in a sentence."""
    if protocol.data_range is None:
        return f"Protocol {protocol.name}: MAE in {unit(protocol)}, data range of each truth"
    ends = data_range(protocol.data_range)
    return f"Protocol {protocol.name}: MAE in {unit(protocol)}, data range {ends}"


PICTURES = 60
"""Studies that are shown; at some 40 kB each a page stays usable."""


def page(evaluation: Evaluation) -> str:
    """Return the page; studies without figures come first."""
    worst_first = sorted(evaluation.rows, key=_by_error)
    named = [(metric, evaluation.values(metric)) for metric in METRICS]
    return rendered(
        "evaluation.html.j2",
        {"figure": _figure, "summary_figures": summary_figures, "data_range": data_range},
        title="Evaluation",
        rules=rules(evaluation.protocol),
        notice=NOTICE,
        figures=_figures(evaluation),
        without_figures=[row for row in evaluation.rows if not row.figures],
        evaluated=[row for row in worst_first if row.figures],
        summaries=evaluation.summaries(),
        distributions=[
            (
                f"{metric.title} (best: {metric.best})",
                charts.distribution(values, partial(figure, metric)),
            )
            for metric, values in named
            if values
        ],
        pictures=[(row, _figures_of(row)) for row in worst_first if row.picture],
        metrics=[metric for metric, values in named if values],
        has_own_ranges=evaluation.protocol.data_range is None,
        notes=[(row, note) for row in evaluation.rows for note in row.notes],
    )


def _figure(value: float | None, metric: Metric) -> str:
    return figure(metric, value)


def _by_error(row: PairRow) -> tuple[float, str]:
    return (-row.figures.mae if row.figures else 0.0, row.name)


def _figures(evaluation: Evaluation) -> dict[str, str]:
    spent = evaluation.seconds
    return {
        **{status: str(evaluation.count(status) or "") for status in STATUSES},
        "time": duration(spent) if spent >= 60 else f"{seconds(spent)} s",
    }


def _figures_of(row: PairRow) -> str:
    assert row.figures
    values = ((metric, metric.of(row.figures)) for metric in METRICS[:3])
    named = (
        f"{metric.title} {figure(metric, value)}" for metric, value in values if value is not None
    )
    return f"{row.name}: {'; '.join(named)}"


_Rows: TypeAlias = Sequence[tuple[str, ComparedStudy | Failure]]
"""Names of studies with the result or failure of each."""


def comparison_lines(rows: _Rows, columns: int | None) -> Iterator[str]:
    """Return the table of studies and medians. columns: of the terminal; None for no limit."""
    found = [(name, row) for name, row in rows if isinstance(row, ComparedStudy)]
    if not found:
        return
    table = TextTable(
        head=Row("study", [*_twice("seam"), "relative L2", "mean |diff|", *_twice("seconds")]),
        rows=[Row(printable(name), _compared_figures(row)) for name, row in found],
    )
    yield from table.lines(columns)
    apart = median(row.difference for _, row in found)
    faster = median(row.patches.seconds / max(row.volume.seconds, 1e-9) for _, row in found)
    yield (
        f"The typical difference is {apart:.2g} (relative L2); whole-volume inference takes "
        f"{1 / faster:.2g}x the time of patches. Seams are measured at patch borders."
    )


def comparison_reasons(rows: _Rows) -> Iterator[str]:
    """Yield why studies could not be compared."""
    for name, row in rows:
        if isinstance(row, Failure):
            yield f"not compared: {printable(name)}: {failure_text(row)}"


def _twice(figure: str) -> list[str]:
    return [f"{figure}, patches", "whole volume"]


def _compared_figures(row: ComparedStudy) -> list[str]:
    return [
        *map(_score, (row.patches.seam, row.volume.seam)),
        f"{row.difference:.2g}",
        f"{row.mean_difference:.3g}",
        *(seconds(each.seconds) for each in (row.patches, row.volume)),
    ]


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.3f}"
