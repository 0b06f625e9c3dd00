"""Six studies of one patch each, shared by worker processes."""

from collections.abc import Callable, Sequence
from pathlib import Path

from support.batch_world import scan, tiny_model
from support.batches import batch_here
from support.worker_generators import Opener

from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.model.intensity_maps import Identity
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.events import (
    Event,
    StudyStarted,
    TilesDone,
)
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe
from cuda_cyclegan.pipelines.results.resume import PlannedStudy, Planner, with_aliases
from cuda_cyclegan.pipelines.run.batch import Batch, run_batch
from cuda_cyclegan.pipelines.run.networks import Networks, OpenNetwork
from cuda_cyclegan.pipelines.run.pipe_worker import PipeWorker
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.shared_batch import SharedBatch, StartedWorkers
from cuda_cyclegan.pipelines.run.source import BatchStudies, JobKind, ListSource
from cuda_cyclegan.pipelines.settings import TranslateOptions

NAMES = [f"{letter}.nii" for letter in "abcdef"]
RECIPE = Recipe("model", "settings")


class SharedBatchWorld:
    """Six studies of one patch each, and two workers."""

    def __init__(self, root: Path) -> None:
        self.inputs, self.output = root / "scans", root / "results"
        self.calls = root / "calls"
        self.calls.mkdir()
        self.events: list[Event] = []
        self.model = tiny_model(root / "model.safetensors", intensity=Identity())
        for seed, name in enumerate(NAMES):
            scan(self.inputs / name, seed, (8, 8, 8))

    def run(self, *openers: Opener) -> list[StudyReport]:
        return self._run_shared(openers)

    def run_with(self, spares: StartedWorkers, *openers: Opener) -> list[StudyReport]:
        """Run with workers that were started before."""
        return self._run_shared(openers, spares)

    def _run_shared(
        self, openers: Sequence[Opener], spares: StartedWorkers | None = None
    ) -> list[StudyReport]:
        def begun(planned: Sequence[PlannedStudy], manifest: Manifest) -> Batch:
            studies, processes = BatchStudies(planned), self._processes(openers, manifest)
            return Batch(studies, SharedBatch(studies, processes, manifest, spares))

        return self._run(begun)

    def run_suspects(self, suspects: Sequence[str], *openers: Opener) -> list[StudyReport]:
        """Run as if a GPU had been lost over these studies already."""

        def begun(planned: Sequence[PlannedStudy], manifest: Manifest) -> Batch:
            studies = BatchStudies(planned)
            processes = self._processes(openers, manifest)
            source = ListSource(processes[0].kind, studies, manifest)
            while study := source.take():
                if str(study.study.name) in suspects:
                    studies.outcomes.handle(StudyStarted(study))
                    studies.outcomes.handle(TilesDone(str(study.study.name), 0, 1))
            source.reclaim("The card was lost.")
            return Batch(studies, SharedBatch(studies, processes, manifest))

        return self._run(begun)

    def run_here(
        self, opener: OpenNetwork, successor: OpenNetwork | None = None
    ) -> list[StudyReport]:
        """Run in this process, as long as its device works, and then with the successor."""

        def here(planned: Sequence[PlannedStudy], manifest: Manifest) -> Batch:
            [process] = self._processes([successor or opener], manifest)
            networks = Networks(process.device, open_network=opener)
            concurrency = Concurrency(1 << 30, readers=2, networks=2)
            return batch_here(process.kind, planned, manifest, networks, concurrency, [process])

        return self._run(here)

    def _run(self, line: Callable[[Sequence[PlannedStudy], Manifest], Batch]) -> list[StudyReport]:
        with Manifest(self.output) as manifest:
            planner = Planner(self.output, manifest.entries, RECIPE, overwrite=False)
            planned = planner.plan(discover([self.inputs], self.output).studies)
            line_at_work = line(with_aliases(planned), manifest)
            return list(run_batch(planned, line_at_work, self.handle))

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def made(self) -> list[str]:
        return sorted(path.name for path in self.output.glob("*.nii"))

    def parts(self) -> list[Path]:
        return list(self.output.glob("*.part"))

    def _processes(self, openers: Sequence[OpenNetwork], manifest: Manifest) -> list[PipeWorker]:
        options = TranslateOptions((8, 8, 8), precision="fp32").resolved()
        kind = JobKind(load_model(self.model), options, RECIPE)
        return [
            PipeWorker(
                f"cpu:{n}",
                kind,
                Device("cpu", "fp32", ("fp32",)),
                manifest.place,
                Concurrency(1 << 30),
                opener,
            )
            for n, opener in enumerate(openers)
        ]
