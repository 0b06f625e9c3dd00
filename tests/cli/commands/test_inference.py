"""`--inference volume`: one pass of the network over each volume, wherever it is asked for."""

import json
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import PERCENTILES, identity_model, model_bytes, scan, stored, with_card
from support.calibration_scans import reference_set
from support.dicom_judges import conformance_errors, converted
from support.dicom_phantoms import Phantom
from support.model_pair import WINDOW, random_model
from support.queue_world import QueueWorld
from typer.testing import CliRunner, Result

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.cpu.openvino_support import has_bf16
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.generator import VolumeGenerator
from cuda_cyclegan.engine.model.intensity_maps import Identity
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.network.architectures import Norm, ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.patch_grid import Timing
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.pipelines import decisions
from cuda_cyclegan.pipelines.run import networks

nibabel: Any = _nibabel
VOLUME = ("--inference", "volume")
PATCHES = ("--inference", "patches")
ODD = (21, 35, 26)
CT = Phantom(rows=24)


def spec_of(norm: Norm) -> ResNetSpec:
    return ResNetSpec(1, 1, 4, 1, downsamplings=1, norm=norm)


def weights_of(norm: Norm) -> dict[str, FloatArray]:
    random = np.random.default_rng(3)
    shapes = build(spec_of(norm)).weight_shapes()
    return {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes}


def model_of(path: Path, norm: Norm, intensity: Any = PERCENTILES) -> Path:
    path.write_bytes(_model_bytes(norm, intensity))
    return path


@cache
def _model_bytes(norm: Norm, intensity: Any) -> bytes:
    return model_bytes(spec_of(norm), weights_of(norm), intensity)


class World:
    """Scans, a model of instance norms, and an output folder that is not there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs, self.output = root / "scans", root / "results"
        self.model = model_of(root / "model.safetensors", "instance")

    def run(self, command: str, *options: str, device: str = "cpu") -> Result:
        words = [command, self.inputs, "--model", self.model, "--output", self.output]
        return CliRunner().invoke(app, [*map(str, words), "--device", device, *options])

    def did(self, command: str, *options: str) -> str:
        done = self.run(command, *options)
        assert done.exit_code == 0, done.output
        return done.stdout

    def report(self, *options: str) -> dict[str, Any]:
        report = self.root / "report.json"
        report.unlink(missing_ok=True)
        self.run("translate", *options, "--report", str(report))
        return json.loads(report.read_text())

    def result(self, name: str) -> FloatArray:
        return np.asarray(nibabel.load(self.output / name).dataobj, np.float32)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = World(tmp_path)
    scan(made.inputs / "a.nii.gz", shape=ODD)
    return made


def in_one_pass(norm: Norm, voxels: FloatArray, step: int = 2) -> FloatArray:
    """Compute by PyTorch, over the volume continued after its last voxels."""
    pytest.importorskip("torch")
    from support.features_in_torch import in_torch

    more = [(0, -edge % step) for edge in voxels.shape]
    padded = np.pad(voxels, more, mode="edge")[None, None]
    network = Network(build(spec_of(norm)), weights_of(norm))
    depth, height, width = voxels.shape
    return in_torch(spec_of(norm), network, padded)[0, 0, :depth, :height, :width]


@pytest.mark.parametrize("norm", ["instance", "stored", "instance_affine", "none"])
@pytest.mark.parametrize(
    "extents", [ODD, (9, 7, 11), pytest.param((16, 16, 16), marks=pytest.mark.slow)]
)
def test_a_result_is_one_pass_of_pytorch(
    world: World, norm: Norm, extents: tuple[int, int, int]
) -> None:
    model_of(world.model, norm, Identity())
    voxels = np.random.default_rng(1).uniform(-1, 1, extents).astype(np.float32)
    stored(world.inputs / "a.nii.gz", voxels)
    world.did("translate", *VOLUME)
    right = in_one_pass(norm, voxels)
    made = world.result("a.nii.gz")
    assert np.linalg.norm(made - right) / np.linalg.norm(right) < 1e-5


def test_patches_are_something_else(world: World) -> None:
    world.did("translate", *VOLUME)
    at_once = world.result("a.nii.gz")
    reported = world.did("translate", *PATCHES)
    assert "1 translated" in reported
    assert not np.array_equal(world.result("a.nii.gz"), at_once)


@pytest.mark.parametrize(
    ("norm", "default"),
    [
        ("stored", "volume"),
        ("none", "volume"),
        ("instance", "patches"),
        ("instance_affine", "patches"),
    ],
)
def test_the_norms_decide_where_nobody_does(world: World, norm: Norm, default: str) -> None:
    model_of(world.model, norm)
    assert world.report()["settings"]["inference"] == default
    assert f"inference  {default}" in re.sub(" +", "  ", inspected(world))
    other = {"volume": "patches", "patches": "volume"}[default]
    with_card(world.model, inference=other)
    assert world.report()["settings"]["inference"] == other
    assert world.report("--inference", default)["settings"]["inference"] == default


def inspected(world: World) -> str:
    return CliRunner().invoke(app, ["model", "inspect", str(world.model)]).stdout


def test_results_stay_up_to_date_until_the_way_changes(world: World) -> None:
    world.did("translate", *VOLUME)
    assert "1 up to date" in world.did("translate", *VOLUME)
    scored = world.did("translate", *VOLUME, "--seam-score", "--overlap", "0.5")
    assert "1 up to date" in scored  # where borders would be changes no voxel
    assert "1 translated" in world.did("translate")
    assert "1 up to date" in world.did("translate", *PATCHES)


def test_plan_shows_what_it_takes(world: World) -> None:
    reported = world.did("plan", *VOLUME)
    assert re.search(r"a\.nii\.gz +volume ", reported)
    assert "whole-volume inference on 22x36x26 voxels, in " in reported
    assert "1 to translate in 1 volume; nothing was written" in reported
    world.did("translate", *VOLUME)
    again = world.did("plan", *VOLUME, "--overwrite")
    assert "Total time: known after" not in again
    assert "whole-volume inference" not in world.did("plan", *PATCHES)


def other_mode(reported: str) -> str:
    """Line of a plan on the other mode of inference; empty if there is none."""
    return " ".join(re.findall(r"^With --inference .*(?:\n .*)*", reported, re.MULTILINE))


@pytest.mark.parametrize(
    ("norm", "default", "shown"),
    [
        ("stored", None, "With --inference patches: time known after the first batch with it; "),
        ("instance", "patches", "With --inference volume: time known after the first batch with"),
        ("instance", "volume", "With --inference patches: time known after the first batch with"),
        ("instance", None, ""),
    ],
)
def test_plan_shows_the_other_mode_if_there_is_a_choice(
    world: World, norm: Norm, default: Any, shown: str
) -> None:
    model_of(world.model, norm)
    with_card(world.model, inference=default)
    reported = " ".join(other_mode(world.did("plan")).split())
    assert reported.startswith(shown)
    assert bool(reported) == bool(shown)
    is_same = norm == "stored"
    values = "the same values, except near borders of patches" if is_same else "differing values"
    assert values in reported or not shown


@pytest.mark.skipif(not has_bf16(), reason="the processor has no bf16")
def test_the_cpu_computes_volumes_in_bf16(world: World) -> None:
    report = world.report(*VOLUME, "--precision", "bf16")
    assert [row["status"] for row in report["studies"]] == ["translated"]
    assert report["settings"]["precision"] == "bf16"
    assert "volume" in world.did("plan", *VOLUME, "--precision", "bf16", "--overwrite")


def figures_of(row: cc.PlannedRow) -> tuple[float | None, int, int | None]:
    return row.seconds, row.host_bytes, row.device_bytes


def figures_in_other_mode(row: cc.PlannedRow) -> tuple[float | None, int | None, int | None]:
    return row.other_seconds, row.other_host_bytes, row.other_device_bytes


@pytest.mark.parametrize("default", ["patches", "volume"])
def test_figures_of_the_other_mode_are_those_of_a_plan_in_it(world: World, default: Any) -> None:
    scan(world.inputs / "b.nii.gz", seed=1, shape=(40, 20, 30))
    with_card(world.model, inference=default)
    back = random_model(world.root / "back.safetensors", "T2", "T1", 2)
    random_model(world.model, "T1", "T2", 1)
    with_card(world.model, inference=default)
    others: dict[str, Any] = {"patches": "volume", "volume": "patches"}
    check = cc.CycleCheck(str(back))

    def rows(inference: Any) -> list[cc.PlannedRow]:
        options = cc.TranslateOptions(
            inference=inference, overwrite=True, cycle_check=check, verify=2, seam_score=True
        )
        return cc.plan(world.inputs, world.model, world.output, device="cpu", options=options)

    flags = ("--cycle-check", str(back), "--verify", "2", "--seam-score", "--overwrite")
    other = others[default]
    world.did("translate", "--inference", default, *flags)
    assert [row.seconds is None for row in rows(default)] == [False] * 2
    assert [row.other_seconds for row in rows(default)] == [None] * 2
    world.did("translate", "--inference", other, *flags)
    made, wanted = rows(default), rows(other)
    assert {row.inference for row in made} == {default}
    assert [*map(figures_in_other_mode, made)] == [*map(figures_of, wanted)]
    assert None not in [row.other_seconds for row in made]
    assert [*map(figures_in_other_mode, wanted)] == [*map(figures_of, made)]
    total = re.search(r"Total time: (.*)", world.did("plan", "--inference", other, *flags))
    assert total
    assert f"{other}: {total[1]}; " in other_mode(world.did("plan", *flags))


def test_plan_shows_studies_that_would_fail_in_the_other_mode(world: World) -> None:
    with_card(world.model, inference="patches")
    scan(world.inputs / "small.nii.gz", shape=(2, 20, 20))
    reported = " ".join(other_mode(world.did("plan")).split())
    assert "With --inference volume: 1 study would fail; engine: " in reported
    assert "on 2x20x20" in reported
    assert "of RAM" in reported
    small, large = (
        row.other_reason
        for row in sorted(
            cc.plan(world.inputs, world.model, world.output, device="cpu"), key=lambda r: r.voxels
        )
    )
    assert "on 2x20x20" in str(small)
    assert large is None


def test_too_little_memory_is_reported_before_anything_is_computed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.networks.available_memory", lambda: 1 << 20)
    for command, status in (("plan", 0), ("translate", 1)):
        done = world.run(command, *VOLUME)
        assert done.exit_code == status
        assert re.search(r"needs [\d.]+ GiB of\s+memory", done.output)
        assert "use --inference patches" in " ".join(done.output.split())


def test_a_volume_too_small_for_the_network_fails_alone(world: World) -> None:
    scan(world.inputs / "small.nii.gz", shape=(2, 20, 20))
    done = world.run("plan", *VOLUME)
    assert done.exit_code == 0
    assert "would fail: small.nii.gz" in done.output
    assert "does not support whole-volume inference on 2x20x20" in " ".join(done.output.split())
    rows = {row["name"]: row for row in world.report(*VOLUME)["studies"]}
    small = rows["small.nii.gz"]
    assert (small["status"], small["failed_in"]) == ("failed", "prepare")
    assert rows["a.nii.gz"]["status"] == "translated"


@pytest.mark.parametrize(
    "options",
    [
        ("--overlap", "0.5"),
        ("--blend", "linear"),
        ("--patch", "8,8,8"),
    ],
)
def test_features_of_patches_alone_are_refused_by_name(
    world: World, options: tuple[str, str]
) -> None:
    model_of(world.model, "stored")  # also where volumes are the default
    for command in ("plan", "translate"):
        done = world.run(command, *options)
        assert done.exit_code == 2, done.output
        assert options[0] in done.stderr
        assert "--inference" in done.stderr
    world.did("translate", *options, *PATCHES)


class OffInOnePlace:
    """Volumes by the CPU, but for a corner that is wrong by a factor."""

    def __init__(self, right: VolumeGenerator, factor: float) -> None:
        self.device, self.graph = "broken", right.graph
        self._right, self._factor = right, np.float32(factor)

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        timings = self._right.translate_volume(source, target, on_share)
        target.values[:, -4:, -4:, -4:] *= self._factor
        return timings


@pytest.mark.parametrize(("factor", "status"), [(1.0, "translated"), (1.1, "failed")])
def test_a_volume_is_verified_as_a_whole_and_part_by_part(
    world: World, monkeypatch: pytest.MonkeyPatch, factor: float, status: str
) -> None:
    model_of(world.model, "instance", Identity())
    voxels = np.random.default_rng(1).uniform(-1, 1, (70, 21, 66)).astype(np.float32)
    stored(world.inputs / "a.nii.gz", voxels)
    right = networks.open_volume_generator

    @contextmanager
    def off(*asked: Any) -> Generator[OffInOnePlace]:
        with right(*asked) as generator:
            yield OffInOnePlace(generator, factor)

    monkeypatch.setattr(networks, "open_volume_generator", off)
    [row] = world.report(*VOLUME, "--verify", "3")["studies"]
    assert row["status"] == status
    assert (row["verified"]["places"], row["verified"]["tiles"]) == (4, 1)
    assert (row["verified"]["error"] <= row["verified"]["allowed"]) == (factor == 1)
    assert (world.output / "a.nii.gz").exists() == (factor == 1)


def host_memory(reported: str) -> float:
    """Bytes of the largest study by what `plan` said."""
    [(number, unit)] = re.findall(r"RAM: ([\d.]+) (\w+)", reported)
    return float(number) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


def test_plan_shows_what_verifying_a_volume_costs(world: World) -> None:
    reported = world.did("plan", *VOLUME, "--verify", "2")
    assert "Verification: 1 volume computed again on the CPU, time unknown" in reported
    assert host_memory(reported) > host_memory(world.did("plan", *VOLUME)) + (1 << 10)
    world.did("translate", *VOLUME, "--verify", "2")
    scan(world.inputs / "b.nii.gz", seed=1, shape=ODD)
    reported = world.did("plan", *VOLUME, "--verify", "2", "--overwrite")
    assert re.search(
        r"Verification: 2 volumes computed again on the CPU, [\d.]+ s of CPU time", reported
    )


def test_a_seam_score_looks_where_borders_would_be(world: World) -> None:
    score = ("--seam-score", "--overlap", "0")
    patches = world.report(*PATCHES, *score)["studies"][0]["seam_score"]
    volume = world.report(*VOLUME, *score)["studies"][0]["seam_score"]
    assert all(volume[axis] is not None for axis in "dhw")
    assert abs(volume["worst"] - 1) < abs(patches["worst"] - 1)


def test_previews_spreads_and_notes_come_as_with_patches(world: World) -> None:
    [row] = world.report(*VOLUME, "--preview", "--spread", "2")["studies"]
    assert Path(row["preview"]).exists()
    assert row["tiles"] == 2
    assert row["spread"]["flips"] == 2
    maps = [np.asarray(nibabel.load(place).dataobj, np.float64) for place in row["maps"]]
    assert len(maps) == 2


def test_the_mean_of_a_spread_is_of_mirrored_volumes(world: World) -> None:
    model_of(world.model, "instance", Identity())
    voxels = np.random.default_rng(1).uniform(-1, 1, (20, 18, 16)).astype(np.float32)
    stored(world.inputs / "a.nii.gz", voxels)
    [row] = world.report(*VOLUME, "--spread", "2")["studies"]
    [mean] = (place for place in row["maps"] if "mean" in Path(place).name)
    right = (in_one_pass("instance", voxels) + in_one_pass("instance", voxels[::-1])[::-1]) / 2
    np.testing.assert_allclose(nibabel.load(mean).dataobj, right, atol=1e-4)


def test_a_cycle_check_leads_back_at_once_too(world: World) -> None:
    back = random_model(world.root / "back.safetensors", "T2", "T1", 2)
    random_model(world.model, "T1", "T2", 1)
    check = ("--cycle-check", str(back))
    volume = world.report(*VOLUME, *check)["studies"][0]
    patches = world.report(*PATCHES, *check)["studies"][0]
    assert volume["status"] == patches["status"] == "translated"
    assert volume["cycle"]["error"] != patches["cycle"]["error"]
    assert "translated back" in world.did("plan", *VOLUME, *check, "--overwrite")


def test_back_translation_that_does_not_fit_fails_before_it_is_computed(world: World) -> None:
    scan(world.inputs / "a.nii.gz", shape=(5, 20, 20))
    random_model(world.model, "T1", "T2", 1)
    deep = ResNetSpec(1, 1, 2, 1, downsamplings=3)
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in build(deep).weight_shapes()
    }
    back = world.root / "back.safetensors"
    back.write_bytes(model_bytes(deep, weights, WINDOW, "T1", "T2"))
    assert world.report(*VOLUME)["studies"][0]["status"] == "translated"
    check = ("--cycle-check", str(back), "--overwrite")
    [row] = world.report(*VOLUME, *check)["studies"]
    assert (row["status"], row["failed_in"]) == ("failed", "prepare")
    assert "does not support whole-volume inference on 5x20x20" in row["reason"]


def test_a_derived_series_conforms_and_holds_the_volume(world: World, tmp_path: Path) -> None:
    (world.inputs / "a.nii.gz").unlink()
    CT.write(world.inputs / "ct")
    identity_model(world.model, "CT", "CT")
    world.did("translate")
    series = sorted(world.output.rglob("*.dcm"))
    assert len(series) == CT.slices
    assert all(conformance_errors(path) == set() for path in series)
    [source] = converted(world.inputs / "ct", tmp_path / "before")
    [derived] = converted(series[0].parent, tmp_path / "after")
    np.testing.assert_array_equal(derived.get_fdata(), source.get_fdata())


def test_the_library_makes_the_same(world: World) -> None:
    world.did("translate", *VOLUME)
    events: list[cc.Event] = []
    model = cc.load_model(world.model)
    with cc.Translator(model, "cpu", inference="volume", on_event=events.append) as translator:
        made = translator.translate_file(world.inputs / "a.nii.gz")
    np.testing.assert_array_equal(made.values(), world.result("a.nii.gz"))
    reported = [event for event in events if isinstance(event, cc.TilesDone)]
    assert (reported[0].done, reported[-1].done) == (0, 100)
    assert {(event.total, event.unit) for event in reported} == {(100, "percent")}
    assert [event.done for event in reported] == sorted({event.done for event in reported})


@pytest.mark.parametrize(
    ("device", "refusal", "complaint"),
    [
        (Device("cuda", "fp16", ("fp16", "fp32")), "layer c has no form", "GPU: layer c has no"),
        (Device("onnxruntime", "fp32", ("fp32",), provider="Stand"), None, "only patch inference"),
    ],
)
def test_a_device_without_volumes_is_refused_before_any_study(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    refusal: str | None,
    complaint: str,
) -> None:
    form = "cuda_cyclegan.engine.whole_volume.volume_refusal"
    monkeypatch.setattr(form, lambda _: refusal)
    monkeypatch.setattr(decisions, "choose_devices", lambda *_: (device,))
    for command in ("plan", "translate"):
        done = world.run(command, *VOLUME)
        assert done.exit_code == 4, done.output
        assert complaint in done.stderr
    assert not world.output.exists()


def test_a_config_file_may_say_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    (world.root / "cuda-cyclegan.toml").write_text('[translate]\ninference = "volume"\n')
    assert world.report()["settings"]["inference"] == "volume"


class TestInTheQueue:
    @pytest.fixture
    def queue(self, tmp_path: Path) -> QueueWorld:
        world = QueueWorld(tmp_path)
        world.scans(1)
        return world

    def test_jobs_are_done_as_asked_and_stay_up_to_date(self, queue: QueueWorld) -> None:
        batch = queue.submit(*VOLUME)
        queue.work()
        assert queue.states(batch) == ["done"]
        made = (queue.output / "000.nii").read_bytes()
        assert "1 up to date" in queue.command("translate", *VOLUME).stdout
        again = queue.submit(*VOLUME)
        queue.work()
        assert queue.jobs(again)[0]["result"]["status"] == "up to date"
        queue.command("translate", *VOLUME, "--overwrite")
        assert (queue.output / "000.nii").read_bytes() == made
        assert "1 translated" in queue.command("translate").stdout

    def test_a_models_default_is_decided_at_submission(self, queue: QueueWorld) -> None:
        model_of(queue.model, "stored")
        batch = queue.submit()
        queue.work()
        report = queue.folder / "report.json"
        queue.did("jobs", "summary", batch, "--report", str(report))
        assert json.loads(report.read_text())["settings"]["inference"] == "volume"

    @pytest.mark.slow
    def test_arriving_scan_is_translated_immediately(self, queue: QueueWorld) -> None:
        paths = [str(queue.inputs), "--model", str(queue.model), "--output", str(queue.output)]
        watch = queue.start("watch", *paths, *VOLUME, "--settle", "0")
        assert watch.stderr is not None
        assert any("1 study queued" in line or "1 studies queued" in line for line in watch.stderr)
        watch.terminate()
        watch.communicate()
        queue.work()
        assert "1 up to date" in queue.command("translate", *VOLUME).stdout


def test_calibrate_compares_both_and_writes_what_is_chosen(world: World) -> None:
    target = world.root / "at-once.safetensors"
    words = ["model", "calibrate", world.model, "--scans", reference_set(world.root / "set")]
    asked = ["--compare-inference", "--inference", "volume", "--device", "cpu"]
    done = CliRunner().invoke(app, [*map(str, words), "--output", str(target), *asked])
    assert done.exit_code == 0, done.output
    assert "seam, patches" in done.stdout
    assert re.search(r"^0\.nii +\d\.\d{3} +\d\.\d{3} ", done.stdout, re.MULTILINE)
    assert "relative L2" in done.stdout
    assert load_model(target).card.inference == "volume"
    world.did("translate", *VOLUME)
    world.model = target
    assert "1 up to date" in world.did("translate")


def test_calibrate_leaves_the_default_as_it_is_unless_reported(world: World) -> None:
    with_card(world.model, inference="volume")
    target = world.root / "calibrated.safetensors"
    words = ["model", "calibrate", world.model, "--scans", reference_set(world.root / "set")]
    done = CliRunner().invoke(app, [*map(str, words), "--output", str(target)])
    assert done.exit_code == 0, done.output
    assert "seam" not in done.stdout
    assert load_model(target).card.inference == "volume"
