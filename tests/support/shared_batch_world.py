"""Six studies of one tile each, shared by worker processes."""

from collections.abc import Callable, Sequence
from pathlib import Path

from support.batch_world import scan, tiny_model
from support.worker_generators import Opener

from cuda_cyclegan.engine.model.model_card import Identity
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.events import Event, StudyStarted, TilesDone
from cuda_cyclegan.pipelines.execution.batch import Execution, run_batch
from cuda_cyclegan.pipelines.execution.network_opening import OpenGenerator
from cuda_cyclegan.pipelines.execution.outcomes import Outcomes
from cuda_cyclegan.pipelines.execution.study_pipeline import Concurrency, StudyPipeline
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results.aliases import with_aliases
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe
from cuda_cyclegan.pipelines.results.resume import PlannedStudy, Planner
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.worker_processes.batch_worker import Setup
from cuda_cyclegan.pipelines.worker_processes.failover import Failover
from cuda_cyclegan.pipelines.worker_processes.shared_batch import SharedBatch
from cuda_cyclegan.pipelines.worker_processes.spare_workers import SpareWorkers

NAMES = [f"{letter}.nii" for letter in "abcdef"]
RECIPE = Recipe("model", "settings")


class SharedBatchWorld:
    """Six studies of one tile each, and two workers."""

    def __init__(self, root: Path) -> None:
        self.inputs, self.output = root / "scans", root / "results"
        self.calls = root / "calls"
        self.calls.mkdir()
        self.events: list[Event] = []
        self.model = tiny_model(root / "model.safetensors", intensity=Identity())
        for seed, name in enumerate(NAMES):
            scan(self.inputs / name, seed, (8, 8, 8))

    def run(self, *openers: Opener) -> list[StudyReport]:
        return self._run(
            lambda planned, manifest: SharedBatch(
                self._setups(openers, manifest), planned, manifest
            )
        )

    def run_with(self, spares: SpareWorkers, *openers: Opener) -> list[StudyReport]:
        """With workers that were started before."""
        return self._run(
            lambda planned, manifest: SharedBatch(
                self._setups(openers, manifest), planned, manifest, spares=spares
            )
        )

    def run_suspects(self, suspects: Sequence[str], *openers: Opener) -> list[StudyReport]:
        """As if a card had been lost over these studies already."""

        def begun(planned: Sequence[PlannedStudy], manifest: Manifest) -> SharedBatch:
            outcomes = Outcomes()
            for study in planned:
                if str(study.study.name) in suspects:
                    outcomes.hear(StudyStarted(study))
                    outcomes.hear(TilesDone(str(study.study.name), 0, 1))
            return SharedBatch(self._setups(openers, manifest), planned, manifest, outcomes)

        return self._run(begun)

    def run_here(self, opener: OpenGenerator) -> list[StudyReport]:
        """In this process, as long as its device works."""

        def line(planned: Sequence[PlannedStudy], manifest: Manifest) -> Failover:
            setups = self._setups([opener], manifest)
            [setup] = setups
            concurrency = Concurrency(1 << 30, readers=2, networks=2)
            return Failover(
                planned,
                StudyPipeline(setup.task(manifest, opener), planned, concurrency),
                lambda left, outcomes: SharedBatch(setups, left, manifest, outcomes),
            )

        return self._run(line)

    def _run(
        self, line: Callable[[Sequence[PlannedStudy], Manifest], Execution]
    ) -> list[StudyReport]:
        with Manifest(self.output) as manifest:
            planner = Planner(self.output, manifest.entries, RECIPE, overwrite=False)
            planned = planner.plan(discover([self.inputs], self.output).studies)
            line_at_work = line(with_aliases(planned), manifest)
            return list(run_batch(planned, line_at_work, self.hear))

    def hear(self, event: Event) -> None:
        self.events.append(event)

    def made(self) -> list[str]:
        return sorted(path.name for path in self.output.glob("*.nii"))

    def parts(self) -> list[Path]:
        return list(self.output.glob("*.part"))

    def _setups(self, openers: Sequence[OpenGenerator], manifest: Manifest) -> list[Setup]:
        model = load_model(self.model)
        options = TranslateOptions((8, 8, 8), precision="fp32")
        concurrency = Concurrency(1 << 30)
        return [
            Setup(
                f"cpu:{n}",
                model,
                options,
                opener,
                (),
                manifest.place,
                RECIPE,
                concurrency,
            )
            for n, opener in enumerate(openers)
        ]
