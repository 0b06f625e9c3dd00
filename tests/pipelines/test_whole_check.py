"""The first study of a model is compared with its whole volume, once, and nothing else changes."""

import json
import re
import signal
import threading
from itertools import count
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from support.batch_world import tiny_model, with_card
from support.waiting import ENOUGH
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.model.model_card import PipelineProof
from cuda_cyclegan.pipelines import whole_check
from cuda_cyclegan.pipelines.run import pipeline
from cuda_cyclegan.pipelines.run.concurrency import StoppedError
from cuda_cyclegan.pipelines.run.stop_requests import StopRequests

MEASURED = re.compile(
    r"in the body, patches give a result that differs from the whole volume's by (\S+) on average, "
    r"and by (\S+)% of the standard deviation; comparing took \S+ s, once for this model and these "
    r"patches"
)
NOT_MEASURED = "the difference from the whole volume's result was not measured: "
EXTENTS = (20, 24, 20)


class World:
    """Two scans of a bright ball, and a model whose norms take statistics of each patch."""

    def __init__(self, root: Path) -> None:
        self.root, self.inputs = root, root / "scans"
        self.model = with_card(tiny_model(root / "m.safetensors"), inference=None, spacing=None)
        self.inputs.mkdir()
        places = np.indices(EXTENTS)
        self.body = sum((places[axis] - 10) ** 2 for axis in range(3)) < 60
        for seed in (1, 2):
            noise = np.random.default_rng(seed).uniform(0, 100, EXTENTS)
            values = (noise + np.where(self.body, 800 + noise, 0)).astype(np.int16)
            image = nibabel.Nifti1Image(values, np.diag([1.0, 1.0, 1.0, 1.0]))
            image.to_filename(self.inputs / f"{seed}.nii")

    def run(self, name: str, *words: str) -> Result:
        output, report = self.root / name, self.root / f"{name}.json"
        said = ["translate", self.inputs, "--model", self.model, "--output", output]
        said += ["--report", report, "--device", "cpu", "--precision", "fp32", *words]
        return CliRunner().invoke(app, [str(word) for word in said])

    def translate(self, name: str, *words: str) -> list[list[str]]:
        """Notes of each study on its whole volume."""
        result = self.run(name, *words)
        assert result.exit_code == 0, result.stderr
        return self.notes(name)

    def notes(self, name: str) -> list[list[str]]:
        rows: list[Any] = json.loads((self.root / f"{name}.json").read_text())["studies"]
        return [[note for note in row["notes"] if "the whole volume's" in note] for row in rows]

    def values(self, name: str) -> Any:
        return nibabel.load(self.root / name / "1.nii").get_fdata()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return World(tmp_path)


def test_the_note_has_the_difference_inside_the_body(world: World) -> None:
    said = "--output-type", "float32"
    [[note], none] = world.translate("patches", *said)
    assert none == []
    assert world.translate("whole", *said, "--inference", "volume") == [[], []]
    made, whole = (world.values(name)[world.body] for name in ("patches", "whole"))
    found = MEASURED.fullmatch(note)
    assert found is not None, note
    mean, share = float(found[1]), float(found[2]) / 100
    assert mean == pytest.approx(np.abs(made - whole).mean(), rel=0.01)
    apart = np.sqrt(np.square(made - whole).mean()) / whole.std()
    assert share == pytest.approx(apart, abs=0.001)
    assert share > 0.01


def test_once_for_a_model_and_its_patches_and_no_byte_changes(world: World) -> None:
    [[_], []] = world.translate("first")
    assert world.translate("second") == [[], []]
    for scan in ("1.nii", "2.nii"):
        assert (world.root / "first" / scan).read_bytes() == (
            world.root / "second" / scan
        ).read_bytes()
    [[_], []] = world.translate("others", "--patch", "12,12,12")
    # A result that is up to date keeps its note.
    [[kept], []] = world.translate("first")
    assert MEASURED.fullmatch(kept)


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({"inference": "patches"}, ()),
        ({"pipeline": PipelineProof("0" * 64, "0" * 64, 1e-7, 1e-4)}, ()),
        ({}, ("--inference", "volume")),
        ({"patch": (24, 24, 24)}, ()),
    ],
)
def test_chosen_proved_or_single_patch_is_not_compared(
    card: dict[str, Any], words: tuple[str, ...], world: World
) -> None:
    with_card(world.model, **card)
    assert world.translate("results", *words) == [[], []]


@pytest.mark.parametrize(
    "card", [{"inference": "patches"}, {"inference": "volume"}, {"pipeline": "proved"}]
)
def test_patches_smaller_than_in_training_are_always_compared(
    card: dict[str, Any], world: World
) -> None:
    if "pipeline" in card:
        card = {"pipeline": PipelineProof("0" * 64, "0" * 64, 1e-7, 1e-4)}
    with_card(world.model, **card)
    [[note], []] = world.translate("results", "--inference", "patches", "--patch", "12,12,12")
    assert MEASURED.fullmatch(note)


def test_plan_foresees_it_with_its_memory(world: World) -> None:
    said = ["plan", world.inputs, "--model", world.model, "--output", world.root / "results"]

    def planned() -> str:
        result = CliRunner().invoke(app, [*map(str, said), "--device", "cpu"])
        assert result.exit_code == 0, result.stderr
        return " ".join(result.stdout.split())

    assert planned().count("its whole volume will be computed, too") == 1
    world.translate("results")
    assert "whole volume" not in planned()


@pytest.mark.parametrize(
    ("seconds", "memory", "reason"),
    [(100.0, 1 << 30, "it takes more than 60 s"), (0.0, 1000, "needs")],
)
def test_one_note_says_where_it_does_not_fit(
    seconds: float, memory: int, reason: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr(whole_check, "perf_counter", lambda: seconds * next(ticks))
    monkeypatch.setattr(pipeline, "maps_memory", lambda: memory)
    [[note], none] = world.translate("results")
    assert note.startswith(NOT_MEASURED)
    assert reason in note
    assert none == []
    assert world.translate("again") == [[], []]


def test_a_stop_leaves_the_comparison_for_later_and_stores_the_study(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(whole_check.WholeCheck):
        def note(self, *given: Any) -> str | None:
            inferred, seconds, _ = given

            def stop() -> None:
                raise StoppedError

            return super().note(inferred, seconds, stop)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "WholeCheck", Stopped)
        assert world.translate("stopped") == [[], []]
    assert world.values("stopped").std() > 0
    [[_], []] = world.translate("later")


def test_an_interrupt_ends_the_comparison_and_leaves_no_note_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, is_stopped = list[type[BaseException]](), threading.Event()
    stop = StopRequests.stop

    def stop_and_report(requests: StopRequests) -> None:
        stop(requests)
        is_stopped.set()

    class Interrupted(whole_check.WholeCheck):
        def note(self, *given: Any) -> str | None:
            inferred, seconds, go_on = given

            def interrupt() -> None:
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGINT)
                assert is_stopped.wait(ENOUGH)
                try:
                    go_on()
                except StoppedError:
                    ends.append(StoppedError)
                    raise

            return super().note(inferred, seconds, interrupt)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "WholeCheck", Interrupted)
        patched.setattr(StopRequests, "stop", stop_and_report)
        result = world.run("interrupted")
    assert (result.exit_code, ends) == (130, [StoppedError]), result.stderr
    left = {file.name for file in (world.root / "interrupted").rglob("*.nii*")}
    assert left == {"1.nii"}
    assert world.notes("interrupted") == [[], []]
    assert world.values("interrupted").std() > 0
    assert "the whole volume's" not in result.stderr
    assert world.translate("later")[0]
