"""Whole commands on the CPU by number of cores: seconds, their stages, and the serial part.

    PYTHONPATH=tests python tests/benchmarks/cpu_cores.py
        [--cores 16,8,4,2,1] [--networks ResNet,U-Net] [--inference volume] [--shape 192x192x128]
        [--seconds 200] [--rounds 3] [--output FILE.json]

One int16 scan in .nii.gz, a file that is made here. Each command may run on so many cores, one of
each physical core first, and its network uses as many threads. The commands take turns, those of
most cores first, and the fastest of each is kept. A command that would exceed the seconds of the
benchmark is omitted: half the cores are expected to take twice as long. The serial part is that of
Amdahl's law, seconds = serial + divided / cores, fitted by least squares of relative errors.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.cpu_against_rivals import processor
from support.bench_batches import make_scans, write_generator
from support.bench_command import extents, keep
from support.bench_marks import marked, read_marks

from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, UNetSpec

RESULT = Path(__file__).parent / "results" / "cpu_cores.json"
NETWORKS: Mapping[str, tuple[Spec, int]] = {
    "ResNet": (ResNetSpec(1, 1, 32, 9), 64),
    "U-Net": (UNetSpec(1, 1, 32, 5), 96),
}
"""Generators, and the extent of their patches."""

STAGES = ("read", "prepare", "infer", "blend", "finish", "write")


@dataclass(frozen=True)
class Run:
    """A command. seconds: from its start to its end. cpu_seconds: of all cores together.

    start: until the inference of the study begins. compile: of the network, wherever it is. end:
    from the study's inference to the end of the process. stages: those of the report.
    """

    cores: int
    seconds: float
    cpu_seconds: float
    start: float
    compile: float
    end: float
    stages: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def idle_seconds(self) -> float:
        """Seconds of all cores together without work of this command."""
        return self.cores * self.seconds - self.cpu_seconds


def run(root: Path, name: str, cores: Sequence[int], inference: str) -> Run:
    marks, report = root / "marks", root / "report.json"
    for file in (marks, report):
        file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(root / "scans"), "--quiet"]
    command += ["--model", str(root / f"{name}.safetensors"), "--output", str(root / "results")]
    command += ["--device", "cpu", "--threads", str(len(cores)), "--inference", inference]
    command += ["--overwrite", "--report", str(report)]
    environment = {
        **marked(marks),
        "XDG_CACHE_HOME": str(root / "cache"),
        "PYTHONPYCACHEPREFIX": str(root / "compiled"),  # modules as pip leaves them
        "PYTHONDONTWRITEBYTECODE": "",
    }
    allowed = os.sched_getaffinity(0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.sched_setaffinity(0, cores)
    try:
        begin = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        seconds = time.monotonic() - begin
    finally:
        os.sched_setaffinity(0, allowed)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    [when, *_] = read_marks(marks, begin)
    [study] = json.loads(report.read_text())["studies"]
    return Run(
        len(cores),
        round(seconds, 3),
        round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        when["first study begun"],
        round(when.get("network compiled", 0) - when.get("network to be compiled", 0), 3),
        round(seconds - when["last study computed"], 3),
        {stage: round(spent, 3) for stage, spent in study["stages"].items()},
    )


def serial_part(cores: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return the seconds that more cores do not shorten; None for fewer than two commands."""
    if len(cores) < 2:
        return None
    spent = np.array(seconds)
    terms = np.stack([np.ones(len(cores)), 1 / np.array(cores)], axis=1)
    [serial, _], *_ = np.linalg.lstsq(terms / spent[:, None], np.ones(len(cores)))
    return round(float(serial), 2)


def cores_in_order() -> list[int]:
    """Return the cores of this process, the first thread of each physical core first."""

    def order(core: int) -> tuple[int, int]:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            first = siblings.read_text().replace("-", ",").split(",")[0]
        except OSError:
            return 0, core
        return int(int(first) != core), core

    return sorted(os.sched_getaffinity(0), key=order)


def measured(asked: argparse.Namespace, root: Path) -> dict[str, list[Run]]:
    """Return the fastest command of each network and number of cores, by rising cores."""
    deadline, available = time.monotonic() + asked.seconds, cores_in_order()
    counts = sorted((count for count in asked.cores if count <= len(available)), reverse=True)
    for name in asked.networks:
        spec, edge = NETWORKS[name]
        path = root / f"{name}.safetensors"
        write_generator(path, spec, (edge, edge, edge), inference=asked.inference)
    make_scans(root / "scans", 1, asked.shape, ".nii.gz")
    run(root, asked.networks[-1], available, asked.inference)  # loads what later ones find cached
    fastest: dict[str, dict[int, Run]] = {name: {} for name in asked.networks}
    for count, name in [*product(counts, asked.networks)] * asked.rounds:
        known = fastest[name]
        if time.monotonic() + expected_seconds([*known.values()], count) > deadline:
            print(f"omitted, as the time is over: {name} on {count} cores", flush=True)
            continue
        new = run(root, name, available[:count], asked.inference)
        print(f"{name} on {count} cores: {new.seconds:.2f} s", flush=True)
        known[count] = min(new, known.get(count, new), key=lambda one: one.seconds)
    return {name: [runs[count] for count in sorted(runs)] for name, runs in fastest.items()}


def expected_seconds(known: Sequence[Run], cores: int) -> float:
    """Return how long a command may take, by the one with the nearest number of cores so far."""
    if not known:
        return 0.0
    nearest = min(known, key=lambda one: abs(one.cores - cores))
    return nearest.seconds * max(nearest.cores / cores, 1)


def table(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield a line per command, and the serial parts of each network."""
    heads = ["network", "cores", "command", "of 4 cores", "start", "compiling", *STAGES]
    heads += ["after inference", "processor time", "idle"]
    yield f"| {' | '.join(heads)} |"
    yield "| --- " * len(heads) + "|"
    for name, each in runs.items():
        of_four = next((one.seconds for one in each if one.cores == 4), None)
        for one in each:
            share = f"{one.seconds / of_four:.2f}" if of_four else ""
            spent = [one.start, one.compile, *(one.stages.get(stage, 0.0) for stage in STAGES)]
            spent += [one.end, one.cpu_seconds, one.idle_seconds]
            cells = [
                name,
                str(one.cores),
                f"{one.seconds:.2f}",
                share,
                *(f"{s:.2f}" for s in spent),
            ]
            yield f"| {' | '.join(cells)} |"
    for name, each in runs.items():
        cores = [one.cores for one in each]
        whole = serial_part(cores, [one.seconds for one in each])
        inference = serial_part(cores, [one.stages["infer"] for one in each])
        yield f"{name}: serial part {whole} s of a command, {inference} s of its inference"


def numbers(text: str) -> list[int]:
    return [*map(int, text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", type=numbers, default=[16, 8, 4, 2, 1])
    parser.add_argument("--networks", type=lambda text: text.split(","), default=[*NETWORKS])
    parser.add_argument("--inference", choices=("patches", "volume"), default="patches")
    parser.add_argument("--shape", type=extents, default=(192, 192, 128))
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        runs = measured(asked, Path(folder))
    content: dict[str, Any] = {
        "what": (__doc__ or "").splitlines()[0],
        "moment": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "libraries": {name: version(name) for name in ("openvino", "onnxruntime")},
        "volume": asked.shape,
        "inference": asked.inference,
        "networks": {name: [asdict(one) for one in each] for name, each in runs.items()},
    }
    keep(content, asked.output)
    for line in table(runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
