"""The translate command, ended by random signals at random moments, and what must hold then.

A series is one output folder: runs in it are killed until every study is recorded, and then one
run finishes. After each kill: every result that is there is whole and in the manifest, and no
record is ever lost. After a run that was left alone: no part is left, and it made exactly the rest.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.batch_world import scan, tiny_model
from support.io_files import unpacked
from support.processes import descendants, started
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.pipelines.results.record_folder import NAME, found_record

START = """
import sys
from cuda_cyclegan.pipelines.run import batch
batch.LAST_MOMENT = 300.0  # a busy machine may need more than a moment
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.pipelines import decisions
workers = int(sys.argv.pop(1))
if workers > 1:
    devices = tuple(Device("cpu", "fp32", ("fp32",), None, index) for index in range(workers))
    assert hasattr(decisions, "choose_devices"), "a name that nobody asks would change nothing"
    decisions.choose_devices = lambda *_: devices
from cuda_cyclegan.cli.app import main
main()
"""
"""The command; with several workers, in as many processes that each have a CPU for a card."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ORDERLY = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass
class Tally:
    """Counts of kills by outcome.

    whole_run, first_result: seconds of a run that is left alone. statuses: signals and exit
    statuses. recorded: kills by how many results were on record then. parts, unrecorded: what was
    there besides.
    """

    whole_run: float
    first_result: float
    kills: int = 0
    series: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    recorded: Counter[int] = field(default_factory=Counter[int])
    parts: int = 0
    unrecorded: int = 0
    seconds_to_end: list[float] = field(default_factory=list[float])


class Kills:
    """Small studies whose runs are killed. studies: more of them make a run longer."""

    def __init__(self, root: Path, studies: int, workers: int, seed: int) -> None:
        self._root = root
        self._inputs, self._output = root / "scans", root / "results"
        self._report = root / "report.json"
        self._model = tiny_model(root / "model.safetensors")
        self._workers = workers
        self._random = random.Random(seed)
        self.names = [f"{number:02}.nii.gz" for number in range(studies)]
        for number, name in enumerate(self.names):
            scan(self._inputs / name, number, (40, 36, 32))
        begin = time.time()
        self._finish(root / "untroubled")
        whole = time.time() - begin
        first = min(path.stat().st_mtime for path in (root / "untroubled").glob("*.nii.gz"))
        self.tally = Tally(whole, first - begin)
        self._expected = self._made(root / "untroubled")
        assert set(self._expected) == set(self.names)

    def run(self, kills: int) -> Tally:
        """Series after series, until so many runs were killed while they were under way."""
        while self.tally.kills < kills:
            self.tally.series += 1
            recorded = set[str]()
            while len(recorded) < len(self.names) and self.tally.kills < kills:
                recorded = self._killed(recorded)
            totals = self._finish(self._output)
            assert totals["up_to_date"] == len(recorded), (totals, recorded)
            assert totals["translated"] == len(self.names) - len(recorded), (totals, recorded)
            assert self._made(self._output) == self._expected
            assert self._parts() == []
            assert self._recorded() == set(self.names)
            shutil.rmtree(self._output)
            shutil.rmtree(self._output.with_name(f".{self._output.name}.cuda-cyclegan"))
        return self.tally

    def _killed(self, before: set[str]) -> set[str]:
        """Start a run and kill it; what is on record then."""
        number = self._random.choice(SIGNALS)
        unrecorded = set(self._made(self._output)) - self._recorded()
        with self._started(self._output) as process:
            has_begun = self._waited_for_results(process)
            if process.poll() is None:
                self.tally.kills += 1
                begin = time.perf_counter()
                self._send(process, number)
                _, errors = process.communicate(timeout=ENOUGH)
                self._wait_for_all()
                self.tally.seconds_to_end.append(time.perf_counter() - begin)
                self.tally.statuses[f"{number.name}: {process.returncode}"] += 1
                if has_begun and number in ORDERLY:
                    self._check_orderly_end(process.returncode, number, errors)
                    now = set(self._made(self._output)) - self._recorded()
                    assert now <= unrecorded, "an orderly stop left a result that is not on record"
            else:
                _, errors = process.communicate()
                assert process.returncode == 0, errors
        stored, recorded = self._made(self._output), self._recorded()
        assert before <= recorded, "a record was lost"
        assert recorded <= set(stored), "a result was recorded that is not there"
        assert set(stored) <= self._listed(), "a result is there that the manifest does not know"
        broken = [name for name, content in stored.items() if self._expected[name] != content]
        assert broken == [], "a result is not whole"
        self.tally.recorded[len(recorded)] += 1
        self.tally.unrecorded += len(set(stored) - recorded)
        self.tally.parts += len(self._parts())
        return recorded

    def _waited_for_results(self, process: "subprocess.Popen[str]") -> bool:
        """Wait for a moment; False if it is any before the first result, and True if it is after
        some result, perhaps while another is being stored.
        """
        kind = self._random.choices(("starting", "going on", "storing"), (1, 3, 3))[0]
        done = len(self._visible("*.nii.gz"))
        is_made = done == len(self.names)
        if is_made and self._random.random() < 0.5:
            process.wait(ENOUGH)  # or the record might never be complete, and nothing begin anew
            return False
        if kind == "starting" or is_made:
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._random.uniform(0, self.tally.first_result))
            return False
        results = done + self._random.randint(1, min(4, len(self.names) - done))
        while process.poll() is None and len(self._visible("*.nii.gz")) < results:
            time.sleep(0.002)
        while kind == "storing" and process.poll() is None and not self._visible("*.part"):
            time.sleep(0.0005)
        time.sleep(self._random.uniform(0, 0.01 if kind == "storing" else 0.2))
        return True

    def _visible(self, pattern: str) -> list[Path]:
        return list(self._output.glob(pattern))

    def _check_orderly_end(self, status: int, number: signal.Signals, errors: str) -> None:
        """Check the end after a signal that a run could act upon."""
        if self._recorded() < set(self.names):
            assert status == ORDERLY[number], errors
        else:  # nothing was left to stop, and Python itself may have been on its way out
            assert status in (0, ORDERLY[number], -number), errors
        assert "Traceback" not in errors, errors
        assert self._parts() == [], "an orderly stop left a part"

    def _send(self, process: "subprocess.Popen[str]", number: signal.Signals) -> None:
        """Ctrl-C reaches the whole group of a terminal, and SIGTERM may reach every process."""
        others = descendants(process.pid) if number == signal.SIGTERM else []
        if self._random.random() < 0.5:
            others = []
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
            return
        for victim in [process.pid, *others]:
            try:
                os.kill(victim, number)
            except ProcessLookupError:
                continue

    def _wait_for_all(self) -> None:
        """Workers notice by themselves that their holder is gone."""
        eventually(lambda: workers_of(self._root) == [])

    def _started(self, output: Path) -> "AbstractContextManager[subprocess.Popen[str]]":
        arguments = [self._inputs, "--model", self._model, "--output", output]
        arguments += ["--device", "cpu", "--report", self._report]
        return started(
            [sys.executable, "-c", START, str(self._workers), "translate", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # a shell's & ignores it
            env={**os.environ, MARK: str(self._root)},
        )

    def _finish(self, output: Path) -> dict[str, int]:
        self._report.unlink(missing_ok=True)  # which would be of the killed runs as well
        with self._started(output) as process:
            _, errors = process.communicate()
        assert process.returncode == 0, errors
        totals: dict[str, int] = json.loads(self._report.read_text())["totals"]
        self._report.unlink()
        return totals

    def _made(self, output: Path) -> dict[str, bytes]:
        return {path.name: unpacked(path) for path in output.glob("*.nii.gz")}

    def _parts(self) -> list[Path]:
        return [path for path in self._output.rglob("*") if path.name.endswith(".part")]

    def _entries(self) -> dict[str, str]:
        record = found_record(self._output)
        try:
            content = (record / NAME).read_text() if record else ""
        except FileNotFoundError:
            return {}
        entries: list[dict[str, Any]] = []
        for line in content[: content.rfind("\n") + 1].splitlines():
            with suppress(ValueError):  # what a killed run left of a line is a line of its own
                entries.append(json.loads(line))
        return {entry["output"]: entry["status"] for entry in entries}

    def _listed(self) -> set[str]:
        return set(self._entries())

    def _recorded(self) -> set[str]:
        return {name for name, status in self._entries().items() if status == "written"}


MARK = "CUDA_CYCLEGAN_TEST_OF_KILLS"
"""An environment variable that tells all processes of a run."""


def workers_of(root: Path) -> list[int]:
    """Processes with the mark of this root that still run."""
    wanted = f"{MARK}={root}".encode()
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:
            continue
    return found
