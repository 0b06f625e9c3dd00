"""`jobs --json`; its fields are a promise to scripts.

Without a batch: `batches`, each with batch, name, submitted, and `jobs`, the count a state.
With a batch: `jobs`, each with job, state, study, files, output, model, tries, worker, submitted,
not_before, started, ended (seconds since 1970, or null), reason (of a failure, or null) and
`result`: the study's row as in `translate --report`, or {} until it ended. `paused` in both.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..pipelines.queue_state import JobRow

if TYPE_CHECKING:
    from ..pipelines.queue import Queue

SCHEMA = "cuda-cyclegan/jobs/1"


def text(jobs: "Queue", rows: Sequence[JobRow] | None) -> str:
    """The document, in ASCII. rows: a batch's jobs, or None for all batches."""
    found = (
        {"batches": [asdict(count) for count in jobs.batches()]}
        if rows is None
        else {"jobs": [_job(row) for row in rows]}
    )
    return json.dumps({"schema": SCHEMA, "paused": jobs.is_paused(), **found}, indent=2)


def _job(row: JobRow) -> dict[str, Any]:
    fields = asdict(row)
    del fields["payload"], fields["result"], fields["lane"]
    return {
        **fields,
        "priority": row.lane.priority,
        "window": row.lane.window or None,
        **{key: row.asked.get(key) for key in ("study", "files", "output", "model")},
        "reason": row.reason,
        "result": row.result.get("row", {}),
    }
