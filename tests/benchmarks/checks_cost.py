"""Cost of --cycle-check, --spread 8 and `evaluate`, compared with a plain translation.

    PYTHONPATH=tests python tests/benchmarks/checks_cost.py cpu cuda

A random pair: on the CPU width 8 and 3 blocks on patches of 48^3 of scans of 64x64x64, on a card
width 32 and 9 blocks on patches of 128^3 of scans of 256x256x180. All ways in alternation; medians
over all rounds but the first, which opens files and searches for plans.

Network seconds are those in which any network computes: two that share a card for a while are
not counted twice, as they are in the studies' rows, whose seconds stand beside. Between results:
from the first one to the last, by their number less one, so without what opens. Core seconds are
those of the process, which other processes of a busy machine hardly change. Parts of other
devices stay in the file.
"""

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from support.batch_world import with_card
from support.bench_batches import WINDOW, make_scans, write_model

import cuda_cyclegan as cc
from cuda_cyclegan.engine.cores import usable_cores
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.probe.gpus import cuda_devices
from cuda_cyclegan.pipelines.evaluation.evaluation import evaluate
from cuda_cyclegan.pipelines.evaluation.pairs import Sources, find_pairs
from cuda_cyclegan.pipelines.evaluation.protocols import general
from cuda_cyclegan.pipelines.events import Event, Worked

RESULT = Path(__file__).parent / "results" / "checks_cost.json"


@dataclass(frozen=True, slots=True)
class Case:
    width: int
    blocks: int
    edge: int
    shape: Triple
    studies: int
    rounds: int


CASES = {
    "cpu": Case(8, 3, 48, (64, 64, 64), studies=2, rounds=3),
    "cuda": Case(32, 9, 128, (256, 256, 180), studies=6, rounds=2),
}


def pair_of_models(case: Case, folder: Path) -> tuple[Path, Path]:
    """A random generator, and one that leads back by its card."""
    forth = write_model(folder / "forth", case.width, case.blocks, (case.edge,) * 3, WINDOW)
    back = Path(shutil.copy(forth, folder / "back"))
    channels = {"input_channels": ("T2",), "output_channels": ("T1",)}
    return forth, with_card(back, source="T2", target="T1", **channels)


class Heard:
    """Events that a batch reports."""

    def __init__(self) -> None:
        self.computing: list[tuple[float, float]] = []
        self.done: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Worked) and event.span.stage == "infer":
            self.computing.append((event.span.start, event.span.stop))
        if isinstance(event, cc.StudyDone):
            self.done.append(time.perf_counter())

    @property
    def network_seconds(self) -> float:
        """Return the seconds in which at least one network computed."""
        seconds, reached = 0.0, 0.0
        for start, stop in sorted(self.computing):
            seconds += max(0.0, stop - max(start, reached))
            reached = max(reached, stop)
        return seconds

    @property
    def between_results(self) -> float:
        return (self.done[-1] - self.done[0]) / max(len(self.done) - 1, 1)


def measured(device: str, case: Case, folder: Path) -> dict[str, Any]:
    make_scans(folder / "scans", case.studies, case.shape, ".nii")
    forth, back = pair_of_models(case, folder)
    ways = {
        "plain": cc.TranslateOptions(),
        "cycle-check": cc.TranslateOptions(cycle_check=cc.CycleCheck(str(back))),
        "spread 8": cc.TranslateOptions(spread=8),
    }
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for turn in range(case.rounds):
        for way, options in ways.items():
            shutil.rmtree(folder / way, ignore_errors=True)
            begun, heard = time.process_time(), Heard()
            report = cc.translate_folder(
                folder / "scans",
                forth,
                folder / way,
                device=device,
                options=options,
                on_event=heard,
            )
            if report.failures:
                raise SystemExit(f"{way}: {[row.failure for row in report.failures]}")
            print(f"{device}, {way}: {report.seconds:.2f} s", flush=True)
            if turn:
                stages = [row.stages for row in report.studies]
                runs[way].append(
                    {
                        "network_seconds": heard.network_seconds / case.studies,
                        "network_seconds_of_rows": median(stage["infer"] for stage in stages),
                        "prepare_seconds": median(stage["prepare"] for stage in stages),
                        "finish_seconds": median(stage["finish"] for stage in stages),
                        "seconds_between_results": heard.between_results,
                        "batch_seconds_a_study": report.seconds / case.studies,
                        "core_seconds_a_study": (time.process_time() - begun) / case.studies,
                    }
                )
    found = {
        way: {name: round(median(run[name] for run in done), 4) for name in done[0]}
        for way, done in runs.items()
    }
    plain = dict(found["plain"])
    for each in found.values():
        for name in ("network_seconds", "seconds_between_results", "core_seconds_a_study"):
            each[f"{name}_by_plain"] = round(each[name] / plain[name], 3)
    if device != "cpu":  # `evaluate` knows no card
        return found
    return found | {"evaluate": evaluation_seconds(folder / "plain", folder / "scans")}


def evaluation_seconds(results: Path, truth: Path) -> dict[str, float]:
    """Return the seconds per study on the CPU: those of all studies together, as the command runs
    them, divided by their number.
    """
    pairs = find_pairs(Sources(results, truth, None, None)).pairs
    runs = [evaluate(pairs, general(None), untold, any_truth=True) for _ in range(3)]
    if any(row.status != "evaluated" for run in runs for row in run.rows):
        raise SystemExit([row.reason for run in runs for row in run.rows])
    return {"seconds_a_study": round(median(run.seconds for run in runs) / len(pairs), 4)}


def untold(_done: int, _all: int) -> None:
    """Ignore the progress."""


def versions() -> dict[str, str]:
    found = dict[str, str]()
    for name in ("onnxruntime", "onnxruntime-gpu", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devices", nargs="+", choices=[*CASES])
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    made: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for device in asked.devices:
        with tempfile.TemporaryDirectory() as folder:
            found = measured(device, CASES[device], Path(folder))
        made[device] = {"conditions": conditions(device), **found}
        asked.output.write_text(json.dumps(made, indent=2) + "\n")
        print(json.dumps({device: made[device]}, indent=2), flush=True)


def conditions(device: str) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": usable_cores(),
        "cards": [card.name for card in cuda_devices()] if device == "cuda" else [],
        "packages": versions(),
    }


if __name__ == "__main__":
    main()
