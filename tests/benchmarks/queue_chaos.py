"""Kill workers at random while they do many tiny studies, and see that nothing is lost.

Run in tests/: `python -m benchmarks.queue_chaos --studies 500 --kills 50 [--postgresql]`. The
server crashes for 6 s halfway.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from helpers import queue_postgres
from helpers.batch_world import scan
from helpers.queue_world import QueueWorld, children

WORKERS = 4
START_SECONDS = 4.0
"""Only processes older than this are killed, which have most likely begun to work."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--postgresql", action="store_true")
    asked = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(queue_postgres.server()) if asked.postgresql else None
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        world = QueueWorld(Path(folder), server.url if server else None)
        stack.callback(world.close)
        print(json.dumps(run(world, asked.studies, asked.kills, server), indent=2))


def run(
    world: QueueWorld, studies: int, kills: int, server: queue_postgres.Server | None
) -> dict[str, object]:
    """Figures of one run."""
    for number in range(studies):
        scan(world.inputs / f"{number:03}.nii", number, (64, 64, 48))
    batch = world.submit()
    log: list[str] = []
    parents = [world.start("worker", "--tries", "1000") for _ in range(WORKERS)]
    for parent in parents:
        threading.Thread(target=lambda p=parent: log.extend(p.stderr or ()), daemon=True).start()
    begin, moments, killed = time.monotonic(), random.Random(1), 0
    seen: dict[int, float] = {}
    while killed < kills and len(world.made()) < studies:
        time.sleep(moments.uniform(0.1, 1.0))
        for child in (child for parent in parents for child in children(parent.pid)):
            seen.setdefault(child, time.monotonic())
        at_work = time.monotonic() - START_SECONDS
        victims = [child for child, since in seen.items() if since < at_work]
        if victims:
            victim = moments.choice(victims)
            del seen[victim]
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed += 1
        if server and killed == kills // 2:
            server.stop("immediate")
            time.sleep(6)
            server.start()
            killed += 1
    while any(row["state"] in ("queued", "running") for row in world.jobs(batch)):
        time.sleep(1)
    rows = world.jobs(batch)
    ended = Counter(line.split()[3] for line in log if " translated," in line)
    results = {path.stat().st_size for path in world.output.glob("*.nii")}
    return {
        "database": "postgresql" if server else "sqlite",
        "seconds": round(time.monotonic() - begin, 1),
        "kills": killed,
        "states": Counter(row["state"] for row in rows),
        "results": len(world.made()),
        "sizes": sorted(results),
        "taken more than once": sum(row["tries"] > 1 for row in rows),
        "ended more than once": sum(count > 1 for count in ended.values()),
        "parts left": sum(path.name.endswith(".part") for path in world.output.rglob("*")),
    }


if __name__ == "__main__":
    main()
