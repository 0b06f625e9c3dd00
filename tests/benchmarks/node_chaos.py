"""Orthanc pushes series to a node and gets results back, while all that takes part is ended.

Run in tests/: `python -m benchmarks.node_chaos [--postgresql | --dicomweb | --moved]`; with the
first, the queue is on a server, which is killed as well; with the second, the node fetches the
series and stores the results by DICOMweb, and with the third, it fetches them by C-MOVE; Orthanc is
killed then. `--commitment` requests storage commitment of the results, and `--seed` draws other
moments. The node keeps an audit trail, whose messages are counted. The figures go into
results/node_chaos.json, whose name then ends in _server, _web, _moved or _committed.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date
from http.client import HTTPException
from pathlib import Path
from typing import Any

from support import queue_postgres
from support.dicom_judges import conformance_errors
from support.dicom_pacs import Pacs, orthanc, web_options
from support.node_world import NodeWorld, phantom
from support.ports import reserved_port
from support.queue_world import children

from cuda_cyclegan.pipelines.node.audit_files import trail_files

RESULTS = Path(__file__).parent / "results" / "node_chaos.json"
PATIENCE = 3600.0
ANYONE = {"DicomAlwaysAllowFind": True, "DicomAlwaysAllowMove": True}
PUSHED_TOGETHER = 10
"""Series of one request to Orthanc, and so of one association."""


@dataclass(frozen=True)
class Trial:
    """Size of the trial, and its disturbances."""

    series: int = 1000
    slices: int = 8
    associations: int = 4
    kills: int = 50
    restarts: int = 2
    outages: int = 0
    """Number of times that the queue's server is killed."""
    outage_seconds: float = 6.0
    judged: int = 100
    """Derived series of which dciodvfy sees an object."""
    over_the_web: bool = False
    """Whether the node fetches and stores by DICOMweb."""
    moves: bool = False
    """Whether the node fetches by C-MOVE."""
    commits: bool = False
    """Whether results are sent only by Orthanc's report of storage commitment."""
    seed: int = 1
    """Seed of the order of events, and of their moments."""

    @property
    def fetches(self) -> bool:
        """Whether the node fetches the series; Orthanc is killed, not restarted, then."""
        return self.over_the_web or self.moves


@dataclass
class Supervised:
    """A node and a worker that are started again when they die, as systemd would."""

    world: NodeWorld

    def __post_init__(self) -> None:
        self.node, self.worker = self.world.start(), self.world.worker()
        self.killed: Counter[str] = Counter()

    def kill(self, moments: random.Random) -> None:
        """Kill the node, or what works."""
        found = children(self.worker.pid)
        if found and moments.random() < 0.5:
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
            self.killed["worker"] += 1
            return
        self.node.kill()
        self.node.wait()
        self.killed["node"] += 1
        self.node = self.world.start()


def run(folder: Path, trial: Trial, server: queue_postgres.Server | None = None) -> dict[str, Any]:
    """Figures of one run; kills are spread over it evenly. server: that has the queue."""
    options = web_options() if trial.over_the_web else ANYONE if trial.moves else {}
    with reserved_port() as port, orthanc(folder / "orthanc", {"T1TOT2": port}, **options) as pacs:
        queue = server.url if server else ""
        world = NodeWorld(folder, pacs.dicom_port, port=port, queue=queue)
        world.options = ("--audit", str(folder / "audit"))
        web = f"http://127.0.0.1:{pacs.http_port}/dicom-web"
        lines = ['commitment = "20 s"'] * trial.commits
        if trial.fetches:
            source = web if trial.over_the_web else f"ORTHANC@127.0.0.1:{pacs.dicom_port}"
            lines += [
                f'source = "{source}"',
                'source-query = "StudyDate=19000101-"',
                'poll = "2 s"',
            ]
        destination = web if trial.over_the_web else ""
        world.configure("\n".join(lines), callers="ORTHANC@127.0.0.1", destination=destination)
        try:
            return _run(world, pacs, trial, server)
        finally:
            world.close()


def _run(
    world: NodeWorld, pacs: Pacs, trial: Trial, server: queue_postgres.Server | None
) -> dict[str, Any]:
    for number in range(trial.series):
        pacs_files = phantom(number, trial.slices).write(world.folder / "sources" / f"{number}")
        for file in pacs_files:
            pacs.post("/instances", file.read_bytes())
    found = Supervised(world)
    begin = time.monotonic()
    pushing = [
        threading.Thread(target=push, args=(pacs, names), daemon=True)
        for names in shares_of(sorted(pacs.ask("/series")), trial.associations)
        if not trial.fetches
    ]
    for thread in pushing:
        thread.start()
    events = ["kill"] * trial.kills + ["restart"] * trial.restarts + ["outage"] * trial.outages
    moments, back = random.Random(trial.seed), list[float]()
    moments.shuffle(events)
    for number, event in enumerate(events, 1):
        due = trial.series * number / (len(events) + 1)
        wait_for(lambda due=due: derived_series(pacs, trial) >= due, world.said)
        if event != "outage":
            time.sleep(moments.uniform(0, 0.5))
        if event == "kill":
            found.kill(moments)
        elif event == "outage":
            assert server
            back.append(outage(server, found, pacs, trial, moments))
        else:
            if trial.fetches:
                pacs.kill()
            else:
                pacs.stop()
            time.sleep(1)
            pacs.start(world.folder / "orthanc")
    for thread in pushing:
        thread.join()
    wait_for(lambda: derived_series(pacs, trial) >= trial.series, world.said)
    seconds = time.monotonic() - begin
    wait_for(lambda: world.states() == {"sent": trial.series}, world.said)
    return {
        "series": trial.series,
        "images each": trial.slices,
        "associations": trial.associations,
        "seed": trial.seed,
        "kills": dict(found.killed),
        f"{'kills' if trial.fetches else 'restarts'} of Orthanc": trial.restarts,
        **(_of_outages(world, back) if back else {}),
        "seconds": round(seconds, 1),
        **_outcome(world, pacs, trial),
    }


def push(pacs: Pacs, names: Sequence[str]) -> None:
    """Have Orthanc send series, again and again until it says that all were taken."""
    for start in range(0, len(names), PUSHED_TOGETHER):
        some = list(names[start : start + PUSHED_TOGETHER])
        while True:
            try:
                answer = pacs.post("/modalities/T1TOT2/store", {"Resources": some, "Timeout": 60})
                if not answer["FailedInstancesCount"]:
                    break
            except (HTTPException, OSError, ValueError):
                pass
            time.sleep(0.2)


def shares_of(names: Sequence[str], count: int) -> list[Sequence[str]]:
    return [names[at::count] for at in range(count)]


def derived_series(pacs: Pacs, trial: Trial) -> int:
    """Series beside those that were pushed."""
    try:
        return int(pacs.ask("/statistics")["CountSeries"]) - trial.series
    except (HTTPException, OSError):
        return -1


def outage(
    server: queue_postgres.Server,
    supervised: Supervised,
    pacs: Pacs,
    trial: Trial,
    moments: random.Random,
) -> float:
    """Kill the server, and the node or a worker meanwhile; seconds until a result comes again."""
    server.kill()
    time.sleep(trial.outage_seconds / 2)
    supervised.kill(moments)
    time.sleep(moments.uniform(0, trial.outage_seconds))
    before = derived_series(pacs, trial)
    server.start()
    begin = time.monotonic()
    goal = min(before, trial.series - 1)
    wait_for(lambda: derived_series(pacs, trial) > goal, supervised.world.said)
    return round(time.monotonic() - begin, 1)


def _of_outages(world: NodeWorld, back: Sequence[float]) -> dict[str, Any]:
    return {
        "kills of the database": len(back),
        "seconds until the next result, longest": max(back),
        "sentences about it": world.said().count("does not answer"),
    }


def _outcome(world: NodeWorld, pacs: Pacs, trial: Trial) -> dict[str, Any]:
    held = pacs.series_by_study()
    wanted = {phantom(number).study: phantom(number).series for number in range(trial.series)}
    derived = {
        study: [count for uid, count in series.items() if uid != wanted[study]]
        for study, series in held.items()
    }
    sampled = list(world.state.glob("results/*/*/*/*/*/0001.dcm"))[: trial.judged]
    return {
        "derived series": sum(map(len, derived.values())),
        "studies without one": sum(not counts for counts in derived.values()),
        "studies with several": sum(len(counts) > 1 for counts in derived.values()),
        "derived series of another length": sum(
            count != trial.slices for counts in derived.values() for count in counts
        ),
        "judged by dciodvfy": len(sampled),
        "with errors": sum(bool(conformance_errors(path)) for path in sampled),
        "audit messages": dict(audited(world.folder / "audit")),
        "unfinished files": len(list((world.state / "incoming").iterdir())),
    }


def audited(folder: Path) -> Counter[str]:
    """Messages of an audit trail by their event and its action."""
    events = (
        json.loads(line)["EventIdentification"]
        for file in trail_files(folder)
        for line in file.read_text().splitlines()
    )
    return Counter(f"{one['EventID']['originalText']} {one['EventActionCode']}" for one in events)


def wait_for(condition: Callable[[], bool], evidence: Callable[[], object] = lambda: "") -> None:
    """Wait as `eventually` does, for as long as a run of hours may take."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the series do not get on\n{evidence()}")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--dicomweb", action="store_true")
    parser.add_argument("--moved", action="store_true")
    parser.add_argument("--commitment", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outages", type=int, default=10)
    asked = parser.parse_args()
    trial = Trial(
        series=asked.series,
        kills=asked.kills,
        restarts=asked.restarts,
        outages=asked.outages if asked.postgresql else 0,
        over_the_web=asked.dicomweb,
        moves=asked.moved,
        commits=asked.commitment,
        seed=asked.seed,
    )
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(queue_postgres.server()) if asked.postgresql else None
        figures = run(Path(folder), trial, server)
    kinds = {
        "server": asked.postgresql,
        "web": asked.dicomweb,
        "moved": asked.moved,
        "committed": asked.commitment,
    }
    name = "_".join([RESULTS.stem, *(kind for kind, is_asked in kinds.items() if is_asked)])
    RESULTS.with_stem(name).write_text(
        json.dumps({"date": f"{date.today()}", **figures}, indent=2) + "\n"
    )
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
