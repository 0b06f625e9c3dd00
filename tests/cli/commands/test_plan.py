"""The plan command: what a batch would cost."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import SimpleITK
from support.batch_world import scan, with_card
from support.translate_world import World
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.cpu.session import session_bytes
from cuda_cyclegan.engine.model.calibration import Expectations, Typical
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.pipelines.host import memory
from cuda_cyclegan.pipelines.run.concurrency import WeightedSemaphore
from cuda_cyclegan.pipelines.study.resampling import ResampledRows, Resampling


def run(world: World, *options: str) -> Result:
    return CliRunner().invoke(app, ["plan", *world.arguments(*options)])


def network_mebibytes(world: World) -> float:
    """MiB of a session and its model, as a plan adds them to the arrays of a study."""
    network = load_model(world.model).network
    weights = sum(weight.nbytes for weight in network.weights.values())
    return (session_bytes(network, (16, 16, 16)) + weights) / 2**20


class TestPlan:
    def test_its_status_is_that_of_a_plan_unless_it_is_strict(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        assert run(world).exit_code == run(world, "--strict").exit_code == 0
        (world.inputs / "b.nii").write_bytes(b"garbage" * 100)
        assert [run(world, *strict).exit_code for strict in ((), ("--strict",))] == [0, 1]
        (world.inputs / "b.nii").unlink()
        (world.inputs / "link.nii").symlink_to(world.inputs / "missing")
        assert [run(world, *strict).exit_code for strict in ((), ("--strict",))] == [0, 1]
        for path in world.inputs.iterdir():
            path.unlink()
        assert run(world).exit_code == 3

    def test_it_is_the_dry_run(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        (world.inputs / "b.nii").write_bytes(b"garbage" * 100)
        run(world)  # says why there is no GPU, once
        planned, dry = run(world), world.translate("--dry-run")
        assert planned.exit_code == dry.exit_code == 0
        assert planned.output == dry.output
        assert "would fail: b.nii: unreadable" in planned.output
        assert not world.output.exists()

    def test_seconds_are_known_once_a_batch_was_measured(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        scan(world.inputs / "a.nii")
        command = ["plan", *world.arguments("--overwrite")]
        assert "Total time: known after" in CliRunner().invoke(app, command).stdout
        assert world.translate().exit_code == 0
        reported = CliRunner().invoke(app, command).stdout
        assert "Total time: known after" not in reported
        assert re.search(r"Total time: \d", reported)

    def test_ram_is_at_least_that_of_the_arrays(self, world: World) -> None:
        scan(world.inputs / "a.nii", shape=(128, 128, 128))
        reported = CliRunner().invoke(app, ["plan", *world.arguments()]).stdout
        found = re.search(r"a\.nii +\d+ +(\d+) MiB", reported)
        assert found is not None
        arrays = int(found[1]) - network_mebibytes(world)
        assert 128**3 * (2 + 2) <= arrays * 2**20 <= 128**3 * 6

    def test_a_study_that_no_memory_suffices_for_is_refused_as_by_a_run(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scan(world.inputs / "a.nii")
        monkeypatch.setattr(memory, "most_memory", lambda: 1000)
        planned = CliRunner().invoke(app, ["plan", *world.arguments()])
        reason = "GiB of memory, and this program may use only 0.0 GiB; use a larger machine"
        assert planned.exit_code == 0
        assert reason in " ".join(planned.output.split())
        assert reason in " ".join(world.translate().output.split())

    @pytest.mark.slow
    def test_ram_is_what_a_run_asks_for(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A seam score keeps the network's own intensities."""
        scan(world.inputs / "a.nii", shape=(72, 72, 72))
        asked: list[int] = []
        acquire = WeightedSemaphore.acquire

        def heard(memory: WeightedSemaphore, amount: int = 1) -> bool:
            asked.append(amount)
            return acquire(memory, amount)

        monkeypatch.setattr(WeightedSemaphore, "acquire", heard)
        mebibytes: list[int] = []
        for extras in ((), ("--seam-score",)):
            reported = (
                CliRunner().invoke(app, ["plan", *world.arguments("--overwrite", *extras)]).stdout
            )
            found = re.search(r"a\.nii +\d+ +(\d+) MiB", reported)
            assert found is not None
            mebibytes.append(int(found[1]))
            asked.clear()
            assert world.translate("--overwrite", *extras).exit_code == 0
            arrays = mebibytes[-1] - network_mebibytes(world)
            assert abs(max(asked) - arrays * 2**20) <= 2**20
        assert mebibytes[1] > mebibytes[0]


def test_a_plan_resamples_no_scan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scan(world.inputs / "a.nii", shape=(40, 36, 32))
    with_card(world.model, spacing=(2.0, 2.0, 2.0))
    resampled: list[int] = []
    rows = Resampling.rows

    def counted(resampling: Resampling, read: ResampledRows, start: int, stop: int) -> FloatArray:
        resampled.append(stop - start)
        return rows(resampling, read, start, stop)

    monkeypatch.setattr(Resampling, "rows", counted)
    reported = CliRunner().invoke(app, ["plan", *world.arguments()])
    assert (reported.exit_code, resampled) == (0, []), reported.output
    patches = re.search(r"a\.nii +(\d+) ", reported.output)
    assert patches
    assert world.translate("--report", str(world.report)).exit_code == 0
    assert resampled
    [row] = json.loads(world.report.read_text())["studies"]
    assert row["tiles"] == int(patches[1])


def test_a_name_that_no_result_can_have_is_refused_before_it_is_computed(world: World) -> None:
    world.inputs.mkdir(exist_ok=True)
    image = SimpleITK.GetImageFromArray(np.arange(16**3, dtype=np.int16).reshape(16, 16, 16))
    SimpleITK.WriteImage(image, str(world.inputs / "x.mhd"))
    (world.inputs / "x.mhd").rename(world.inputs / "a%d.mhd")
    planned, done = run(world), world.translate()
    assert "would fail: a%d.mhd: " in planned.output
    for reported in (planned.output, done.output):
        assert "the header could not contain the name of its voxels" in " ".join(reported.split())
    assert done.exit_code == 1


def test_a_plan_notes_scans_that_are_padded_to_a_patch(world: World) -> None:
    scan(world.inputs / "small.nii", shape=(10, 20, 24))
    scan(world.inputs / "whole.nii", shape=(16, 20, 24))
    reported = CliRunner().invoke(app, ["plan", *world.arguments()]).stdout
    padded = (
        "note: small.nii: it is smaller than a patch, and padded from 10x20x24 to 16x20x24 voxels"
    )
    assert padded in " ".join(reported.split())
    assert reported.count("padded") == 1


@pytest.mark.parametrize("place", ["/proc/results", "notes", "notes/results"])
def test_an_output_folder_that_cannot_be_is_refused_as_by_a_run(world: World, place: str) -> None:
    scan(world.inputs / "a.nii")
    world.report.with_name("notes").touch()
    world.output = world.report.parent / place
    planned = CliRunner().invoke(app, ["plan", *world.arguments()])
    done = world.translate()
    assert (planned.exit_code, done.exit_code) == (2, 2), planned.output
    assert planned.stdout == ""
    assert "choose another output folder" in planned.stderr
    assert planned.stderr.split("(")[0] == done.stderr.split("(")[0]


def test_a_plan_leaves_nothing_where_the_output_folder_would_be(world: World) -> None:
    scan(world.inputs / "a.nii")
    folder = world.output.parent
    before = sorted(folder.rglob("*"))
    world.output /= "deep/below"
    assert CliRunner().invoke(app, ["plan", *world.arguments()]).exit_code == 0
    assert sorted(folder.rglob("*")) == before


def test_a_calibration_is_proposed_once_there_are_enough_studies(world: World) -> None:
    for number in range(19):
        scan(world.inputs / f"{number}.nii")
    assert "Calibration:" not in run(world).stdout
    scan(world.inputs / "19.nii")
    assert "Calibration: none; 'model calibrate' with 20 or more scans" in run(world).stdout
    usual = Typical(1.0, 0.5)
    expected = Expectations(20, (usual,) * 5, (usual,) * 3, (usual,) * 3)
    world.model = with_card(world.model, expected=expected)
    assert "Calibration:" not in run(world).stdout
