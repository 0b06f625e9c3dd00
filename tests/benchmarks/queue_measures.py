"""Speed of the queue, and its recovery from a death.

Run in tests/: `python -m benchmarks.queue_measures [MEASURE...]`. The figures go into
results/queue_measures.json. `dead_host` needs the rights to make network namespaces.
"""

import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from support import queue_postgres
from support.batch_world import scan
from support.queue_world import COMMAND, QueueWorld, children
from support.telling_worker import TELLING_COMMAND

from cuda_cyclegan.pipelines.jobs.queue.database import Database
from cuda_cyclegan.pipelines.jobs.queue.job import StudyJob
from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables
from cuda_cyclegan.pipelines.jobs.supervision import HEALTHY_SECONDS
from cuda_cyclegan.pipelines.settings import TranslateOptions

HISTORY, BATCH = 20_000, 1_000
STUDIES = 5_000
REPEATS = 7
IDLE_SECONDS = 60.0
SLOW_STUDY = (320, 320, 320)
RESULTS = Path(__file__).parent / "results" / "queue_measures.json"


def submit(world: QueueWorld) -> dict[str, Any]:
    """Seconds of one `submit` of many studies in one folder."""
    for number in range(STUDIES):
        scan(world.inputs / f"{number:04}.nii", 0, (4, 4, 4))
    begin = time.perf_counter()
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    _command(world, "submit", *paths)
    return {"studies": STUDIES, "seconds": round(time.perf_counter() - begin, 2)}


def jobs(world: QueueWorld) -> dict[str, Any]:
    """Seconds of `jobs` and `jobs BATCH` with a long history."""
    batch = _history(world)
    return {
        "history": HISTORY,
        "jobs": _seconds(world, "jobs"),
        f"jobs BATCH of {BATCH}": _seconds(world, "jobs", batch),
    }


def idle(world: QueueWorld) -> dict[str, Any]:
    """Share of one core that a worker without jobs takes, both of its processes together."""
    _history(world)
    worker = _waiting_worker(world)
    [child] = children(worker.pid)
    before = _processor_seconds(worker.pid) + _processor_seconds(child)
    time.sleep(IDLE_SECONDS)
    used = _processor_seconds(worker.pid) + _processor_seconds(child) - before
    return {"percent of a core": round(100 * used / IDLE_SECONDS, 2)}


def killed_child(world: QueueWorld) -> dict[str, Any]:
    """Seconds from the kill of the only worker's child to the lost job's next start.

    A child that dies young is replaced later and later, so each one is let live for a while.
    """
    for number in range(100):
        scan(world.inputs / f"{number:03}.nii", number, (160, 160, 128))
    world.submit()
    worker = world.start("worker", "--tries", "1000", command=TELLING_COMMAND)
    delays: list[float] = []
    for _ in range(REPEATS):
        youth = time.monotonic() + HEALTHY_SECONDS
        while time.monotonic() < youth:
            _line_with(worker, " translated")
        _line_with(worker, " started")
        [child] = children(worker.pid)
        begin = time.perf_counter()
        os.kill(child, signal.SIGKILL)
        _line_with(worker, "killed by SIGKILL")
        _line_with(worker, " started")
        delays.append(time.perf_counter() - begin)
    return {"median": round(median(delays), 2), "longest": round(max(delays), 2)}


def _history(world: QueueWorld) -> str:
    """Fill the queue with batches of the past; the last one's name."""
    with open_tables(queue_place(world.queue), create=True) as tables:
        return [_done_batch(tables, world.folder, batch) for batch in range(HISTORY // BATCH)].pop()


def _done_batch(tables: Database, folder: Path, number: int) -> str:
    """A batch of jobs that ended as if workers had done them."""
    file = folder / "scan.nii"
    file.touch()
    made = [
        StudyJob(
            study=f"case{study:05}/image.nii.gz",
            files=(str(file),),
            output=f"/results/{number}",
            model="/models/t1-to-t2.safetensors",
            model_sha256="0" * 64,
            options=TranslateOptions(patch=(128, 128, 128)),
        )
        for study in range(BATCH)
    ]
    batch = Queue(tables).submit(made, SchedulingClass("normal"), name=f"batch {number}").batch
    stages = {"read": 0.1, "prepare": 0.1, "infer": 2.0, "finish": 0.1, "write": 0.2}
    result = json.dumps({"row": {"status": "translated", "seconds": 2.5, "stages": stages}})
    with tables.writing() as transaction:
        ended = "state = 'done', started = submitted, ended = submitted"
        transaction.change(f"UPDATE {{jobs}} SET {ended} WHERE batch = :batch", batch=batch)
        stored = "UPDATE {payloads} SET result = :result WHERE batch = :batch"
        transaction.change(stored, batch=batch, result=result)
    return batch


def _seconds(world: QueueWorld, *arguments: str) -> dict[str, float]:
    """Return the seconds of a command: wall clock and processor; others change the latter less."""
    walls: list[float] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(REPEATS):
        begin = time.perf_counter()
        _command(world, *arguments)
        walls.append(time.perf_counter() - begin)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "median": round(median(walls), 2),
        "least": round(min(walls), 2),
        "processor": round(used / REPEATS, 2),
    }


def _command(world: QueueWorld, *arguments: str) -> None:
    environment = {**os.environ, VARIABLE: world.queue}
    command = [*COMMAND, *arguments]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def _waiting_worker(world: QueueWorld) -> "subprocess.Popen[str]":
    worker = world.start("worker")
    _line_with(worker, "waiting for jobs")
    return worker


def _line_with(worker: "subprocess.Popen[str]", text: str) -> str:
    assert worker.stderr
    return next(line for line in worker.stderr if text in line)


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASURES: dict[str, Callable[[QueueWorld], dict[str, Any]]] = {
    "submit": submit,
    "jobs": jobs,
    "idle": idle,
    "killed_child": killed_child,
}


@contextmanager
def _world(stack: ExitStack, database: str) -> Generator[QueueWorld]:
    server = stack.enter_context(queue_postgres.server()) if database == "postgresql" else None
    with tempfile.TemporaryDirectory() as folder:
        world = QueueWorld(Path(folder), server.url if server else None)
        try:
            yield world
        finally:
            world.close()


def main() -> None:
    asked = sys.argv[1:] or list(MEASURES)
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked:
        for database in ("sqlite", "postgresql"):
            with ExitStack() as stack, _world(stack, database) as world:
                figures = MEASURES[name](world)
            found.setdefault(name, {})[database] = figures
            print(name, database, json.dumps(figures), flush=True)
    found["date"] = f"{date.today()}"
    found["machine"] = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
