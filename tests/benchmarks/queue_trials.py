"""Light workers under kills, wrong clocks, stops, outages and lost answers; each job ends once.

Run in tests/: `python -m benchmarks.queue_trials [--real] [TRIAL...]`. A worker is a process with
the product's claims, name and monitor, whose jobs sleep. On PostgreSQL each has a home of its own,
as if on a machine of its own, so it is dead only by its counter. Limits are a tenth of those of the
product unless `--real` is given. Trials with a clock need libfaketime. The figures go into
results/queue_trials.json.
"""

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from support import queue_postgres
from support.queue_jobs import jobs

from cuda_cyclegan.pipelines.errors import QueueLostError
from cuda_cyclegan.pipelines.jobs import worker as product
from cuda_cyclegan.pipelines.jobs.queue import liveness
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.job import Claim
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass

WORKERS, JOBS, KILLS = 8, 300, 15
TENTH = {"BEAT_SECONDS": 0.5, "CONTACT_SECONDS": 1.5, "DEAD_SECONDS": 6.0}
RESULTS = Path(__file__).parent / "results" / "queue_trials.json"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
NORMAL = SchedulingClass("normal")


class LightWorker:
    """Stand-in for the source of jobs and for the worker that translates them."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.current: Claim | None = None
        self.is_lost = False

    def claimed(self) -> tuple[Claim, ...]:
        return (self.current,) if self.current else ()

    def has_in_flight(self, claim: Claim) -> bool:
        return claim is self.current

    def cancel(self, _: str) -> None:
        self.is_lost = True

    def note(self, what: str, claim: Claim) -> None:
        with self._log.open("a") as log:
            log.write(f"{what} {claim.job} {claim.tries} {os.getpid()}\n")

    def run(self, claims: Claims, seconds: float, cut_off: float) -> None:
        while True:
            claim = self._claim(claims, cut_off)
            if claim is None:
                _rest(0.05)
                continue
            self.is_lost, self.current = False, claim
            self.note("start", claim)
            end = time.monotonic() + seconds
            while time.monotonic() < end and not self.is_lost:
                _rest(0.02)
            is_ours = not self.is_lost and _patient(
                lambda claim=claim: claims.acknowledge(claim, {"row": {}}, well=True)
            )
            self.note("end" if is_ours else "lost", claim)
            self.current = None

    def _claim(self, claims: Claims, cut_off: float) -> Claim | None:
        with suppress(QueueLostError):
            for scheduling in claims.scheduling_classes():
                claim = claims.claim(scheduling)
                if claim and random.random() < cut_off:
                    return None  # the answer never came
                return claim
        return None


def _rest(seconds: float) -> None:
    """Sleep; libfaketime refuses the system call of time.sleep once the clock was changed."""
    select.select([], [], [], seconds)


def _patient(act: Callable[[], bool]) -> bool:
    while True:
        try:
            return act()
        except QueueLostError:
            _rest(0.2)


def work(queue: str, log: str, seconds: str, cut_off: str, limits: str) -> None:
    """Run as a worker until killed."""
    for name, value in json.loads(limits).items():
        setattr(liveness, name, value)
    if json.loads(limits):
        product.STRAY_SECONDS = 1.0
    light = LightWorker(Path(log))
    while True:
        with suppress(QueueLostError), ExitStack() as stack:
            joined = product._joined(queue_place(queue), "cpu", "")  # pyright: ignore
            claims, member = stack.enter_context(joined)
            stands_for: Any = light
            stack.enter_context(product.Monitor(claims, member, stands_for, stands_for))
            light.run(claims, float(seconds), float(cut_off))
        _rest(0.2)


@dataclass
class World:
    """queue: its address. server: of the queue, if it is not a file."""

    folder: Path
    queue: str
    server: queue_postgres.Server | None
    limits: dict[str, float]
    seconds: float = 0.2
    cut_off: float = 0.0
    clock: bool = False

    def __post_init__(self) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        with open_queue(queue_place(self.queue), create=True) as queue:
            self.batch = queue.submit(jobs(self.folder, JOBS), NORMAL).batch

    def start(self, number: int) -> None:
        home = self.folder / f"home{number}"
        variables = {**os.environ, "XDG_STATE_HOME": str(home), "HOME": str(home)}
        if self.clock:
            variables |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock_of(number)),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            if not self.clock_of(number).exists():
                self.set_clock(number, "+0")
        words = (self.queue, self.folder / "log", self.seconds, self.cut_off)
        command = [sys.executable, "-m", "benchmarks.queue_trials", "worker", *map(str, words)]
        self.processes[number] = subprocess.Popen(
            [*command, json.dumps(self.limits)], env=variables
        )

    def clock_of(self, number: int) -> Path:
        return self.folder / f"clock{number}"

    def set_clock(self, number: int, offset: str) -> None:
        self.clock_of(number).write_text(offset)

    def start_all(self) -> None:
        for number in range(WORKERS):
            self.start(number)

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def done(self) -> int:
        try:
            with open_queue(queue_place(self.queue)) as queue:
                return queue.counts(self.batch).get("done", 0)
        except QueueLostError:
            return 0

    def wait_for(self, count: int, seconds: float = 1500.0) -> None:
        end = time.monotonic() + seconds
        while self.done() < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.done()} of {count}")
            time.sleep(0.2)

    def lines(self) -> Iterator[tuple[str, str, int, int]]:
        for line in (self.folder / "log").read_text().splitlines():
            what, job, tries, process = line.split()
            yield what, job, int(tries), int(process)

    def figures(self) -> dict[str, Any]:
        lines = list(self.lines())
        ends = Counter(job for what, job, _, _ in lines if what == "end")
        starts = Counter(job for what, job, _, _ in lines if what == "start")
        with open_queue(queue_place(self.queue)) as queue:
            counts = queue.counts(self.batch)
        return {
            "states": counts,
            "acknowledged twice": sum(count > 1 for count in ends.values()),
            "runs repeated": sum(starts.values()) - len(starts),
            "jobs lost by living workers": sum(what == "lost" for what, *_ in lines),
        }

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def kills(world: World) -> dict[str, Any]:
    """kill -9 of a random worker, which is started again at once."""
    world.start_all()
    for number in range(KILLS):
        world.wait_for((number + 1) * JOBS // (KILLS + 2))
        victim = random.randrange(WORKERS)
        world.kill(victim)
        world.start(victim)
    world.wait_for(JOBS)
    return {"kills": KILLS}


def clocks(world: World) -> dict[str, Any]:
    """Half of the clocks go 2 h ahead and half 2 h back, twice, while all work."""
    world.clock = True
    world.start_all()
    for round_, done in enumerate((60, 120, 180, 240)):
        world.wait_for(done)
        for number in range(WORKERS):
            offset = ("+2h", "-2h")[number % 2] if round_ % 2 == 0 else "+0"
            world.set_clock(number, offset)
    world.wait_for(JOBS)
    return {}


def stop(world: World) -> dict[str, Any]:
    """SIGSTOP of two workers, for five times the limit, or 5 minutes."""
    seconds = 5 * world.limits.get("DEAD_SECONDS", 60.0)
    world.seconds = seconds / 50
    world.start_all()
    world.wait_for(JOBS // 20)
    for number in (0, 1):
        world.processes[number].send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    for number in (0, 1):
        world.processes[number].send_signal(signal.SIGCONT)
    world.wait_for(JOBS)
    return {"stopped workers": 2, "seconds": seconds}


def outage(world: World) -> dict[str, Any]:
    """The server is down for ten times the limit, or 10 minutes."""
    seconds = 10 * world.limits.get("DEAD_SECONDS", 60.0)
    world.seconds = 1.0
    world.start_all()
    world.wait_for(JOBS // 5)
    assert world.server
    world.server.kill()
    time.sleep(seconds)
    world.server.start()
    world.wait_for(JOBS)
    return {"seconds": seconds}


def lost_answers(world: World) -> dict[str, Any]:
    """One claim of ten is recorded, and its answer cut off."""
    world.cut_off = 0.1
    world.start_all()
    world.wait_for(JOBS)
    return {}


TRIALS: dict[str, Callable[[World], dict[str, Any]]] = {
    trial.__name__: trial for trial in (kills, clocks, stop, outage, lost_answers)
}


@contextmanager
def _world(database: str, limits: dict[str, float]) -> Generator[World]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(queue_postgres.server()) if database == "postgresql" else None
        queue = server.url if server else str(folder / "private" / "queue.db")
        world = World(
            folder, queue.replace("connect_timeout=300", "connect_timeout=5"), server, limits
        )
        stack.callback(world.close)
        yield world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", nargs="*", default=list(TRIALS))
    parser.add_argument("--real", action="store_true")
    asked = parser.parse_args()
    for name in asked.trials:
        for database in ("postgresql",) if name == "outage" else ("sqlite", "postgresql"):
            with _world(database, {} if asked.real else TENTH) as world:
                begin = time.monotonic()
                figures = TRIALS[name](world) | world.figures()
                figures["wall seconds"] = round(time.monotonic() - begin, 1)
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            title = f"{name}, {database}{', real limits' if asked.real else ''}"
            found[title] = {"date": f"{date.today()}", **figures}
            RESULTS.write_text(json.dumps(found, indent=2) + "\n")
            print(title, json.dumps(figures), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(*sys.argv[2:])
    else:
        main()
