"""Two workers on machines of one name share a server's queue; neither may take the other's jobs.

Run in tests/: `python -m benchmarks.queue_equal_names [--minutes N]`. Each worker has a home of its
own, as in two containers; none is killed, and the server crashes for 6 s halfway. The figures go
into results/queue_equal_names.json.
"""

import argparse
import json
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import date
from operator import gt
from pathlib import Path
from typing import Any

from benchmarks.queue_chaos import Watched
from support import queue_postgres
from support.queue_world import QueueWorld
from support.telling_worker import TELLING_COMMAND
from support.waiting import eventually

STUDIES = 60
FEW = 20
"""Open jobs below which more are submitted, so that both workers always have some."""

RESULTS = Path(__file__).parent / "results" / "queue_equal_names.json"


@dataclass(frozen=True)
class Trial:
    """extents: of each scan. outage_seconds: of the server, halfway; 0 is none."""

    seconds: float = 600.0
    extents: tuple[int, int, int] = (64, 64, 48)
    outage_seconds: float = 6.0


def run(world: QueueWorld, server: queue_postgres.Server, trial: Trial) -> dict[str, Any]:
    """Figures of one run: what was done, and how often a job was begun again."""
    world.scans(STUDIES, trial.extents)
    batches = [_submitted(world)]
    homes = [world.folder / name for name in ("one", "other")]
    workers = [
        Watched(world.start("worker", "--device", "cpu", home=home, command=TELLING_COMMAND))
        for home in homes
    ]
    for worker in workers:
        threading.Thread(target=worker.listen, daemon=True).start()
    eventually(lambda: all(worker.starts for worker in workers))
    load = [_work_for(trial.seconds / 2, world, batches)]
    if trial.outage_seconds:
        server.stop("immediate")
        time.sleep(trial.outage_seconds)
        begun = [len(worker.starts) for worker in workers]
        server.start()

        def go_on() -> bool:
            _fill(world, batches)
            return all(map(gt, (len(worker.starts) for worker in workers), begun))

        eventually(go_on)
    load.append(_work_for(trial.seconds / 2, world, batches))
    deaths = sum(worker.deaths + (worker.process.poll() is not None) for worker in workers)
    starts = Counter(job for worker in workers for _, job in worker.starts)
    for worker in workers:  # the one may take, before it hears, what the other hands back
        worker.process.terminate()
    for worker in workers:
        worker.process.wait()
    rows = [row for batch in batches for row in world.jobs(batch)]
    return {
        "seconds": trial.seconds,
        "seconds without a server": trial.outage_seconds,
        "load average": round(sum(load) / len(load), 1),
        "workers": sorted({row["worker"] for row in rows if row["worker"]}),
        "jobs done by each": sorted(
            sum(count for (_, end), count in worker.ends.items() if end == "translated")
            for worker in workers
        ),
        "jobs begun more than once": sum(count > 1 for count in starts.values()),
        "jobs of a second try": sum(row["tries"] > 1 for row in rows),
        "jobs that failed": sum(row["state"] in ("failed", "given up") for row in rows),
        "reasons": sorted({row["reason"] for row in rows if row["state"] == "failed"}),
        "workers that died": deaths,
    }


def _work_for(seconds: float, world: QueueWorld, batches: list[str]) -> float:
    """Keep the queue filled for a while; the machine's load average at its end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _fill(world, batches)
        time.sleep(0.5)
    return os.getloadavg()[0]


def _fill(world: QueueWorld, batches: list[str]) -> None:
    if sum(row["state"] in ("queued", "running") for row in world.jobs(batches[-1])) < FEW:
        batches.append(_submitted(world))


def _submitted(world: QueueWorld) -> str:
    """A batch with a folder of its own, as jobs of one result may wait for each other."""
    return world.submit("--output", str(world.output / secrets.token_hex(4)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    asked = parser.parse_args()
    with queue_postgres.server() as server, tempfile.TemporaryDirectory() as folder:
        world = QueueWorld(Path(folder), server.url)
        try:
            figures = run(world, server, Trial(60 * asked.minutes))
        finally:
            world.close()
    RESULTS.write_text(json.dumps({"date": f"{date.today()}", **figures}, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
