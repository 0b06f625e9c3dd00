"""Report of an evaluation: rows and figures, and their JSON and CSV.

docs/evaluation.md documents the fields of the files, which are stable.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from numbers import Real
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any, Literal, TypeAlias, get_args

from ...engine.decoding import encode_record
from ...io.files.documents import write_document
from ..hounsfield import BONE_HU, TISSUES
from ..program import program_version
from ..study.statistics import Range
from .label_overlap import LabelOverlap, mean_dice, mean_hd95
from .protocols import Figures, Protocol

PairStatus: TypeAlias = Literal["evaluated", "missing", "failed", "stopped"]
STATUSES: tuple[PairStatus, ...] = get_args(PairStatus)


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric of a study.

    name: attribute of `Figures`, or key of its tissues' values. title: heading in tables. best:
    whether the largest, the smallest, or the value nearest to 0 is the best. is_of_tissue: whether
    only CTs have it. decimals: shown in tables and pages; None for four significant digits.
    """

    name: str
    title: str
    best: Literal["largest", "smallest", "nearest 0"] = "largest"
    is_of_tissue: bool = False
    decimals: int | None = None

    def of(self, figures: Figures) -> float | None:
        """Return the study's value."""
        if self.is_of_tissue:
            return figures.tissues.values[self.name] if figures.tissues else None
        value: float | None = getattr(figures, self.name)
        return value

    def badness(self, value: float) -> float:
        """Return a value that is larger, the worse the metric's value is."""
        return {"largest": -value, "smallest": value, "nearest 0": abs(value)}[self.best]


MAIN_METRICS = (
    Metric("mae", "MAE", "smallest"),
    Metric("psnr", "PSNR, dB", decimals=2),
    Metric("ms_ssim", "MS-SSIM", decimals=4),
    Metric("ssim", "SSIM", decimals=4),
    Metric("r", "r", decimals=4),
)
"""Metrics in the table of studies."""

METRICS = (
    *MAIN_METRICS,
    Metric("me", "ME", "nearest 0"),
    Metric("rmse", "RMSE", "smallest"),
    Metric("gaussian_ssim", "SSIM, Gaussian", decimals=4),
    Metric("nmi", "NMI", decimals=4),
    Metric("dice_labels", "Dice, labels", decimals=4),
    Metric("hd95_labels", "HD95, mm", "smallest"),
    *(Metric(f"mae_{tissue.name}", f"MAE {tissue.name}", "smallest", True) for tissue in TISSUES),
    *(Metric(f"me_{tissue.name}", f"ME {tissue.name}", "nearest 0", True) for tissue in TISSUES),
    *(
        Metric(f"dice_{limit}", f"Dice >= {limit} HU", is_of_tissue=True, decimals=4)
        for limit in BONE_HU
    ),
)
"""All metrics, from which tables, pages, JSON and CSV follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Outcome of one pair.

    name: name of the pair. result, truth, mask: their first files. status: outcome. reason: reason
    why there are no figures. figures, data_range, voxels, outside: as measured. notes: notes on the
    figures. seconds: time taken. picture: WebP of the planes with the largest error. trace:
    traceback of an unexpected error.
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
    outside: int | None = None
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
class LabelSummary:
    """Overlap of one label over studies. label, name: as in `LabelOverlap`. overlaps: of each."""

    label: int
    name: str
    overlaps: tuple[LabelOverlap, ...]

    @property
    def dice(self) -> float | None:
        """Mean Dice coefficient."""
        return mean_dice(self.overlaps)

    @property
    def hd95(self) -> float | None:
        """Mean 95 % surface distance of the studies in which both images have the label."""
        return mean_hd95(self.overlaps)


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

    def label_summaries(self) -> list[LabelSummary]:
        """Return the overlap of each label over the studies that have it, by number and name."""
        found: dict[tuple[int, str], list[LabelOverlap]] = {}
        for row in self.evaluated():
            for each in row.figures.labels if row.figures else ():
                found.setdefault((each.label, each.name), []).append(each)
        return [LabelSummary(*label, tuple(found[label])) for label in sorted(found)]

    def summaries(self) -> list[Summary]:
        """Return a summary of each metric that is defined for any study."""
        found = ((metric, self.values(metric)) for metric in METRICS)
        return [_summary(metric, values) for metric, values in found if values]


def _summary(metric: Metric, named: Sequence[tuple[str, float]]) -> Summary:
    values = [value for _, value in named]
    study, worst = max(named, key=lambda pair: metric.badness(pair[1]))
    mean, middle = fmean(values), median(values)
    return Summary(metric, len(values), mean, pstdev(values), middle, worst, study)


SCHEMA = "cuda-cyclegan/evaluation/2"
"""Schema version, raised when a field is removed or changes its meaning, not for new fields.

Since 2 a mask counts where it is above 0 (1: other than 0), and in protocol general voxels outside
the truth's field of view do not count.
"""

COLUMNS = (
    *("name", "status", *(metric.name for metric in METRICS)),
    *("data_range_low", "data_range_high", "voxels", "result", "truth", "mask", "reason"),
    *("outside", *(f"voxels_{tissue.name}" for tissue in TISSUES)),
)


def csv_text(evaluation: Evaluation) -> str:
    """Return a line per study; fields that do not apply are empty."""
    lines = [_line(COLUMNS)]
    for row in evaluation.rows:
        figures = figures_of(row).values()
        ends = astuple(row.data_range) if row.data_range else (None, None)
        files = row.result, row.truth, row.mask
        line = (
            *(row.name, row.status, *figures, *ends, row.voxels, *files, row.reason),
            *(row.outside, *tissue_voxels(row).values()),
        )
        lines.append(_line(map(_cell, line)))
    return "".join(lines)


_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters that make spreadsheets evaluate a cell, the last four in full width."""


def _line(cells: Iterable[str]) -> str:
    """Return cells as a line; the writer's line end is CRLF so that it quotes both characters."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: object) -> str:
    """Return a value as text; text that a spreadsheet would evaluate gets an apostrophe."""
    if value is None:
        return ""
    text = str(value)
    is_number = isinstance(value, Real)
    return f"'{text}" if text.startswith(_FORMULA) and not is_number else text


def store(text: str, target: Path) -> None:
    """Write a file atomically; raises WriteError. Undecodable bytes of names are preserved."""
    write_document(target, text.encode("utf-8", "surrogateescape"))


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return the fields of an evaluation, for JSON."""
    protocol = evaluation.protocol
    return {
        "schema": SCHEMA,
        "program": {"name": "cuda-cyclegan", "version": program_version()},
        "protocol": {"name": protocol.name, "data_range": _ends(protocol.data_range)},
        "seconds": evaluation.seconds,
        "interrupted": evaluation.interrupted,
        "totals": {
            "studies": len(evaluation.rows),
            **{status: evaluation.count(status) for status in STATUSES},
        },
        "summary": {each.metric.name: _summary_fields(each) for each in evaluation.summaries()},
        "studies": [_study(row) for row in evaluation.rows],
    }


def _summary_fields(each: Summary) -> dict[str, Any]:
    fields = encode_record(each)
    del fields["metric"]
    return {"studies": fields.pop("count"), **fields}


def _study(row: PairRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "result": row.result,
        "truth": row.truth,
        "mask": row.mask,
        "status": row.status,
        "reason": row.reason,
        **figures_of(row),
        "data_range": _ends(row.data_range),
        "voxels": row.voxels,
        "outside": row.outside,
        **tissue_voxels(row),
        "labels": [encode_record(each) for each in row.figures.labels] if row.figures else [],
        "notes": row.notes,
        "seconds": row.seconds,
    }


def tissue_voxels(row: PairRow) -> dict[str, int | None]:
    """Return the number of the truth's voxels of each tissue, by name of the field; None if it is
    no CT.
    """
    tissues = row.figures.tissues if row.figures else None
    return {
        f"voxels_{tissue.name}": tissues.voxels[tissue.name] if tissues else None
        for tissue in TISSUES
    }


def figures_of(row: PairRow) -> dict[str, float | None]:
    """Return a study's figure of each metric, in their order; None if it was not evaluated."""
    return {metric.name: metric.of(row.figures) if row.figures else None for metric in METRICS}


def _ends(data_range: Range | None) -> tuple[float, float] | None:
    return (data_range.low, data_range.high) if data_range else None
