"""A batch on a Dask cluster whose workers are killed, with one study that kills its process.

    PYTHONPATH=tests python tests/benchmarks/dask_kills.py [--kills N] [--seeds N N N]

Three workers translate 100 studies, one of which ends each process that opens it. Workers at work
are killed when random numbers of studies are on record, which the seed of a run decides. All others
must be done, and that one must fail with its reason. A study whose worker was killed between its
result and the report of it is done as well: the shard, repeated, finds it up to date.
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
from support.processes import children_of, started
from support.translate_world import COMMAND, World

from cuda_cyclegan.pipelines.results.manifest import load

RESULT = Path(__file__).parent / "results" / "dask_kills.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    runs = [run(asked.studies, asked.workers, asked.kills, seed) for seed in asked.seeds]
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "what": (__doc__ or "").splitlines()[0],
        "cores": len(os.sched_getaffinity(0)),
        "workers": asked.workers,
        "studies": asked.studies,
        "runs": runs,
    }
    print(json.dumps(record, indent=2))
    asked.output.write_text(f"{json.dumps(record, indent=2)}\n")


def run(studies: int, workers: int, count: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        for number in range(studies - 1):
            scan(world.inputs / f"{number:03}.nii", seed=number, shape=(48, 48, 48))
        scan(world.inputs / "deadly.nii", seed=studies)
        begin = time.perf_counter()
        row = kills(world, studies, workers, count, random.Random(seed))
        return {"seed": seed, **row, "seconds": round(time.perf_counter() - begin, 1)}


def kills(
    world: World, studies: int, workers: int, count: int, chance: random.Random
) -> dict[str, Any]:
    folder = world.inputs.parent
    with dask_workers(folder, workers) as address:
        with distributed.Client(address, set_as_default=False) as client:
            cluster: Any = client.run_on_scheduler(os.getpid)
        options = ["--scheduler", address, "--device", "cpu", "--report", str(world.report)]
        command = [*COMMAND, *world.arguments(*options)]
        at: list[int] = []
        due = sorted(chance.sample(range(1, studies * 9 // 10), count))
        with started(command, stderr=subprocess.PIPE, text=True) as running:
            while len(at) < count and running.poll() is None:
                done = len(load(world.output)) if world.output.exists() else 0
                at_work = [one for one in children_of(cluster) if children_of(one)]
                if done >= due[len(at)] and at_work:
                    os.kill(chance.choice(at_work), signal.SIGKILL)
                    at.append(done)
                time.sleep(chance.uniform(0, 0.2))
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
        "up_to_date": statuses.count("up to date"),
        "failed": failed,
        "results": len([*world.output.rglob("*.nii")]),
        "other_files": len(world.files()) - len([*world.output.rglob("*.nii")]),
    }


if __name__ == "__main__":
    main()
