"""Five studies of one patch each that go through the stages of a batch."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.batch_world import scan
from support.batches import batch_here
from support.fake_networks import networks_opened_by
from support.numerics_models import CARD, FunctionGenerator

from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import Inference, Precision, Progress
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.events import (
    Event,
)
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe
from cuda_cyclegan.pipelines.results.resume import Planner
from cuda_cyclegan.pipelines.run.batch import run_batch
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.source import JobKind
from cuda_cyclegan.pipelines.settings import TranslateOptions

OPTIONS = TranslateOptions((16, 16, 16), overlap=0.0, precision="fp32").resolved()
RECIPE = Recipe("model", "settings")
PLENTY = 1 << 30


@dataclass
class PipelineWorld:
    """Five studies of one patch each."""

    root: Path
    events: list[Event] = field(default_factory=list[Event])
    card: ModelCard = CARD

    def __post_init__(self) -> None:
        for seed, name in enumerate("abcde"):
            scan(self.root / "scans" / f"{name}.nii", seed, (16, 16, 16))

    def run(
        self,
        network: Callable[[FloatArray], FloatArray] = lambda p: p,
        concurrency: Concurrency | None = None,
    ) -> list[StudyReport]:
        opened: Any = nullcontext(FunctionGenerator(network))
        return self.run_opened(lambda *_: opened, concurrency)

    def run_opened(
        self,
        opened: Callable[[Precision, Progress], Any],
        concurrency: Concurrency | None = None,
        precision: Precision = "fp32",
        spread: int = 0,
        inference: Inference = "patches",
    ) -> list[StudyReport]:
        self.events.clear()
        graph = FunctionGenerator().graph
        empty: Any = None
        model = Model(replace(self.card, patch=(16, 16, 16)), Network(graph, {}), empty, empty, "")
        output = self.root / "results"
        with Manifest(output) as manifest:
            planner = Planner(output, manifest.entries, RECIPE, overwrite=False)
            planned = planner.plan(discover([self.root / "scans"], output).studies)
            options = replace(OPTIONS, precision=precision, spread=spread, inference=inference)
            networks = networks_opened_by(opened, "fp16", "bf16", "fp32")
            batch = batch_here(
                JobKind(model, options, RECIPE),
                planned,
                manifest,
                networks,
                concurrency or Concurrency(PLENTY),
            )
            return list(run_batch(planned, batch, self.handle))

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def made(self) -> list[str]:
        return sorted(path.name for path in (self.root / "results").glob("*.nii"))


def threads_at_work() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.split()[0] in ("read", "infer", "write")]
