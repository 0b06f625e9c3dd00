"""A batch on the card: what copying and blending cost, and how much of the time it computes.

    python tests/benchmarks/batch_on_a_card.py [--studies N] [--suffix .nii.gz]

Studies of 256x256x180 int16, a generator of width 32 with 9 blocks, patches of 128^3, overlap 0.25.
"""

import argparse
import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path, PurePosixPath

import nibabel
import numpy as np

from cuda_cyclegan.engine.architectures import ResNetSpec, build
from cuda_cyclegan.engine.card import ModelCard, Percentiles, Provenance, Reference
from cuda_cyclegan.engine.devices import choose_device, open_generator
from cuda_cyclegan.engine.graph import Network
from cuda_cyclegan.engine.model import Model
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines.batch import run_batch
from cuda_cyclegan.pipelines.conveyor import Conveyor
from cuda_cyclegan.pipelines.manifest import Manifest, Recipe
from cuda_cyclegan.pipelines.plan import PlannedStudy
from cuda_cyclegan.pipelines.settings import TranslateSettings
from cuda_cyclegan.pipelines.stations import Task
from cuda_cyclegan.pipelines.storing import Store
from cuda_cyclegan.pipelines.timeline import Timeline
from cuda_cyclegan.pipelines.translate import lanes_of

SHAPE, PATCH = (256, 256, 180), (128, 128, 128)


def model() -> Model:
    spec = ResNetSpec(1, 1, 32, 9)
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, 1 / np.sqrt(max(1, np.prod(shape[1:]))), shape).astype(np.float32)
        for name, shape in build(spec).weight_shapes()
    }
    card = ModelCard(
        "bench", spec, "T1", "T2", ("T1",), ("T2",), "RAS", None, PATCH, Percentiles(1, 99),
        Percentiles(1, 99), "edge", Provenance("none", "", "none", "bench"),
        Reference("", "", "cuda-cyclegan"),
    )  # fmt: skip
    empty = np.empty(0, np.float32)
    return Model(card, Network(build(spec), weights), empty, empty, "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--suffix", default=".nii.gz")
    asked = parser.parse_args()
    bench, device = model(), choose_device("cuda")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        scans = []
        i, j, k = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
        tissue = 900 * np.sin(i / 60) * np.cos(j / 70) * np.sin(k / 50)
        for seed in range(4):
            noise = np.random.default_rng(seed).integers(-12, 12, SHAPE)
            path = folder / f"{seed}{asked.suffix}"
            nibabel.Nifti1Image((tissue + noise).astype(np.int16), np.eye(4)).to_filename(path)
            scans.append(path)
        planned = [
            PlannedStudy(
                Study(PurePosixPath(f"{n}{asked.suffix}"), (scans[n % 4],), "nifti"),
                folder / "out" / f"{n}{asked.suffix}",
                "translate",
                replaces=True,
            )
            for n in range(asked.studies)
        ]
        timeline = Timeline(time.perf_counter())
        with (
            Manifest(folder / "out") as manifest,
            open_generator(bench.network, device, "fp16", PATCH) as generator,
        ):
            store = Store(manifest, Recipe("", ""), bench.card)
            task = Task(bench, TranslateSettings(PATCH), lambda _: nullcontext(generator), store)
            run_batch(planned[:2], Conveyor(task, planned[:2], lanes_of(device)), lambda _: None)
            begin = time.perf_counter()
            line = Conveyor(task, planned, lanes_of(device))
            rows = run_batch(planned, line, timeline.hear)
            wall = time.perf_counter() - begin
        use = timeline.use()
        stages = {}
        for row in rows:
            if row.failure:
                raise SystemExit(row.failure)
            for stage, spent in row.stages.items():
                stages[stage] = round(stages.get(stage, 0) + spent / len(rows), 4)
        print(json.dumps({
            "suffix": asked.suffix, "studies": len(rows), "wall": round(wall, 3),
            "seconds_a_study": round(wall / len(rows), 4), "overlap": round(use.overlap, 2),
            "computing_share": round(use.computing_share, 3), "stages_a_study": stages,
            "lanes": str(lanes_of(device)),
        }), flush=True)  # fmt: skip


main()
