"""A batch on a Dask cluster whose workers are killed, with one study that kills its process.

    PYTHONPATH=tests python tests/benchmarks/dask_kills.py [--kills N]

Three workers translate 100 studies, one of which ends each process that opens it. Workers are
killed at random moments. All others must be translated, and that one must fail with its reason.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import distributed
from support.batch_world import scan
from support.dask_workers import dask_workers
from support.processes import started
from support.translate_world import COMMAND, World

from cuda_cyclegan.pipelines.results.manifest import load

RESULT = Path(__file__).parent / "results" / "dask_kills.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        for seed in range(asked.studies - 1):
            scan(world.inputs / f"{seed:03}.nii", seed=seed, shape=(48, 48, 48))
        scan(world.inputs / "deadly.nii", seed=asked.studies)
        begin = time.perf_counter()
        row = kills(world, asked.workers, asked.kills, random.Random(asked.seed))
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "what": (__doc__ or "").splitlines()[0],
        "cores": len(os.sched_getaffinity(0)),
        "workers": asked.workers,
        "studies": asked.studies,
        **row,
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print(json.dumps(record, indent=2))
    asked.output.write_text(f"{json.dumps(record, indent=2)}\n")


def kills(world: World, workers: int, count: int, chance: random.Random) -> dict[str, Any]:
    folder = world.inputs.parent
    with dask_workers(folder, workers) as address, distributed.Client(address) as client:
        options = ["--scheduler", address, "--device", "cpu", "--report", str(world.report)]
        command = [*COMMAND, *world.arguments(*options)]
        at: list[int] = []
        with started(command, stderr=subprocess.PIPE, text=True) as running:
            while len(at) < count and running.poll() is None:
                time.sleep(chance.uniform(4, 10))
                done = len(load(world.output)) if world.output.exists() else 0
                alive = client.run(os.getpid, on_error="ignore")
                if done and alive and running.poll() is None:
                    os.kill(chance.choice([*alive.values()]), signal.SIGKILL)
                    at.append(done)
            _, error = running.communicate()
    rows = world.rows()
    statuses = [row["status"] for row in rows.values()]
    failed = {name: row["reason"] for name, row in rows.items() if row["status"] == "failed"}
    assert len(json.loads(world.kept_report().read_text())["studies"]) == len(rows), error
    return {
        "kills": len(at),
        "on_record_at_kills": at,
        "status": running.returncode,
        "translated": statuses.count("translated"),
        "failed": failed,
        "results": len([*world.output.rglob("*.nii")]),
        "other_files": len(world.files()) - len([*world.output.rglob("*.nii")]),
    }


if __name__ == "__main__":
    main()
