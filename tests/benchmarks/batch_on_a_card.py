"""A batch on one card against its own parts: files alone, all host work alone, the network alone.

    PYTHONPATH=tests python tests/benchmarks/batch_on_a_card.py

Studies of 256x256x180 int16, a generator of width 32 with 9 blocks, patches of 128^3, overlap 0.25.
In alternation, for files with and without compression: the batch; "files", the same files read
and the batch's own results written by as many threads, without hashes, preparation or network;
"host", the whole batch with a network that only copies. Medians over the rounds.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any

from support.batches import batch_here
from support.bench_batches import DISTINCT, make_scans, write_model
from support.bench_command import keep, options
from support.fake_networks import networks_of
from support.numerics_models import shared

from cuda_cyclegan.engine.devices import choose_device, open_generator
from cuda_cyclegan.engine.generator import PatchGenerator
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.patch_grid import PatchWindow, Timing
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.io.writing import write
from cuda_cyclegan.pipelines.events import Event, Worked
from cuda_cyclegan.pipelines.report.report import Use
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe
from cuda_cyclegan.pipelines.results.resume import PlannedStudy
from cuda_cyclegan.pipelines.run.batch import run_batch
from cuda_cyclegan.pipelines.run.pipeline import Concurrency, concurrency_of
from cuda_cyclegan.pipelines.run.source import JobKind
from cuda_cyclegan.pipelines.settings import ResolvedOptions, TranslateOptions
from cuda_cyclegan.pipelines.stopwatch import Span, Stopwatch
from cuda_cyclegan.pipelines.study.translator import Scans, StudyTranslator
from cuda_cyclegan.pipelines.timeline import Timeline

QUIET_PASSES = 5
TARGETS = {
    "wall_by_larger_part": "<= 1.25",
    "copy_and_blend_by_compute": "<= 0.05",
    "computing_share": ">= 0.85 for .nii",
}


@dataclass(frozen=True)
class Copying:
    """Stand-in for the network that only passes the array on."""

    graph: Graph
    device: str = "none"

    def __call__(self, patches: FloatArray) -> FloatArray:
        return patches

    def run_window(
        self,
        source: Stored,
        _: PatchWindow,
        target: Stored,
        on_patches: Callable[[int], None],
    ) -> list[Timing]:
        target.values[...] = source.values
        on_patches(1)
        return []


@dataclass
class Case:
    """A batch of studies; seconds: of each way to run it, a round each."""

    model: Model
    options: ResolvedOptions
    concurrency: Concurrency
    scans: list[Path]
    results: Path
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def run(self, generator: PatchGenerator, name: str) -> tuple[Use, list[Span]]:
        """All studies with this generator in the network's place."""
        timeline, spans = Timeline(time.perf_counter()), list[Span]()

        def handle(event: Event) -> None:
            timeline.handle(event)
            if isinstance(event, Worked):
                spans.append(event.span)

        planned = [
            PlannedStudy(study(scan), self.results / scan.name, "translate", replaces=True)
            for scan in self.scans
        ]
        for scan in planned:
            scan.target.unlink(missing_ok=True)  # to free an old file's memory takes 5 ms
        with Manifest(self.results) as manifest:
            kind = JobKind(self.model, self.options, Recipe("", ""))
            batch = batch_here(kind, planned, manifest, networks_of(generator), self.concurrency)
            begin = time.perf_counter()
            rows = run_batch(planned, batch, handle)
            self.seconds.setdefault(name, []).append(time.perf_counter() - begin)
        if failures := [row.failure for row in rows if row.failure]:
            raise SystemExit(f"studies failed: {failures}")
        return timeline.use(), spans

    def run_files(self) -> None:
        """Read the scans and write as many results, each by as many threads as the batch has."""
        made = [read(study(self.results / scan.name), None) for scan in self.scans[:DISTINCT]]
        shutil.rmtree(self.results / "files", ignore_errors=True)
        reads = [lambda scan=scan: read(study(scan), None) for scan in self.scans]
        writes = [
            lambda number=number, scan=scan: write(
                made[number % len(made)], self.results / "files" / scan.name
            )
            for number, scan in enumerate(self.scans)
        ]
        begin = time.perf_counter()
        together(
            *workers(reads, self.concurrency.readers),
            *workers(writes, self.concurrency.writers),
        )
        self.seconds.setdefault("files", []).append(time.perf_counter() - begin)


def study(path: Path) -> Study:
    return Study(PurePosixPath(path.name), (path,), "nifti")


def workers(tasks: Iterable[Callable[[], object]], count: int) -> list[Callable[[], None]]:
    queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
    for task in tasks:
        queue.put(task)

    def work() -> None:
        while True:
            try:
                queue.get_nowait()()
            except Empty:
                return

    return [work] * count


def together(*works: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def quiet_stages(case: Case, generator: PatchGenerator) -> dict[str, float]:
    """Seconds a study of each stage in the network's turn, nothing else running; and its wall."""
    translator = StudyTranslator(case.model, case.options)
    scans = Scans((read(study(case.scans[0]), None),), ())
    prepared = translator.prepare(scans, translator.plan(scans))
    network = shared(generator)
    translator.infer(prepared, network)
    translator = replace(translator, timer=Stopwatch())
    begin = time.perf_counter()
    for _ in range(QUIET_PASSES):
        translator.infer(prepared, network)
    seconds = {**translator.timer.seconds, "wall": time.perf_counter() - begin}
    return {name: spent / QUIET_PASSES for name, spent in seconds.items()}


def covered(spans: Sequence[Span]) -> float:
    """Seconds in which at least one of the spans ran."""
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.stop - max(span.start, reached))
        reached = max(reached, span.stop)
    return total


def measure(case: Case, generator: PatchGenerator, rounds: int) -> dict[str, Any]:
    shares, added, stages = list[float](), list[float](), dict[str, list[float]]()
    case.run(generator, "warm-up")
    quiet = quiet_stages(case, generator)
    for _ in range(rounds):
        use, spans = case.run(generator, "batch")
        shares.append(use.computing_share)
        on_card = [span for span in spans if span.stage in ("copy", "infer", "blend")]
        computing = covered([span for span in on_card if span.stage == "infer"])
        added.append(covered(on_card) / computing - 1)
        for stage in {span.stage for span in spans}:
            spent = sum(span.seconds for span in spans if span.stage == stage)
            stages.setdefault(stage, []).append(spent / len(case.scans))
        case.run_files()
        case.run(Copying(generator.graph), "host")
    del case.seconds["warm-up"]
    seconds = {name: median(spent) for name, spent in case.seconds.items()}
    compute = quiet["infer"] * len(case.scans)
    larger = max(seconds["files"], compute)
    return {
        "seconds": {**rounded(seconds), "compute": round(compute, 3)},
        "all_seconds": {name: [round(s, 3) for s in spent] for name, spent in case.seconds.items()},
        "stages_a_study": rounded({name: median(spent) for name, spent in stages.items()}),
        "quiet_stages_a_study": rounded(quiet),
        "studies_a_minute": round(60 * len(case.scans) / seconds["batch"], 1),
        "wall_by_larger_part": round(seconds["batch"] / larger, 3),
        "wall_by_larger_part_all_host_work": round(
            seconds["batch"] / max(seconds["host"], compute), 3
        ),
        "copy_and_blend_by_compute": round(median(added), 4),
        "quiet_blend_by_compute": round(quiet.get("blend", 0) / quiet["infer"], 4),
        "quiet_wall_by_compute": round(quiet["wall"] / quiet["infer"], 4),
        "computing_share": round(median(shares), 3),
    }


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def main() -> None:
    parser = options("batch_on_a_card", __doc__)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--suffixes", nargs="+", default=[".nii", ".nii.gz"])
    parser.add_argument("--readers", type=int, help="other than the program would take")
    parser.add_argument("--writers", type=int, help="the same")
    asked = parser.parse_args()
    device = choose_device(asked.device)
    concurrency, precision = concurrency_of(device), device.default_precision
    concurrency = replace(
        concurrency,
        readers=asked.readers or concurrency.readers,
        writers=asked.writers or concurrency.writers,
    )
    translation = TranslateOptions(asked.patch, precision=precision).resolved()
    record: dict[str, Any] = {
        "what": (__doc__ or "").splitlines()[0],
        "studies": asked.studies,
        "volume": asked.shape,
        "patch": asked.patch,
        "network": f"ResNet of width {asked.width} with {asked.blocks} blocks",
        "concurrency": str(concurrency),
        "targets": TARGETS,
    }
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folder = Path(root)
        model = load_model(
            write_model(folder / "model.safetensors", asked.width, asked.blocks, asked.patch)
        )
        with open_generator(model.network, device, precision, asked.patch) as generator:
            record["device"] = generator.device
            for suffix in asked.suffixes:
                scans = make_scans(folder / f"scans{suffix}", asked.studies, asked.shape, suffix)
                case = Case(model, translation, concurrency, scans, folder / f"results{suffix}")
                record[suffix] = measure(case, generator, asked.rounds)
    keep(record, asked.output)


if __name__ == "__main__":
    main()
