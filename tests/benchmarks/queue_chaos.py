"""Kill workers that have jobs in hand, and see that nothing is lost, halved or done twice.

Run in tests/: `python -m benchmarks.queue_chaos [--postgresql]`. A server crashes for 6 s halfway.
The figures go into results/queue_chaos.json.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from support import queue_postgres
from support.batch_world import recorded, scan
from support.queue_world import QueueWorld, children
from support.telling_worker import TELLING_COMMAND

from cuda_cyclegan.pipelines.errors import QueueLostError

PATIENCE = 300.0
ABOUT_A_JOB = re.compile(r" (\d{8}-\w{6}/\d{5}) (\w+)")
RESULTS = Path(__file__).parent / "results" / "queue_chaos.json"


@dataclass(frozen=True)
class Trial:
    """Size of the trial, and its disturbances: kills, and an outage of a server halfway.

    extents: of each scan.
    """

    studies: int = 500
    kills: int = 50
    workers: int = 4
    server: queue_postgres.Server | None = None
    outage_seconds: float = 6.0
    extents: tuple[int, int, int] = (64, 64, 48)


@dataclass
class Watched:
    """A `worker` command on the CPU, and what its log says about the jobs of its one child."""

    process: "subprocess.Popen[str]"
    in_hand: set[str] = field(default_factory=set[str])
    starts: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    ends: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    lost: list[tuple[float, set[str]]] = field(default_factory=list[tuple[float, set[str]]])
    deaths: int = 0

    def listen(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            now, about = time.monotonic(), ABOUT_A_JOB.search(line)
            self.deaths += "the worker ended" in line
            if "killed by SIGKILL" in line:
                self.lost.append((now, set(self.in_hand)))
                self.in_hand.clear()
            elif about and about[2] == "started":
                self.in_hand.add(about[1])
                self.starts.append((now, about[1]))
            elif about:
                self.in_hand.discard(about[1])
                self.ends[about[1], about[2]] += 1


def run(world: QueueWorld, trial: Trial) -> dict[str, Any]:
    """Figures of one run; kills are spread over it evenly."""
    work = Work(world, trial.studies, trial.extents)
    workers = [
        Watched(world.start("worker", "--tries", "1000", command=TELLING_COMMAND))
        for _ in range(trial.workers)
    ]
    listeners = [threading.Thread(target=worker.listen, daemon=True) for worker in workers]
    for listener in listeners:
        listener.start()
    begin, moments = time.monotonic(), random.Random(1)
    for killed in range(1, trial.kills + 1):
        due = trial.studies * killed / (trial.kills + 1)
        _wait_for(workers, lambda due=due: len(world.made()) >= due)
        _kill_one_at_work(workers, work, moments)
        if trial.server and killed == (trial.kills + 1) // 2:
            trial.server.stop("immediate")
            time.sleep(trial.outage_seconds)
            trial.server.start()
    _wait_for(workers, lambda: {row["state"] for row in work.rows()} == {"done"})
    seconds = time.monotonic() - begin
    for worker in workers:
        worker.process.terminate()
    for worker, listener in zip(workers, listeners, strict=True):
        worker.process.wait()
        listener.join()
    return {
        "studies": work.studies,
        "kills": sum(len(worker.lost) for worker in workers),
        "seconds": round(seconds, 1),
        **_outcome(world, work.direct()),
        **_accounts(world, work.rows(), workers),
    }


class Work:
    """Studies that are queued; more of them whenever none is left before the last kill."""

    def __init__(self, world: QueueWorld, studies: int, extents: tuple[int, int, int]) -> None:
        self.studies = 0
        self._world, self._portion, self._extents = world, studies, extents
        self._batches: list[str] = []
        self.add()

    def add(self) -> None:
        """Queue as many studies as at first."""
        for number in range(self.studies, self.studies + self._portion):
            scan(self._world.inputs / f"{number:03}.nii", number, self._extents)
        self.studies += self._portion
        self._batches.append(self._world.submit())

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all jobs."""
        return [row for batch in self._batches for row in self._world.jobs(batch)]

    def running(self) -> set[str]:
        """The jobs at work by the queue. Raises QueueLostError."""
        rows = [self._world.rows(batch, ["running"]) for batch in self._batches]
        return {row.job for found in rows for row in found}

    def direct(self) -> Path:
        """The folder of what `translate` makes of the same scans."""
        folder = self._world.folder / "direct"
        paths = [str(self._world.inputs), "--model", str(self._world.model)]
        self._world.did("translate", *paths, "--output", str(folder))
        return folder


def _kill_one_at_work(workers: list[Watched], work: Work, moments: random.Random) -> None:
    """Kill a random worker process while it has a job in hand, by the queue and by its log."""
    while True:
        time.sleep(moments.uniform(0.0, 0.05))
        victim = moments.choice(workers)
        deaths = len(victim.lost)
        if any(_is_killed(process, victim, work) for process in children(victim.process.pid)):
            break
        if all(row["state"] == "done" for row in work.rows()):
            work.add()
    _wait_for(workers, lambda: len(victim.lost) > deaths)


def _is_killed(process: int, of: Watched, work: Work) -> bool:
    """Have a process stand still, and end there if it has a job in hand.

    Where it stands still while it changes the queue's file, nobody else can read that: it goes on.
    """
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGSTOP)
        is_at_work = False
        with suppress(QueueLostError):
            is_at_work = not work.running().isdisjoint(of.in_hand)
        os.kill(process, signal.SIGKILL if is_at_work else signal.SIGCONT)
        return is_at_work
    return False


def _outcome(world: QueueWorld, direct: Path) -> dict[str, Any]:
    """Compare the results on the disk with those of `translate` from the same scans."""
    made = {path.name: path.read_bytes() for path in world.output.glob("*.nii")}
    wanted = {path.name: path.read_bytes() for path in direct.glob("*.nii")}
    return {
        "results": len(made),
        "missing": len(wanted.keys() - made.keys()),
        "other than those of translate": sum(made[name] != wanted[name] for name in made),
        "parts left": sum(path.name.endswith(".part") for path in world.output.rglob("*")),
    }


def _accounts(
    world: QueueWorld, rows: list[dict[str, Any]], workers: list[Watched]
) -> dict[str, Any]:
    lost = [found for worker in workers for found in worker.lost]
    in_flight = set[str]().union(*(jobs for _, jobs in lost))
    translated = Counter[str]()
    for worker in workers:
        for (job, end), count in worker.ends.items():
            translated[job] += count * (end == "translated")
    entries = recorded(world.output)
    written = Counter(entry["output"] for entry in entries if entry["status"] == "written")
    names = {row["job"]: row["study"] for row in rows}
    twice = {name for name, count in written.items() if count > 1}
    return {
        "jobs in hand at kills": sum(len(jobs) for _, jobs in lost),
        "kills with nothing in hand": sum(not jobs for _, jobs in lost),
        "written twice": len(twice),
        "written twice without a kill": len(twice - {names[job] for job in in_flight}),
        "recorded twice": sum(count > 1 for count in translated.values()),
        "seconds until lost jobs were taken again": _delays(workers),
    }


def _delays(workers: list[Watched]) -> dict[str, float]:
    starts = [start for worker in workers for start in worker.starts]
    delays: list[float] = []
    for moment, jobs in (found for worker in workers for found in worker.lost):
        for job in jobs:
            later = [when - moment for when, started in starts if started == job and when > moment]
            if later:
                delays.append(min(later))
    if not delays:  # each was recorded by the server while its worker was killed
        return {}
    return {"median": round(median(delays), 2), "longest": round(max(delays), 2)}


def _wait_for(workers: list[Watched], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if ended := [worker for worker in workers if worker.process.poll() is not None]:
            raise RuntimeError(f"{len(ended)} workers ended with {ended[0].process.returncode}")
        if time.monotonic() > end:
            raise TimeoutError("the jobs do not get on")
        time.sleep(0.2)


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
        figures = run(world, Trial(asked.studies, asked.kills, server=server))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known["postgresql" if asked.postgresql else "sqlite"] = {"date": f"{date.today()}", **figures}
    RESULTS.write_text(json.dumps(known, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
