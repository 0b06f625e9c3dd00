"""Gain from reading and writing while the network computes, on a machine without a GPU.

    PYTHONPATH=tests python tests/benchmarks/batch_overlap.py [--studies N]

Twice the same batch of .nii.gz studies, one after another and overlapped, in alternation:
"card" puts a stand-in in the network's place that sleeps, as a processor does while a card
computes; "cpu" runs a tiny network on this machine's cores, which then have little time to spare.
The record tells wall seconds, how many stages ran at a time, and the network's share of the wall.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

import nibabel
import numpy as np
from support.batches import batch_here
from support.fake_networks import networks_opened_by
from support.numerics_models import CARD

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.generator import PatchGenerator
from cuda_cyclegan.engine.model.intensity_maps import Percentiles
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import FloatArray, Tanh
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines.report.report import Use
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe
from cuda_cyclegan.pipelines.results.resume import PlannedStudy
from cuda_cyclegan.pipelines.run.batch import run_batch
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.source import JobKind
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.timeline import Timeline

SHAPE = (192, 192, 128)
PATCH = (96, 96, 96)
SECONDS_A_PATCH = 0.025
ROUNDS = 3
PLENTY = 8 << 30
SUMMED = ("wall", "busy", "computing")
RESULT = Path(__file__).parent / "results" / "batch_overlap.json"


class Card:
    """Stand-in for a GPU: takes time but no processor."""

    graph = Graph(1, (Node("tanh", Tanh(), (INPUT,)),))
    device = "stand-in for a card"

    def __call__(self, patches: FloatArray) -> FloatArray:
        time.sleep(SECONDS_A_PATCH)
        return patches


@dataclass(frozen=True)
class Case:
    """A network and what runs it."""

    network: Network
    threads: int | None

    @contextmanager
    def opened(self) -> Iterator[PatchGenerator]:
        if self.threads is None:
            yield Card()
            return
        with open_cpu_generator(self.network, self.threads) as generator:
            yield generator


def small_network() -> Network:
    graph = build(ResNetSpec(1, 1, 2, 0))
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
        for name, shape in graph.weight_shapes()
    }
    return Network(graph, weights)


def cases() -> dict[str, Case]:
    cores = len(os.sched_getaffinity(0))
    return {
        "card": Case(Network(Card.graph, {}), None),
        f"cpu, {cores} threads": Case(small_network(), cores),
    }


def model_of(network: Network) -> Model:
    percentiles = Percentiles(1, 99)
    card = replace(
        CARD, axes="SPL", patch=PATCH, intensity_in=percentiles, intensity_out=percentiles
    )
    empty = np.empty(0, np.float32)
    return Model(card, network, empty, empty, "")


def make_scan(path: Path, seed: int) -> None:
    i, j, k = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    tissue = 900 * np.sin(i / 60) * np.cos(j / 70) * np.sin(k / 50)
    noise = np.random.default_rng(seed).integers(-12, 12, SHAPE)
    nibabel.Nifti1Image((tissue + noise).astype(np.int16), np.eye(4)).to_filename(path)


def run(case: Case, scans: list[Path], output: Path, *, overlapped: bool) -> Use:
    """All studies in one batch, or each in one of its own."""
    if not overlapped and len(scans) > 1:
        uses = [run(case, [scan], output, overlapped=False) for scan in scans]
        return Use(*(sum(getattr(use, name) for use in uses) for name in SUMMED), devices=1)
    timeline = Timeline(time.perf_counter())
    planned = [
        PlannedStudy(
            Study(PurePosixPath(scan.name), (scan,), "nifti"),
            output / scan.name,
            "translate",
            replaces=True,
        )
        for scan in scans
    ]
    with Manifest(output) as manifest:
        model = model_of(case.network)
        kind = JobKind(model, TranslateOptions(PATCH, precision="fp32").resolved(), Recipe("", ""))
        networks = networks_opened_by(lambda *_: case.opened())
        batch = batch_here(kind, planned, manifest, networks, Concurrency(PLENTY))
        rows = run_batch(planned, batch, timeline.handle)
    if failures := [row.failure for row in rows if row.failure]:
        raise RuntimeError(failures)
    return timeline.use()


def measure(folder: Path, studies: int) -> dict[str, Any]:
    scans = [folder / f"{index}.nii.gz" for index in range(studies)]
    for seed, scan in enumerate(scans):
        make_scan(scan, seed)
    measured: dict[str, Any] = {}
    for name, case in cases().items():
        uses: dict[bool, list[Use]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for overlapped, seen in uses.items():
                seen.append(run(case, scans, folder / "out", overlapped=overlapped))
        alone, beside = (
            {
                "wall_seconds": round(median(use.wall for use in seen), 2),
                "stages_at_a_time": round(median(use.overlap for use in seen), 2),
                "computing_share": round(median(use.computing_share for use in seen), 2),
            }
            for seen in uses.values()
        )
        gain = round(alone["wall_seconds"] / beside["wall_seconds"], 2)
        measured[name] = {"one_after_another": alone, "overlapped": beside, "times_faster": gain}
        print(name, measured[name], flush=True)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), arguments.studies)
    record = {
        "what": "a batch of .nii.gz studies, its stages one after another and at the same time",
        "volume": SHAPE,
        "patch": PATCH,
        "studies": arguments.studies,
        "rounds": ROUNDS,
        "seconds_a_tile_of_the_stand_in": SECONDS_A_PATCH,
        "cases": measured,
        "load_when_done": round(os.getloadavg()[0], 1),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.machine(),
        "versions": {n: version(n) for n in ("isal", "nibabel", "numpy", "onnxruntime")}
        | {"python": platform.python_version()},
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
