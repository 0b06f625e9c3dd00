"""An evaluation as one page that needs no other file and no network, the worst studies first."""

from functools import partial

from ....pipelines.evaluation.report import METRICS, Evaluation, Metric, PairRow
from .. import charts
from ..html import rendered
from ..terminal.text import duration, seconds
from .text import data_range, figure, rules

PICTURES = 60
"""Studies that are shown; at some 40 kB each a page stays usable."""


def page(evaluation: Evaluation) -> str:
    """Return the page; what has no figures comes first."""
    worst_first = sorted(evaluation.rows, key=_by_error)
    named = [(metric, evaluation.values(metric)) for metric in METRICS]
    filters = {"figure": lambda value, metric: figure(metric, value), "data_range": data_range}
    return rendered(
        "evaluation.html.j2",
        filters,
        title=f"Evaluation by protocol {evaluation.protocol.name}",
        rules=rules(evaluation.protocol),
        figures=_figures(evaluation),
        without_figures=[row for row in evaluation.rows if not row.figures],
        evaluated=[row for row in worst_first if row.figures],
        summaries=evaluation.summaries(),
        distributions=[
            (_caption(metric), charts.distribution(values, partial(figure, metric)))
            for metric, values in named
            if values
        ],
        pictures=[(row, _figures_of(row)) for row in worst_first if row.picture],
        metrics=METRICS,
        has_own_ranges=evaluation.protocol.data_range is None,
        notes=[(row, note) for row in evaluation.rows for note in row.notes],
    )


def _by_error(row: PairRow) -> tuple[float, str]:
    return (-row.figures.mae if row.figures else 0.0, row.name)


def _figures(evaluation: Evaluation) -> dict[str, str]:
    spent = evaluation.seconds
    return {
        "evaluated": str(evaluation.count("evaluated")),
        "without a partner": str(evaluation.count("missing") or ""),
        "failed": str(evaluation.count("failed") or ""),
        "stopped": str(evaluation.count("stopped") or ""),
        "time": duration(spent) if spent >= 60 else f"{seconds(spent)} s",
    }


def _caption(metric: Metric) -> str:
    better = "larger" if metric.larger_is_better else "smaller"
    return f"{metric.title} ({better} is better)"


def _figures_of(row: PairRow) -> str:
    assert row.figures
    values = ((metric, metric.of(row.figures)) for metric in METRICS[:3])
    named = (
        f"{metric.title} {figure(metric, value)}" for metric, value in values if value is not None
    )
    return f"{row.name}: {'; '.join(named)}"
