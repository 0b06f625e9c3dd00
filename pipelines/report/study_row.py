"""A study's report row as JSON and back, as the queue keeps it."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...engine.decoding import Json, decode
from ..stopwatch import STAGES
from .report import StudyReport


def to_json(row: StudyReport) -> dict[str, Any]:
    """The row as JSON values; without its paths, which the job holds."""
    fields = asdict(row)
    del fields["source"], fields["output"], fields["name"]
    if row.failure:
        del fields["failure"]["passes"]  # what may pass has not ended
    for name in ("maps", "sidecars"):
        fields[name] = [*map(str, fields[name])]
    return {**fields, "preview": str(row.preview) if row.preview else None}


def from_json(fields: Mapping[str, Json], name: str, source: Path, output: Path) -> StudyReport:
    """The row that `to_json` gave; raises FieldError.

    Fields and stages of newer versions are passed over.
    """
    stages = {name: _of_known_stages(fields.get(name, {})) for name in ("stages", "when")}
    known = decode(StudyReport, {**fields, **stages, "name": "", "source": "", "output": ""})
    return replace(known, name=name, source=source, output=output)


def _of_known_stages(found: Json) -> Json:
    if not isinstance(found, dict):
        return found
    return {stage: found[stage] for stage in STAGES if stage in found}
