"""Hundreds of runs ended by Ctrl-C, SIGTERM or kill -9 at random moments; nothing may be lost.

    PYTHONPATH=tests python tests/benchmarks/random_kills.py [--kills N]

Half of them work in one process, half in one for each of two CPU devices. What must hold after each
kill is in tests/support/fault_kills.py; the first thing that does not ends the benchmark.
"""

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from support.fault_kills import Kills, Tally

RESULT = Path(__file__).parent / "results" / "random_kills.json"


def figures(tally: Tally, seconds: float) -> dict[str, Any]:
    return {
        "kills": tally.kills,
        "series": tally.series,
        "seconds_of_a_run": round(tally.whole_run, 2),
        "ends": dict(sorted(tally.statuses.items())),
        "recorded_results_at_kill": {
            str(count): kills for count, kills in sorted(tally.recorded.items())
        },
        "parts_after_kills": tally.parts,
        "whole_results_not_yet_recorded_after_kills": tally.unrecorded,
        "median_seconds_to_end": round(median(tally.seconds_to_end), 3),
        "longest_seconds_to_end": round(max(tally.seconds_to_end), 3),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--studies", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "what": (__doc__ or "").splitlines()[0],
        "cores": len(os.sched_getaffinity(0)),
        "studies": asked.studies,
    }
    for workers in asked.workers:
        with tempfile.TemporaryDirectory() as root:
            begin = time.perf_counter()
            kills = Kills(Path(root), asked.studies, workers, asked.seed)
            tally = kills.run(asked.kills // len(asked.workers))
            row = figures(tally, time.perf_counter() - begin)
            record["one process" if workers == 1 else f"{workers} workers"] = row
            print(workers, json.dumps(row, indent=2), flush=True)
    asked.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
