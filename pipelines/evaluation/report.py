"""Report of an evaluation: a row per study, and the figures of all studies together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Literal, TypeAlias, get_args

from ..study.statistics import Range
from .protocols import Figures, Protocol

PairStatus: TypeAlias = Literal["evaluated", "missing", "failed", "stopped"]
STATUSES: tuple[PairStatus, ...] = get_args(PairStatus)
MetricName: TypeAlias = Literal["mae", "psnr", "ms_ssim", "ssim", "r"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric of a study.

    name: field of `Figures` with its value. title: heading in tables. larger_is_better: whether a
    larger value is the better one.
    """

    name: MetricName
    title: str
    larger_is_better: bool = True

    def of(self, figures: Figures) -> float | None:
        """Return the study's value."""
        value: float | None = getattr(figures, self.name)
        return value


METRICS = (
    Metric("mae", "MAE", larger_is_better=False),
    Metric("psnr", "PSNR, dB"),
    Metric("ms_ssim", "MS-SSIM"),
    Metric("ssim", "SSIM"),
    Metric("r", "r"),
)


@dataclass(frozen=True, slots=True)
class PairRow:
    """Outcome of one pair.

    name: name of the pair. result, truth, mask: their first files. status: outcome. reason: reason
    why there are no figures. figures, data_range, voxels: as measured. notes: notes on the figures.
    seconds: time taken. picture: WebP of the planes with the largest error. trace: traceback of an
    unexpected error.
    """

    name: str
    result: Path | None
    truth: Path | None
    mask: Path | None
    status: PairStatus
    reason: str | None = None
    figures: Figures | None = None
    data_range: Range | None = None
    voxels: int | None = None
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    picture: bytes | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of one metric over all studies for which it is defined.

    metric: the metric. count: number of these studies. mean, median: of their values. sd: standard
    deviation, divided by their count. worst: worst of their values. worst_study: name of the first
    study with the worst value.
    """

    metric: Metric
    count: int
    mean: float
    sd: float
    median: float
    worst: float
    worst_study: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcome of all pairs.

    protocol: protocol of the metrics. rows: rows in the order of their names. seconds: wall time.
    interrupted: whether a signal ended it.
    """

    protocol: Protocol
    rows: tuple[PairRow, ...]
    seconds: float
    interrupted: bool = False

    def count(self, status: PairStatus) -> int:
        """Return the number of rows with a status."""
        return sum(row.status == status for row in self.rows)

    def evaluated(self) -> list[PairRow]:
        """Return the rows with figures."""
        return [row for row in self.rows if row.figures]

    def values(self, metric: Metric) -> list[tuple[str, float]]:
        """Return name and value of each study for which a metric is defined."""
        both = [(row.name, metric.of(row.figures)) for row in self.rows if row.figures]
        return [(name, value) for name, value in both if value is not None]

    def summaries(self) -> list[Summary]:
        """Return a summary of each metric that is defined for any study."""
        found = ((metric, self.values(metric)) for metric in METRICS)
        return [_summary(metric, values) for metric, values in found if values]


def _summary(metric: Metric, named: Sequence[tuple[str, float]]) -> Summary:
    values = [value for _, value in named]
    pick = min if metric.larger_is_better else max
    study, worst = pick(named, key=lambda pair: pair[1])
    mean, middle = fmean(values), median(values)
    return Summary(metric, len(values), mean, pstdev(values), middle, worst, study)
