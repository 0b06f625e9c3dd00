"""Evaluation as JSON and CSV; their fields, documented in docs/evaluation.md, are stable."""

import csv
import io
from collections.abc import Iterable
from dataclasses import astuple
from numbers import Real
from pathlib import Path
from typing import Any

from ...engine.decoding import encode_record
from ...io.files.documents import write_document
from ..program import program_version
from ..study.statistics import Range
from .report import METRICS, STATUSES, Evaluation, PairRow, Summary

SCHEMA = "cuda-cyclegan/evaluation/1"
"""Schema version, raised when a field is removed or changes its meaning, not for new fields."""

COLUMNS = (
    *("name", "status", *(metric.name for metric in METRICS)),
    *("data_range_low", "data_range_high", "voxels", "result", "truth", "mask", "reason"),
)


def csv_text(evaluation: Evaluation) -> str:
    """Return a line per study; fields that do not apply are empty."""
    lines = [_line(COLUMNS)]
    for row in evaluation.rows:
        figures = astuple(row.figures) if row.figures else [None] * len(METRICS)
        ends = astuple(row.data_range) if row.data_range else (None, None)
        files = row.result, row.truth, row.mask
        line = (row.name, row.status, *figures, *ends, row.voxels, *files, row.reason)
        lines.append(_line(map(_cell, line)))
    return "".join(lines)


_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters that make spreadsheets evaluate a cell, the last four in full width."""


def _line(cells: Iterable[str]) -> str:
    """Return cells as a line; the writer's line end is CRLF so that it quotes both characters."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\r\n").writerow(cells)
    return made.getvalue().removesuffix("\r\n") + "\n"


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
        "summary": {each.metric.name: _summary(each) for each in evaluation.summaries()},
        "studies": [_study(row) for row in evaluation.rows],
    }


def _summary(each: Summary) -> dict[str, Any]:
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
        **{metric.name: metric.of(row.figures) if row.figures else None for metric in METRICS},
        "data_range": _ends(row.data_range),
        "voxels": row.voxels,
        "notes": row.notes,
        "seconds": row.seconds,
    }


def _ends(data_range: Range | None) -> tuple[float, float] | None:
    return (data_range.low, data_range.high) if data_range else None
