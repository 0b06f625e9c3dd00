"""What an evaluation came to: a row a study, and the figures of all studies together."""

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
    """A figure of a study.

    name: of the field that holds it. title: as tables head it. larger_is_better: of two studies.
    """

    name: MetricName
    title: str
    larger_is_better: bool = True

    def of(self, figures: Figures) -> float | None:
        """The study's value."""
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
    """What became of one pair.

    name: of the pair. result, truth, mask: their first files. status: what became of it. reason:
    why there are no figures. figures, data_range, voxels: as measured. notes: what to know about
    them. seconds: that it took. picture: WebP, of the planes with
    the largest error. trace: how an error came about.
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
    """One metric over all studies for which it is defined.

    metric: which one. count: of these studies. mean, median: of theirs. sd: standard deviation, by
    their count. worst: of their values. worst_study: the first of those with the worst value.
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
    """What became of all pairs.

    protocol: by which they were measured. rows: in the order of their names. seconds: wall time.
    interrupted: whether a signal ended it.
    """

    protocol: Protocol
    rows: tuple[PairRow, ...]
    seconds: float
    interrupted: bool = False

    def count(self, status: PairStatus) -> int:
        """How many rows have a status."""
        return sum(row.status == status for row in self.rows)

    def evaluated(self) -> list[PairRow]:
        """Rows with figures."""
        return [row for row in self.rows if row.figures]

    def values(self, metric: Metric) -> list[tuple[str, float]]:
        """Name and value of each study for which a metric is defined."""
        both = [(row.name, metric.of(row.figures)) for row in self.rows if row.figures]
        return [(name, value) for name, value in both if value is not None]

    def summaries(self) -> list[Summary]:
        """Of each metric that some study has."""
        found = ((metric, self.values(metric)) for metric in METRICS)
        return [_summary(metric, values) for metric, values in found if values]


def _summary(metric: Metric, named: Sequence[tuple[str, float]]) -> Summary:
    values = [value for _, value in named]
    pick = min if metric.larger_is_better else max
    study, worst = pick(named, key=lambda pair: pair[1])
    mean, middle = fmean(values), median(values)
    return Summary(metric, len(values), mean, pstdev(values), middle, worst, study)
