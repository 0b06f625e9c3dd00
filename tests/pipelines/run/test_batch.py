"""The batch: isolation, events, interrupts."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from support.batch_world import killed_before_the_record, scan, tiny_model
from support.batches import batch_here
from support.fake_networks import networks_of

from cuda_cyclegan.engine.cpu.session import SessionGenerator, open_cpu_generator
from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.events import Event, StudyDone, StudyStarted, TilesDone
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe, load
from cuda_cyclegan.pipelines.results.resume import Planner
from cuda_cyclegan.pipelines.run.batch import run_batch
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.source import JobKind
from cuda_cyclegan.pipelines.settings import TranslateOptions

OPTIONS = TranslateOptions((16, 16, 16), overlap=0.0, precision="fp32").resolved()
RECIPE = Recipe("model", "settings")
CONCURRENCY = Concurrency(host_bytes=1 << 30)


@dataclass
class Scripted:
    """The tiny model's own generator, with something that happens at given calls."""

    real: SessionGenerator
    script: dict[int, Callable[[], object]] = field(default_factory=dict)
    calls: int = 0

    @property
    def graph(self) -> Graph:
        return self.real.graph

    @property
    def device(self) -> str:
        return "scripted"

    def __call__(self, patches: FloatArray) -> FloatArray:
        self.calls += 1
        self.script.get(self.calls, lambda: None)()
        return self.real(patches)


def raising(error: BaseException) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


class World:
    """Three studies of one patch each."""

    def __init__(self, root: Path, generator: SessionGenerator, model: Model) -> None:
        self.inputs, self.output = root / "scans", root / "results"
        self.generator, self.model = generator, model
        self.events: list[Event] = []
        for seed, name in enumerate("abc"):
            scan(self.inputs / f"{name}.nii", seed, (16, 16, 16))

    def run(self, script: dict[int, Callable[[], object]] | None = None) -> list[StudyReport]:
        self.events.clear()
        with Manifest(self.output) as manifest:
            planner = Planner(self.output, manifest.entries, RECIPE, overwrite=False)
            planned = planner.plan(discover([self.inputs], self.output).studies)
            scripted = Scripted(self.generator, script or {})
            batch = batch_here(
                JobKind(self.model, OPTIONS, RECIPE),
                planned,
                manifest,
                networks_of(scripted),
                CONCURRENCY,
            )
            return list(run_batch(planned, batch, self.events.append))

    def made(self) -> set[str]:
        return {path.name for path in self.output.glob("*.nii")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(tiny_model(tmp_path_factory.mktemp("model") / "model.safetensors"))


@pytest.fixture(scope="module")
def generator(model: Model) -> Iterator[SessionGenerator]:
    with ExitStack() as stack:
        yield stack.enter_context(open_cpu_generator(model.network, threads=1))


@pytest.fixture
def world(tmp_path: Path, generator: SessionGenerator, model: Model) -> World:
    return World(tmp_path, generator, model)


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (MemoryError(), "memory", "There is not enough memory"),
        (np.exceptions.AxisError("axis"), "internal", "AxisError: axis; this looks like a bug"),
        (EngineError("The layer\nis broken."), "engine", "The layer is broken."),
        (RuntimeError("x"), "internal", "setting verbose"),
    ],
)
def test_whatever_a_study_raises_fails_it_alone(
    world: World, error: Exception, kind: str, word: str
) -> None:
    rows = world.run({2: raising(error)})
    assert [row.status for row in rows] == ["translated", "failed", "translated"]
    failure = rows[1].failure
    assert failure is not None
    assert (failure.kind, failure.stage) == (kind, "infer")
    assert word in failure.reason
    assert world.made() == {"a.nii", "c.nii"}
    traces = [event.trace for event in world.events if isinstance(event, StudyDone)]
    assert [bool(trace) for trace in traces] == [False, True, False]


def test_the_rest_is_done_at_the_next_run(world: World) -> None:
    world.run({2: raising(RuntimeError())})
    rows = world.run()
    assert [row.status for row in rows] == ["up to date", "translated", "up to date"]


def test_events_of_a_study_come_in_order_and_rows_in_that_of_the_studies(world: World) -> None:
    rows = world.run({2: raising(RuntimeError())})
    done = [event.row for event in world.events if isinstance(event, StudyDone)]
    assert done == rows
    for row in (rows[0], rows[2]):
        started, *patches, over = [event for event in world.events if study_of(event) == row.name]
        assert isinstance(started, StudyStarted)
        assert patches == [TilesDone(row.name, 0, 1), TilesDone(row.name, 1, 1)]
        assert over == StudyDone(row, None)


def study_of(event: Event) -> str | None:
    match event:
        case StudyStarted(planned):
            return str(planned.study.name)
        case TilesDone(study):
            return study
        case StudyDone(row):
            return row.name
        case _:
            return None


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_ends_the_batch_and_the_next_run_does_the_rest(
    world: World, call: int
) -> None:
    rows = world.run({call: raising(KeyboardInterrupt())})
    assert [row.status for row in rows] == ["translated"] * (call - 1) + ["interrupted"]
    assert len(world.made()) == call - 1
    again = [row.status for row in world.run()]
    assert again == ["up to date"] * (call - 1) + ["translated"] * (4 - call)


@pytest.mark.slow
def test_a_failed_study_does_not_keep_its_arrays(world: World) -> None:
    class PayloadError(RuntimeError):
        pass

    error = PayloadError("holds everything on its traceback")
    gone = weakref.ref(error)
    script = {1: raising(error)}
    del error
    present: list[bool] = []

    def look() -> None:
        script.pop(1, None)
        gc.collect()
        present.append(gone() is not None)

    script[2] = look
    world.run(script)
    assert present == [False]


def test_stage_seconds_are_of_the_stages_that_were_reached(world: World) -> None:
    done, failed, _ = world.run({2: raising(RuntimeError())})
    assert set(done.stages) == {"read", "prepare", "infer", "blend", "finish", "write"}
    assert list(failed.stages) == ["read", "prepare", "blend", "infer"]
    assert sum(done.stages.values()) == done.seconds
    assert done.peak_memory is not None
    assert (done.voxels, done.tiles) == (16**3, 1)


class TestTheRecord:
    def test_writing_stands_before_the_file_and_written_after_it(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[str, str, bool]] = []
        append = Manifest.append

        def watched(self: Manifest, entry: "object") -> None:
            assert hasattr(entry, "status")
            seen.append((entry.output, entry.status, (world.output / entry.output).exists()))
            append(self, entry)  # type: ignore[arg-type]

        monkeypatch.setattr(Manifest, "append", watched)
        world.run({2: raising(RuntimeError()), 3: raising(RuntimeError())})
        assert seen == [("a.nii", "writing", False), ("a.nii", "written", True)]

    def test_a_file_that_appears_meanwhile_is_not_destroyed(self, world: World) -> None:
        foreign = world.output / "a.nii"
        first, *_ = world.run({1: lambda: foreign.write_bytes(b"somebody's work")})
        assert first.failure is not None
        assert first.failure.kind == "occupied"
        assert foreign.read_bytes() == b"somebody's work"
        assert "a.nii" not in load(world.output)

    def test_after_a_write_that_failed_a_foreign_file_is_still_foreign(self, world: World) -> None:
        scan(world.inputs / "d" / "x.nii")
        world.output.mkdir()
        in_the_way = world.output / "d"
        in_the_way.touch()
        *_, last = world.run()
        assert last.failure is not None
        assert (last.failure.kind, last.failure.stage) == ("write", "write")
        assert load(world.output)["d/x.nii"].status == "failed"

        in_the_way.unlink()
        in_the_way.mkdir()
        (in_the_way / "x.nii").write_bytes(b"somebody's work")
        *_, last = world.run()
        assert last.failure is not None
        assert last.failure.kind == "occupied"

    def test_a_kill_between_file_and_record_costs_one_study_and_nothing_more(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with killed_before_the_record(monkeypatch):
            world.run()
        assert world.made() == {"a.nii"}
        assert load(world.output)["a.nii"].status == "writing"
        rows = world.run()
        assert [row.status for row in rows] == ["translated"] * 3
        assert rows[0].due == "an earlier run was stopped while writing it"
