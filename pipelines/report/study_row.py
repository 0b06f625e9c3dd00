"""A study's report row as JSON and back, as the queue keeps it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..host.memory import PeakMemory
from ..study.seam_score import SeamScore
from .report import Failure, StudyReport


def to_json(row: StudyReport) -> dict[str, Any]:
    """The row as JSON values; without its paths, which the job holds."""
    fields = asdict(row)
    del fields["source"], fields["output"], fields["name"]
    return {**fields, "preview": str(row.preview) if row.preview else None}


def from_json(fields: Mapping[str, Any], name: str, source: Path, output: Path) -> StudyReport:
    """The row that `to_json` gave; fields of newer versions are passed over."""
    known = {key: fields[key] for key in StudyReport.__dataclass_fields__ if key in fields}
    peak, failure = known.pop("peak_memory", None), known.pop("failure", None)
    preview, seams = known.pop("preview", None), known.pop("seams", None)
    return StudyReport(
        **known,
        name=name,
        source=source,
        output=output,
        peak_memory=PeakMemory(**peak) if peak else None,
        failure=Failure(**failure) if failure else None,
        preview=Path(preview) if preview else None,
        seams=SeamScore(tuple(seams["axes"])) if seams else None,
    )
