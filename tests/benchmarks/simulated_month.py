"""A month of nights in front of one queue: arrivals, kills, failovers and a change of the clock.

Run in tests/: `python -m benchmarks.simulated_month [--postgresql]`; gcc is needed. All processes,
the database server's too, have a wall clock that jumps from night to night (support/wall_clock.c).
`watch` and two `worker` commands on the CPU run all the time; each evening studies arrive, by
`watch` and by `submit`, most of them for the window of the night. Every morning is checked: jobs,
results, the summary, and what the disk and the processes hold. The figures go into
results/simulated_month.json.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Any

import psycopg
from benchmarks.queue_chaos import Watched
from support import queue_postgres
from support.batch_world import recorded, scan
from support.queue_world import QueueWorld, children, killed_with_children
from support.telling_worker import TELLING_COMMAND
from support.wall_clock import VARIABLE, WallClock, environment

from cuda_cyclegan.pipelines.jobs.queue.job import OPEN, JobRow
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.results.record_folder import found_record

RESULTS = Path(__file__).parent / "results" / "simulated_month.json"
ZONE = "Europe/Berlin"
ARRIVAL, OPENS, LATER = clock_time(18), clock_time(22), clock_time(23, 30)
SMALL_HOURS, CLOSES, MORNING = clock_time(2, 59, 50), clock_time(6), clock_time(7)
WINDOW = f"{OPENS:%H:%M}-{CLOSES:%H:%M}"
PATIENCE = 300.0
DISTINCT = 10
"""Scans that differ; the others are copies under another name."""
DAMAGED = 2
"""Studies of each night that no worker can read."""
KEPT_DAYS = 7
"""Days after which jobs are pruned, and the evening's scans are gone from the folder."""
SHAPE = (20, 18, 16)


@dataclass(frozen=True)
class Trial:
    """Size of the trial, and its disturbances.

    first: date of the first evening. kills: of worker processes each night. failovers: nights in
    which the server fails over to a standby or, for a file, all is killed at once. short: nights
    whose window closes on half of the work, which is left to the next one.
    """

    first: date = date(2026, 10, 10)
    nights: int = 30
    studies: int = 200
    kills: int = 3
    failovers: frozenset[int] = frozenset({9, 20})
    short: frozenset[int] = frozenset({4, 12, 24})
    extents: tuple[int, int, int] = SHAPE


@dataclass
class Services:
    """`watch` and two workers, which run from the first evening to the last morning."""

    world: QueueWorld
    workers: list[Watched] = field(default_factory=list[Watched])
    ended: list[Watched] = field(default_factory=list[Watched])

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        world = self.world
        self.watch = world.start(
            "watch",
            str(world.inputs),
            *("--model", str(world.model), "--output", str(world.output)),
            *("--window", WINDOW, "--settle", "1"),
        )
        self.ended += self.workers
        worker = ("worker", "--device", "cpu", "--threads", "1", "--tries", "1000")
        self.workers = [Watched(world.start(*worker, command=TELLING_COMMAND)) for _ in range(2)]
        for listen in (self._drain, *(each.listen for each in self.workers)):
            threading.Thread(target=listen, daemon=True).start()

    def _drain(self) -> None:
        assert self.watch.stderr
        for _ in self.watch.stderr:
            pass

    def kill_one(self, moments: random.Random) -> None:
        """Kill a random worker process, which its command replaces."""
        victim = moments.choice(self.workers)
        before = victim.deaths
        wait_for(lambda: children(victim.process.pid))
        with suppress(ProcessLookupError):
            os.kill(children(victim.process.pid)[0], signal.SIGKILL)
        wait_for(lambda: victim.deaths > before)

    def cut_power(self) -> None:
        """Kill all processes, and start all again."""
        processes = [self.watch, *(each.process for each in self.workers)]
        for each in self.workers:
            each.lost.append((time.monotonic(), set(each.in_hand)))
        for process in processes:
            killed_with_children(process)
        self.start()

    def in_hand_at_kills(self) -> set[str]:
        """Jobs that a killed process had claimed."""
        lost = (jobs for each in (*self.ended, *self.workers) for _, jobs in each.lost)
        return set[str]().union(*lost)

    def memory(self) -> dict[str, list[int]]:
        """Resident MiB of `watch`, of the commands, and of their processes at work."""
        commands = [each.process.pid for each in self.workers]
        at_work = [child for command in commands for child in children(command)]
        groups = {"watch": [self.watch.pid], "worker commands": commands, "at work": at_work}
        return {name: [_mebibytes(each) for each in found] for name, found in groups.items()}

    def open_files(self) -> int:
        """Return the number of open files of the processes that live all month."""
        processes = [self.watch.pid, *(each.process.pid for each in self.workers)]
        return sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in processes)


class Month:
    """A month in front of one queue."""

    def __init__(
        self, world: QueueWorld, trial: Trial, server: queue_postgres.Server | None
    ) -> None:
        self.world, self.trial, self.server = world, trial, server
        self.clock, self.moments = WallClock(), random.Random(1)
        self.faults: list[str] = []
        self.mornings: list[dict[str, Any]] = []
        self.due: dict[str, date] = {}
        """Open studies, by the evening on which they arrived."""
        self.outcomes = Counter[str]()

    def run(self) -> dict[str, Any]:
        """Figures of the month."""
        trial, begin = self.trial, time.monotonic()
        self.clock.set(datetime.combine(trial.first, clock_time(12)))
        self._scans = self._distinct()
        self.services = Services(self.world)
        for number in range(trial.nights):
            evening = trial.first + timedelta(days=number)
            self._night(number, evening)
            self._check_morning(number, evening)
            print(json.dumps(self.mornings[-1]), *self.faults[-3:], file=sys.stderr, flush=True)
        return {
            "first evening": f"{trial.first}",
            "nights": trial.nights,
            "studies": trial.nights * trial.studies,
            "kills": trial.nights * trial.kills,
            "failovers": len([night for night in trial.failovers if night < trial.nights]),
            "seconds": round(time.monotonic() - begin, 1),
            **self._outcome(),
            "faults": self.faults,
            "mornings": [self.mornings[0], *self.mornings[7::7], self.mornings[-1]],
        }

    def _distinct(self) -> list[tuple[bytes, bytes]]:
        """Scans, and what `translate` makes of each."""
        folder, direct = self.world.folder / "distinct", self.world.folder / "direct"
        scans = [scan(folder / f"{n}.nii", n, self.trial.extents) for n in range(DISTINCT)]
        self.world.did(
            *("translate", str(folder), "--model", str(self.world.model)),
            *("--output", str(direct), "--device", "cpu"),
        )
        return [(path.read_bytes(), (direct / path.name).read_bytes()) for path in scans]

    def _night(self, number: int, evening: date) -> None:
        trial, before = self.trial, len(self.due)
        self.clock.set(datetime.combine(evening, ARRIVAL))
        if number in trial.failovers and self.server:
            self.server.add_standby()
        self._arrive(evening)
        wait_for(lambda: len(self._open()) == before + trial.studies)
        self.clock.set(datetime.combine(evening, clock_time(21, 59, 57)))
        time.sleep(2)
        if started := [row.study for row in self._open() if row.started]:
            self._blame(evening, "started before the window", started)
        self.clock.set(datetime.combine(evening, OPENS))
        self._work_through(number, evening)
        morning = evening + timedelta(days=1)
        self.clock.set(datetime.combine(morning, CLOSES))
        wait_for(lambda: not any(row.state == "running" for row in self._open()))
        time.sleep(2)

    def _work_through(self, number: int, evening: date) -> None:
        """Let the night pass, with its kills and its failover."""
        trial, total = self.trial, len(self.due)
        jumps = iter(((evening, LATER), (evening + timedelta(days=1), SMALL_HOURS)))
        goal = total // 2 if number in trial.short else total
        for event in range(1, trial.kills + 1):
            due = goal * event // (trial.kills + 1)
            wait_for(lambda due=due: total - len(self._open()) >= due)
            self.services.kill_one(self.moments)
            if number in trial.failovers and event == 2:
                self._fail_over()
            if moment := next(jumps, None):
                self.clock.set(datetime.combine(*moment))
        for moment in jumps:
            self.clock.set(datetime.combine(*moment))
        wait_for(lambda: total - len(self._open()) >= goal)

    def _fail_over(self) -> None:
        if self.server:
            self.server.fail_over(seconds=4.0)
        else:
            self.services.cut_power()

    def _arrive(self, evening: date) -> None:
        """Put the evening's scans in place: watched ones, and two folders to submit."""
        studies = self.trial.studies
        shares = {"watched": studies * 6 // 10, "ward": studies * 3 // 10}
        shares["late"] = studies - sum(shares.values())
        number = 0
        for name, count in shares.items():
            for _ in range(count):
                study = f"{evening}-{name}-{number:03}.nii"
                self._put(self._folder(name) / f"{evening}" / study, number)
                self.due[f"{evening}/{study}" if name == "watched" else study] = evening
                number += 1
        rest = ("--model", str(self.world.model), "--output", str(self.world.output))
        for name, options in {"ward": ("--window", WINDOW), "late": ("--at", f"{LATER}")}.items():
            named = ("--name", f"{name} {evening}")
            self.world.did(
                "submit", str(self._folder(name) / f"{evening}"), *rest, *named, *options
            )

    def _folder(self, share: str) -> Path:
        return self.world.inputs if share == "watched" else self.world.folder / "sources" / share

    def _put(self, path: Path, number: int) -> None:
        content, _ = self._scans[number % DISTINCT]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(content[:5000] if number < DAMAGED else content)
        part.rename(path)

    def _open(self) -> list[JobRow]:
        return self.world.rows("", OPEN)

    def _workers(self) -> int:
        with open_queue(queue_place(self.world.queue)) as queue:
            return queue.workers()

    def _check_morning(self, number: int, evening: date) -> None:
        morning = datetime.combine(evening + timedelta(days=1), MORNING)
        rows = {row.study: row for row in self.world.rows("") if row.study in self.due}
        left = {study for study, row in rows.items() if row.state in OPEN}
        self.clock.set(morning)
        wait_for(lambda: self._workers() == 2)  # the last one killed may be starting
        if number not in self.trial.short and left:
            self._blame(evening, "left over", left)
        self._blame(evening, "lost", self.due.keys() - rows.keys())
        several = Counter(row.study for row in self.world.rows(""))
        self._blame(evening, "queued twice", [name for name, count in several.items() if count > 1])
        ended = {study: row for study, row in rows.items() if study not in left}
        self._blame(evening, "not on time", [one for one in ended if not self._on_time(rows[one])])
        states = Counter(row.state for row in ended.values())
        self.outcomes += states
        self._blame(
            evening, "with another result", [one for one in ended if not self._is_right(rows[one])]
        )
        self._check_summary(evening, states, len(left))
        for study in ended:
            del self.due[study]
        self._tidy(morning)
        self.mornings.append({"morning": f"{morning.date()}", **states, **self._holds(len(left))})

    def _on_time(self, row: JobRow) -> bool:
        """Whether a job started while it might, and ended in that night or just after it."""
        if not (row.started and row.ended):
            return False
        start = datetime.fromtimestamp(row.started)
        clock, evening = start.time(), date.fromisoformat(row.study[:10])
        night = (start - timedelta(hours=12)).date()
        if "-late-" in row.study:
            return night >= evening and (night > evening or clock >= LATER or clock < ARRIVAL)
        return night >= evening and (clock >= OPENS or clock < CLOSES)

    def _is_right(self, row: JobRow) -> bool:
        number = int(row.study[-7:-4])
        if number < DAMAGED:
            return row.state == "failed" and not (self.world.output / row.study).exists()
        result = self.world.output / row.study
        wanted = self._scans[number % DISTINCT][1]
        return row.state == "done" and result.exists() and result.read_bytes() == wanted

    def _check_summary(self, evening: date, states: Counter[Any], left: int) -> None:
        """Compare the overview of the night with what is in the queue and on the disk."""
        page = self.world.folder / "pages" / "%Y-%m-%d.html"
        page.parent.mkdir(exist_ok=True)
        done = self.world.run(
            "jobs", "summary", "--since", "18:00", "--json", "-", "--html", str(page)
        )
        found = json.loads(done.stdout)
        totals = found["totals"]
        reported = {
            "good": totals["translated"] + totals["up_to_date"],
            "failed": totals["failed"],
            "causes": found["causes"],
            "open": totals["open"],
            "status": done.exit_code,
            "workers": found["workers"],
            "waiting": sum(kind["jobs"] for kind in found["waiting"]),
            "page": (page.parent / f"{evening + timedelta(days=1)}.html").exists(),
        }
        wanted = {
            "good": states["done"],
            "failed": states["failed"],
            "causes": {"unreadable": states["failed"]} if states["failed"] else {},
            "open": left,
            "status": int(states["failed"] > 0),
            "workers": 2,
            "waiting": left,
            "page": True,
        }
        wrong = [
            f"{name} {reported[name]} for {wanted[name]}"
            for name in reported
            if reported[name] != wanted[name]
        ]
        self._blame(evening, "wrong in the summary", wrong)
        waits = {kind["window"] for kind in found["waiting"]}
        self._blame(evening, "waits for another window", waits - {WINDOW, None})
        batches = Counter(batch["name"] or "watched" for batch in found["batches"])
        several = [name for name, count in batches.items() if count > (2 if left else 1)]
        self._blame(evening, "in several batches", several if not self._follows_short() else [])

    def _follows_short(self) -> bool:
        return len(self.mornings) - 1 in self.trial.short

    def _tidy(self, morning: datetime) -> None:
        """Prune old jobs, and remove the scans of an old evening."""
        self.world.did("jobs", "prune", "--days", f"{KEPT_DAYS}")
        old = f"{morning.date() - timedelta(days=KEPT_DAYS + 1)}"
        for share in ("watched", "ward", "late"):
            shutil.rmtree(self._folder(share) / old, ignore_errors=True)

    def _holds(self, left: int) -> dict[str, Any]:
        """Sizes on the disk and in memory. left: open jobs."""
        record = found_record(self.world.output)
        assert record
        files = [path for path in record.rglob("*") if path.is_file()]
        return {
            "open": left,
            "jobs kept": len(self.world.rows("")),
            "queue KiB": self._queue_bytes() >> 10,
            "record KiB": sum(path.stat().st_size for path in files) >> 10,
            "record files": len(files),
            "parts": sum(path.name.endswith(".part") for path in self.world.output.rglob("*")),
            "memory MiB": self.services.memory(),
            "open files": self.services.open_files(),
        }

    def _queue_bytes(self) -> int:
        if self.server:
            with psycopg.connect(self.server.url) as connection:
                query = "SELECT pg_database_size(current_database())"
                return int(connection.execute(query).fetchall()[0][0])
        queue = Path(self.world.queue)
        return sum(
            path.stat().st_size for path in queue.parent.glob(f"{queue.name}*") if path.is_file()
        )

    def _outcome(self) -> dict[str, Any]:
        """Return what the record of the output folder states about the whole month."""
        written = Counter(
            entry["output"] for entry in recorded(self.world.output) if entry["status"] == "written"
        )
        twice = {name for name, count in written.items() if count > 1}
        in_hand = self.services.in_hand_at_kills()
        return {
            **{f"jobs {state}": count for state, count in self.outcomes.items()},
            "results": sum(1 for _ in self.world.output.rglob("*.nii")),
            "jobs in hand at kills": len(in_hand),
            "written twice": len(twice),
        }

    def _blame(self, evening: date, what: str, found: Sequence[str] | set[str]) -> None:
        if found:
            some = ", ".join(sorted(found)[:3])
            self.faults.append(f"{evening}: {len(found)} {what}: {some}")


def _mebibytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the jobs do not get on")
        time.sleep(0.2)


def run(folder: Path, trial: Trial, server: queue_postgres.Server | None) -> dict[str, Any]:
    """Figures of a month in a folder. This process has the month's clock."""
    world = QueueWorld(folder, server.url if server else None)
    try:
        return Month(world, trial, server).run()
    finally:
        world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--first", type=date.fromisoformat, default=date(2026, 10, 10))
    parser.add_argument("--postgresql", action="store_true")
    asked = parser.parse_args()
    if VARIABLE not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            variables = {**os.environ, **environment(Path(folder), ZONE)}
            words = [sys.executable, "-m", "benchmarks.simulated_month", *sys.argv[1:]]
            raise SystemExit(subprocess.run(words, env=variables, check=False).returncode)
    today = datetime.now().date()
    trial = Trial(asked.first, asked.nights, asked.studies, asked.kills)
    with ExitStack() as stack:
        server = stack.enter_context(queue_postgres.server()) if asked.postgresql else None
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        figures = run(Path(folder), trial, server)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known["postgresql" if asked.postgresql else "sqlite"] = {"date": f"{today}", **figures}
    RESULTS.write_text(json.dumps(known, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
