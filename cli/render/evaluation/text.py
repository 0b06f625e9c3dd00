"""An evaluation as lines for a terminal: a row a study, and all studies together below."""

from collections.abc import Iterator, Sequence

from ....pipelines.evaluation.protocols import Protocol
from ....pipelines.evaluation.report import METRICS, STATUSES, Evaluation, Metric, Summary
from ....pipelines.study.statistics import Range
from ..terminal.settings import flagged
from ..terminal.tables import Row, TextTable
from ..terminal.text import counted, printable, seconds


def tables(evaluation: Evaluation, columns: int | None) -> Iterator[str]:
    """Studies, then the summary; columns: of the terminal, None for no limit."""
    yield from _studies(evaluation).lines(columns)
    summaries = evaluation.summaries()
    if len(evaluation.evaluated()) > 1:
        yield ""
        yield from _summary(summaries).lines(columns)


def _studies(evaluation: Evaluation) -> TextTable:
    own_ranges = evaluation.protocol.data_range is None
    return TextTable(
        head=Row(
            "study",
            [*(m.title for m in METRICS), *(["data range"] if own_ranges else []), "status"],
        ),
        rows=[
            Row(
                printable(row.name),
                [
                    *(figure(m, m.of(row.figures) if row.figures else None) for m in METRICS),
                    *([data_range(row.data_range)] if own_ranges else []),
                    "done" if row.status == "evaluated" else row.status,
                ],
            )
            for row in evaluation.rows
        ],
    )


def _summary(summaries: Sequence[Summary]) -> TextTable:
    return TextTable(
        head=Row("over all", ["mean", "sd", "median", "worst", "worst study"]),
        rows=[
            Row(
                each.metric.title,
                [
                    *(
                        figure(each.metric, value)
                        for value in (each.mean, each.sd, each.median, each.worst)
                    ),
                    printable(each.worst_study),
                ],
            )
            for each in summaries
        ],
    )


def totals(evaluation: Evaluation) -> Iterator[str]:
    """What it came to, in a few sentences."""
    for row in evaluation.rows:
        for note in row.notes:
            yield f"note: {printable(row.name)}: {printable(note)}"
    yield rules(evaluation.protocol)
    words = {"missing": "without a partner"}
    counts = [(evaluation.count(status), words.get(status, status)) for status in STATUSES]
    outcome = ", ".join(f"{count} {word}" for count, word in counts if count)
    studies = counted(len(evaluation.rows), "study", "studies")
    yield f"{studies} in {seconds(evaluation.seconds)} s: {outcome}"


def failures(evaluation: Evaluation) -> Iterator[str]:
    """Studies without figures and their reasons, for the very end."""
    return (
        f"{row.status}: {printable(row.name)}: {printable(flagged(row.reason))}"
        for row in evaluation.rows
        if row.reason
    )


_DIGITS = {"psnr": 2, "ms_ssim": 4, "ssim": 4, "r": 4}


def figure(metric: Metric, value: float | None) -> str:
    """A value with the digits that its metric is told with; nothing where it is not defined."""
    if value is None:
        return ""
    digits = _DIGITS.get(metric.name)
    return f"{value:#.4g}".rstrip(".") if digits is None else f"{value:.{digits}f}"


def data_range(ends: Range | None) -> str:
    """Both ends of a range."""
    return f"{ends.low:.6g} to {ends.high:.6g}" if ends else ""


def unit(protocol: Protocol) -> str:
    """What the mean absolute error is told in."""
    return "HU" if protocol.is_of_ct else "the truth's unit"


def rules(protocol: Protocol) -> str:
    """The protocol in a sentence."""
    if protocol.data_range is None:
        return f"Protocol {protocol.name}: MAE in {unit(protocol)}, data range of each truth's own"
    ends = data_range(protocol.data_range)
    return f"Protocol {protocol.name}: MAE in {unit(protocol)}, data range {ends}"
