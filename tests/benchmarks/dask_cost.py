"""Processor time of a batch on Dask, against the same batch of `translate` alone.

    PYTHONPATH=tests python tests/benchmarks/dask_cost.py [--turns N]

100 studies of 24x24x24 and 20 of 96x96x64, on the CPU: by `translate`, by `translate --scheduler
local`, and by a scheduler and a worker in processes of their own, which run already. The three
take turns, so that a busy machine slows all of them. A figure is the median of the turns. Modules
are kept compiled, as pip leaves them.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import distributed
from support.batch_world import scan
from support.processes import descendants, started
from support.translate_world import COMMAND, World
from support.waiting import eventually

RESULT = Path(__file__).parent / "results" / "dask_cost.json"
BATCHES = {"100 of 24x24x24": (100, (24, 24, 24)), "20 of 96x96x64": (20, (96, 96, 64))}
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as root, ExitStack() as opened:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{root}/compiled"
        address, processes = opened.enter_context(cluster(Path(root)))
        rows = {
            name: compared(Path(root) / str(count), count, shape, asked.turns, address, processes)
            for name, (count, shape) in BATCHES.items()
        }
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "what": (__doc__ or "").splitlines()[0],
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "distributed": distributed.__version__,
        "turns": asked.turns,
        "batches": rows,
    }
    print(json.dumps(record, indent=2))
    asked.output.write_text(f"{json.dumps(record, indent=2)}\n")


@contextmanager
def cluster(folder: Path) -> Generator[tuple[str, list[int]]]:
    """Address of a scheduler with one worker, and the processes of both."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    dask = [sys.executable, "-m", "dask"]
    listen = ["--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    serve = [*dask, "scheduler", *listen, "--no-dashboard"]
    work = [*dask, "worker", address, "--nthreads", "1", "--memory-limit", "0", "--no-dashboard"]
    with (
        (folder / "cluster.log").open("w") as log,
        started(serve, stdout=log, stderr=log, cwd=folder) as scheduler,
        started(work, stdout=log, stderr=log, cwd=folder) as worker,
        distributed.Client(address, timeout="30s") as client,
    ):
        eventually(lambda: len(client.scheduler_info()["workers"]) == 1)
        yield address, [scheduler.pid, worker.pid]


def compared(
    folder: Path,
    count: int,
    shape: tuple[int, ...],
    turns: int,
    address: str,
    processes: Sequence[int],
) -> dict[str, Any]:
    folder.mkdir()
    world = World(folder)
    for seed in range(count):
        scan(world.inputs / f"{seed:03}.nii", seed=seed, shape=shape)
    ways = {
        "translate": ("--device", "cpu"),
        "local": ("--device", "cpu", "--scheduler", "local"),
        "tcp": ("--device", "cpu", "--scheduler", address),
    }
    used: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, options in ways.items():
            world.output = folder / f"{way}-{turn}"
            seconds = measured(world, options, processes if way == "tcp" else [])
            if turn:  # the first one warms caches
                used[way].append(seconds)
    rows = {
        way: {
            "processor_seconds": round(statistics.median(first for first, _ in seconds), 2),
            "wall_seconds": round(statistics.median(second for _, second in seconds), 2),
            "every": [round(first, 2) for first, _ in seconds],
        }
        for way, seconds in used.items()
    }
    alone: Any = rows["translate"]["processor_seconds"]
    for row in rows.values():
        used_here: Any = row["processor_seconds"]
        row["ratio"] = round(used_here / alone, 3)
    return rows


def measured(world: World, options: Sequence[str], processes: Sequence[int]) -> tuple[float, float]:
    """Return seconds of processor time and of wall time of a command.

    processes: of a cluster, whose use during the command counts too.
    """
    before, begin = of_cluster(processes) + of_children(), time.perf_counter()
    command = [*COMMAND, *world.arguments(*options, "--quiet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stderr)
    return of_cluster(processes) + of_children() - before, wall


def of_children() -> float:
    """Return the seconds of all ended children of this process, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def of_cluster(processes: Sequence[int]) -> float:
    """Return the seconds of running processes and their descendants, and of their ended ones."""
    total = 0
    for process in processes:
        for one in (process, *descendants(process)):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / _TICKS


if __name__ == "__main__":
    main()
