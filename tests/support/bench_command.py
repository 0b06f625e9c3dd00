"""The translate command under observation: its report, its rate, and what its process holds."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from support.bench_marks import marked, read_marks

from cuda_cyclegan.engine.probe.gpus import cuda_devices

PACKAGES = ("numpy", "nibabel", "isal", "monai", "torch", "nvidia-cudnn-frontend", "cuda-bindings")


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory that the process holds at a time.

    device: bytes in use on all cards together. results: files that the output folder shows.
    """

    seconds: float
    results: int
    resident: int
    descriptors: int
    threads: int
    device: int


@dataclass(frozen=True, slots=True)
class Observed:
    """A run of the command.

    seconds: from its start to its end. spans: those of its trace, with their tracks' names.
    marks: of each process, see `read_marks`.
    """

    seconds: float
    report: dict[str, Any]
    spans: list[dict[str, Any]]
    samples: list[Sample]
    device_before: int
    marks: list[dict[str, float]]

    def ends(self) -> list[float]:
        """Return when each study was stored, in seconds from the first work on one."""
        writes = [span for span in self.spans if span["name"] == "write"]
        return sorted((span["ts"] + span["dur"]) / 1e6 for span in writes)

    def steady(self, edge: int) -> float:
        """Studies a second between the ends of two studies so many from the first and the last."""
        ends = self.ends()
        first, last = edge - 1, len(ends) - 1 - edge
        if last <= first:
            raise SystemExit(f"{len(ends)} studies are too few for a steady rate")
        return (last - first) / (ends[last] - ends[first])


def translate(
    scans: Path, model: Path, output: Path, *options: str, every: float = 0.05
) -> Observed:
    """Run the command to its end; a failed study or exit ends the benchmark.

    Frameworks are hidden from it, as where it is installed without any; its byte code is kept for
    the next run, as where it is installed.
    """
    report, trace, log = (output.with_suffix(f".{kind}.json") for kind in ("r", "t", "log"))
    marks = output.with_suffix(".marks")
    marks.unlink(missing_ok=True)
    hidden = output.parent / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "torch.py").write_text("raise ImportError('hidden from the benchmark')\n")
    environment = marked(marks)
    environment["PYTHONPYCACHEPREFIX"] = str(output.parent / "compiled")
    environment["PYTHONDONTWRITEBYTECODE"] = ""
    environment["PYTHONPATH"] = os.pathsep.join([str(hidden), environment["PYTHONPATH"]])
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(scans), "--model"]
    command += [str(model), "--output", str(output), "--report", str(report)]
    command += ["--trace", str(trace), "--quiet", *options]
    report.unlink(missing_ok=True)  # of another batch it would not be replaced
    before, begin = device_bytes(), time.monotonic()
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        samples = list(_samples(process, output, begin, every))
    seconds = time.monotonic() - begin
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {log.read_text()}")
    content = json.loads(report.read_text())
    if content["totals"]["translated"] != content["totals"]["studies"]:
        raise SystemExit(f"not all studies were translated: {content['totals']}")
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [{**event, "track": tracks[event["tid"]]} for event in events if event["ph"] == "X"]
    return Observed(seconds, content, spans, samples, before, read_marks(marks, begin))


def _samples(
    process: "subprocess.Popen[bytes]", output: Path, begin: float, every: float
) -> Iterator[Sample]:
    place = Path(f"/proc/{process.pid}")
    while process.poll() is None:
        try:
            fields = dict(
                line.split(":", 1) for line in (place / "status").read_text().splitlines()
            )
            descriptors = len(list((place / "fd").iterdir()))
        except OSError:
            continue
        if "VmRSS" in fields:
            yield Sample(
                time.monotonic() - begin,
                len(list(output.glob("[!.]*"))),
                int(fields["VmRSS"].split()[0]) * 1024,
                descriptors,
                int(fields["Threads"]),
                device_bytes(),
            )
        with suppress(subprocess.TimeoutExpired):
            process.wait(every)


def device_bytes() -> int:
    """Bytes in use on all cards, by whomever; 0 without a card."""
    devices = cuda_devices()
    return sum(d.total_bytes - d.free_bytes for d in devices if d.free_bytes is not None)


def extents(text: str) -> tuple[int, int, int]:
    """Parse extents of options such as 256x256x180."""
    a, b, c = map(int, text.split("x"))
    return a, b, c


def options(name: str, about: str | None) -> argparse.ArgumentParser:
    """The options that all these benchmarks share; results go to results/NAME.json."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shape", type=extents, default=(256, 256, 180))
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--patch", type=extents, default=(128, 128, 128))
    parser.add_argument("--folder", type=Path, help="for scans and results, on a large disk")
    results = Path(__file__).parents[1] / "benchmarks" / "results"
    parser.add_argument("--output", type=Path, default=results / f"{name}.json")
    return parser


def keep(record: dict[str, Any], output: Path) -> None:
    """Print a record and store it, with the machine's name and versions."""
    devices = cuda_devices()
    versions = {name: found for name in PACKAGES if (found := _version(name))}
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "card": devices[0].name if devices else None,
        "driver": devices[0].driver if devices else None,
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
        **record,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2), flush=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
