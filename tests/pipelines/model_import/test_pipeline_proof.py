"""A whole scan of the training code proves a model's pipeline, or shows which option is wrong."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from scipy.ndimage import correlate
from support.onnx_files import model, node, written
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.options.model import parsed_grid_window
from cuda_cyclegan.engine.model.intensity_maps import Window
from cuda_cyclegan.engine.model.model_card import PipelineProof
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.engine.model.tiling import Tiling
from cuda_cyclegan.io.discovery import discover, only_study
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.model_import.pipeline_proof import Mismatch, prove_pipeline
from cuda_cyclegan.pipelines.model_import.whole_scan import planned, translated

RANDOM = np.random.default_rng(3)
KERNEL = RANDOM.normal(size=(3, 3, 3)).astype(np.float32) / 4
"""Kernel without symmetry, so that every turn of a scan shows."""

AFFINE = np.diag([-1.0, 1.2, 1.5, 1.0])
STATED = (
    "--source T1 --target T2 --axes RAS --spacing native --intensity-in window:0,1000 "
    "--intensity-out window:0,500 --input-range open --output-range open"
)


def by_training_code(values: Any) -> Any:
    """The whole scan, turned to RAS, through the kernel and back."""
    network = values[::-1] / 500 - 1
    made = correlate(network, KERNEL, mode="constant")
    return ((made + 1) * 250)[::-1]


class World:
    """A network with its reference, and a scan with what the training code made of it."""

    def __init__(self, folder: Path) -> None:
        proto = model(
            [node("Conv", "x w", "y", pads=[1] * 6)], {"w": KERNEL[np.newaxis, np.newaxis]}
        )
        self.folder, self.network = folder, written(proto, folder / "net.onnx")
        self.model = folder / "m.safetensors"
        patch = RANDOM.uniform(-1, 1, (16, 16, 16)).astype(np.float32)
        made = correlate(patch, KERNEL, mode="constant")
        np.savez(folder / "ref.npz", input=patch[None, None], output=made[None, None])
        voxels = RANDOM.uniform(0, 1000, (14, 15, 13)).astype(np.int16)
        self.scan = self.saved("scan", voxels)
        self.result = by_training_code(voxels.astype(np.float64))
        self.output = self.saved("output", self.result.astype(np.float32))

    def saved(self, name: str, voxels: Any, affine: Any = AFFINE) -> Path:
        path = self.folder / f"{name}.nii"
        nibabel.Nifti1Image(voxels, affine).to_filename(path)
        return path

    def import_(self, *words: object, patch: str = "whole") -> Result:
        command = ["model", "import", self.network, "--output", self.model, "--force"]
        said = [*command, *STATED.split(), "--patch", patch, *words]
        return CliRunner().invoke(app, [str(word) for word in said])

    def proved(self, output: Path, *words: object) -> Result:
        reference = ["--reference", self.folder / "ref.npz"]
        return self.import_(*reference, "--reference-scan", self.scan, output, *words)

    def imported(self) -> Model:
        result = self.import_("--reference", self.folder / "ref.npz")
        assert result.exit_code == 0, result.stderr
        return load_model(self.model)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_card_keeps_the_proof_and_plan_shows_it(world: World) -> None:
    plan = ["plan", str(world.scan), "--model", str(world.model), "--device", "cpu"]
    plan += ["--output", str(world.folder / "results")]
    assert world.imported().card.pipeline is None
    assert "Pipeline: unproven; " in CliRunner().invoke(app, plan).stdout
    result = world.proved(world.output)
    assert result.exit_code == 0, result.stderr
    assert "Proved: the pipeline" in " ".join(result.stdout.split())
    proof = load_model(world.model).card.pipeline
    assert proof is not None
    assert proof.difference <= 1e-6
    assert proof.allowed == pytest.approx(1e-4)
    assert "Pipeline: proved by" in CliRunner().invoke(app, plan).stdout
    others = CliRunner().invoke(app, [*plan, "--inference", "patches"]).stdout
    assert "Pipeline: unproven for these patches" in others


def test_half_a_storage_step_is_allowed_and_no_more(world: World) -> None:
    rounded = world.saved("rounded", np.rint(world.result).astype(np.int16))
    assert world.proved(rounded).exit_code == 0
    cut = world.saved("cut", np.floor(world.result).astype(np.int16))
    found = prove_pipeline(load_model(world.model), world.scan, cut, seconds=0)
    assert isinstance(found, Mismatch)
    assert (found.named, found.tried) == ((), 0)


def test_other_axes_and_the_grid_of_the_model_are_the_same_result(world: World) -> None:
    turned = AFFINE @ [[-1, 0, 0, 13], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    output = world.saved("ras", np.ascontiguousarray(world.result[::-1]), turned)
    assert world.proved(output).exit_code == 0


def test_nothing_is_written_for_a_mirrored_result(world: World) -> None:
    mirrored = world.saved("mirrored", np.ascontiguousarray(world.result[:, ::-1]))
    result = world.proved(mirrored)
    assert result.exit_code == 2
    assert "Explained: OUTPUT is a mirror image along j" in " ".join(result.stderr.split())
    assert not world.model.exists()


@pytest.mark.parametrize(
    ("words", "patch", "message"),
    [
        ("", "whole", "needs --reference"),
        ("--reference ref.npz", "8,8,8", "--tiling"),
    ],
)
def test_prerequisite_is_requested(
    words: str, patch: str, message: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    result = world.import_(
        "--reference-scan", world.scan, world.output, *words.split(), patch=patch
    )
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not world.model.exists()


def test_results_that_prove_nothing_are_refused(world: World) -> None:
    shifted = AFFINE.copy()
    shifted[0, 3] = 40
    for output, message in (
        (world.saved("flat", np.zeros((14, 15, 13), np.float32)), "one value throughout"),
        (world.saved("far", world.result.astype(np.float32), shifted), "the scan's affine"),
        (world.saved("two", np.zeros((14, 15, 13, 2), np.float32)), "2 volumes"),
        (world.saved("small", world.result[:9].astype(np.float32)), "neither the scan's grid"),
    ):
        result = world.proved(output)
        assert result.exit_code == 2, output
        assert message in " ".join(result.stderr.split())


SINGLE: dict[str, dict[str, Any]] = {
    "axes": {"axes": "LPS"},
    "turned": {"axes": "SAR"},
    "intensity_in": {"intensity_in": Window(0.0, 2000.0)},
    "intensity_out": {"intensity_out": Window(20.0, 400.0)},
    "spacing": {"spacing": (1.0, 1.0, 1.0)},
    "tiling": {"inference": "patches", "patch": (8, 8, 8)},
}


def explained(world: World, *faults: str) -> set[str]:
    """Options that are named for a model with these faults.

    The network is linear but for its padding, so a window that only scales its input is also one of
    its output; none here does.
    """
    good = world.imported()
    changes: dict[str, Any] = {}
    for fault in faults:
        changes |= SINGLE[fault]
    found = prove_pipeline(
        replace(good, card=replace(good.card, **changes)), world.scan, world.output
    )
    if isinstance(found, PipelineProof):
        return {"nothing"}
    for change in found.named:
        assert change.card.axes == good.card.axes
        assert found.difference > found.allowed
    return {change.field for change in found.named}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["axes", "turned", "intensity_in", "intensity_out", "spacing", "tiling"]
)
def test_a_single_fault_is_named(fault: str, world: World) -> None:
    option = {"turned": "axes", "tiling": "patch"}.get(fault, fault)
    equal = {"tiling"} if fault == "tiling" else set[str]()  # crops of half an overlap, too
    assert explained(world, fault) == {option} | equal


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        ("axes", "intensity_in"),
        ("turned", "intensity_out"),
        ("axes", "tiling"),
        ("intensity_out", "spacing"),
        ("tiling", "spacing"),
    ],
)
def test_double_faults_are_never_misnamed(faults: tuple[str, str], world: World) -> None:
    assert explained(world, *faults) == set()


@dataclass(frozen=True)
class Windowed:
    """A training code that crops (below 0) or pads the scan's grid along D, H and W before the
    network. grid_window: as the option states it.
    """

    grid_window: str
    sides: tuple[tuple[int, int], ...]
    padding: float = 0.0
    fill: float = 0.0

    def output(self, values: Any) -> tuple[Any, Any]:
        """Return results on the scan's grid and, with axes RAS, on the window's."""
        network = values[::-1] / 500 - 1
        inside = tuple(
            slice(max(-before, 0), size - max(-after, 0))
            for (before, after), size in zip(self.sides, network.shape, strict=True)
        )
        pads = [(max(before, 0), max(after, 0)) for before, after in self.sides]
        cut = np.pad(network[inside], pads, constant_values=self.padding)
        made = (correlate(cut, KERNEL, mode="constant") + 1) * 250
        whole = np.full(values.shape, float(self.fill))
        kept = zip(pads, cut.shape, strict=True)
        whole[inside] = made[tuple(slice(low, size - high) for (low, high), size in kept)]
        return whole[::-1], made


WINDOWED = {
    "padded": Windowed("multiple:16,padding=-1", ((1, 1), (0, 1), (1, 2)), padding=-1),
    "cropped": Windowed(
        *("extents:10/12/16,padding=-1,fill=-100", ((-2, -2), (-1, -2), (1, 2))),
        padding=-1,
        fill=-100,
    ),
    "foreground": Windowed("positive:1", 3 * ((-2, -2),)),
}


class WindowWorld(World):
    """A world whose training code crops or pads the scan, which is dark around its middle."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self.truth = WINDOWED[name]
        voxels = RANDOM.uniform(0, 450, (14, 15, 13)).astype(np.int16)
        voxels[3:-3, 3:-3, 3:-3] = RANDOM.uniform(550, 1000, (8, 9, 7))
        self.scan = self.saved("scan", voxels)
        self.result, self.on_window = self.truth.output(voxels.astype(np.float64))
        self.output = self.saved("output", self.result.astype(np.float32))

    def found(self, stated: str | None, *faults: str) -> PipelineProof | Mismatch:
        good = self.imported()
        changes: dict[str, Any] = {"grid_window": parsed_grid_window(stated)}
        for fault in faults:
            changes |= SINGLE[fault]
        card = replace(good.card, **changes)
        return prove_pipeline(replace(good, card=card), self.scan, self.output)


@pytest.mark.parametrize("grid", ["scan", "model"])
@pytest.mark.parametrize("name", WINDOWED)
def test_right_window_on_the_grid_is_proved(name: str, grid: str, tmp_path: Path) -> None:
    world = WindowWorld(tmp_path, name)
    output = world.output
    if grid == "model":
        affine = np.diag([1.0, 1.2, 1.5, 1.0])
        output = world.saved("window", world.on_window.astype(np.float32), affine)
    result = world.proved(output, "--grid-window", world.truth.grid_window)
    assert result.exit_code == 0, result.stderr
    proof = load_model(world.model).card.pipeline
    assert proof is not None
    assert proof.difference <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("padded", None),
        ("padded", "multiple:16,padding=edge"),
        ("padded", "multiple:5,padding=-1"),
        ("padded", "multiple:16+before:2,padding=-1"),
        ("cropped", "at-least:10/12/16,padding=-1,fill=-100"),
        ("cropped", "extents:12/10/16,padding=-1,fill=-100"),
        ("cropped", "extents:10/12/16,padding=edge,fill=-100"),
        ("foreground", None),
        ("foreground", "positive:0"),
        ("foreground", "positive:1+at-most:6"),
    ],
)
def test_wrong_window_on_the_grid_is_named(name: str, stated: str | None, tmp_path: Path) -> None:
    world = WindowWorld(tmp_path, name)
    found = world.found(stated)
    assert isinstance(found, Mismatch)
    assert {change.field for change in found.named} == {"grid_window"}
    truth = parsed_grid_window(world.truth.grid_window)
    assert truth in [change.card.grid_window for change in found.named]


@pytest.mark.slow
def test_fill_of_a_window_is_named(tmp_path: Path) -> None:
    """The value that MONAI's inverse gives if its zeros are mapped to the result's window."""
    world = WindowWorld(tmp_path, "cropped")
    world.truth = replace(world.truth, fill=250)
    voxels = np.asarray(nibabel.load(world.scan).dataobj, np.float64)
    result, _ = world.truth.output(voxels)
    world.output = world.saved("output", result.astype(np.float32))
    found = world.found("extents:10/12/16,padding=-1")
    assert isinstance(found, Mismatch)
    wanted = parsed_grid_window("extents:10/12/16,padding=-1,fill=250")
    assert [change.card.grid_window for change in found.named] == [wanted]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stated", "fault"),
    [
        ("padded", None, "axes"),
        ("padded", "multiple:16,padding=edge", "intensity_out"),
        ("cropped", "extents:10/12/16,padding=-1", "turned"),
        ("cropped", "extents:12/10/16,padding=-1,fill=-100", "intensity_in"),
        ("foreground", None, "spacing"),
        ("foreground", "positive:0", "tiling"),
        ("foreground", "positive:2+at-least:16", "axes"),
    ],
)
def test_wrong_window_with_another_fault_is_never_misnamed(
    name: str, stated: str | None, fault: str, tmp_path: Path
) -> None:
    found = WindowWorld(tmp_path, name).found(stated, fault)
    assert isinstance(found, Mismatch)
    assert found.named == ()
    assert found.tried == found.count


@pytest.mark.slow
def test_message_names_a_window_to_leave_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    result = world.proved(world.output, "--grid-window", "after:3,padding=-1")
    assert result.exit_code == 2
    assert "with no --grid-window" in " ".join(result.stderr.split())


def in_patches(world: WindowWorld, grid_window: str, width: int = 3) -> Model:
    good = world.imported()
    card = replace(good.card, grid_window=parsed_grid_window(grid_window), patch=(3, 3, width))
    tiling = Tiling("monai", blend="constant")
    return replace(good, card=replace(card, inference="patches", tiling=tiling))


def scans(world: WindowWorld) -> list[Volume]:
    return [read(only_study(world.scan, discover([world.scan], None)))]


@pytest.mark.parametrize("window", ["before:12,padding=-1", "positive:1", "extents:10/12/16"])
def test_patches_of_one_place_are_those_of_the_whole_scan(window: str, tmp_path: Path) -> None:
    world = WindowWorld(tmp_path, "padded")
    model, volumes = in_patches(world, window), scans(world)
    plan = planned(model, volumes)
    whole = translated(model, volumes, plan).on_scan()
    for place in ((0.99, 0.01, 0.99), (0.01, 0.99, 0.3), (0.3, 0.7, 0.01)):
        part = translated(model, volumes, plan, place)
        made = part.on_scan()
        known = np.isfinite(made)
        voxel = tuple(int(share * size) for share, size in zip(place, made.shape[1:], strict=True))
        assert part.is_part
        assert known[0][voxel]
        np.testing.assert_allclose(made[known], whole[known], atol=1e-3)


@pytest.mark.slow
def test_padding_is_named_from_a_result_on_the_grid_of_the_window(tmp_path: Path) -> None:
    """The results differ in the padding and where the scan begins, in the middle of the window."""
    world = WindowWorld(tmp_path, "padded")
    model, volumes = in_patches(world, "before:0/0/12,padding=-1", 9), scans(world)
    right = translated(model, volumes, planned(model, volumes))
    output = world.saved("window", right.on_grid()[0], np.diag([1.0, 1.2, 1.5, 1.0]))
    assert isinstance(prove_pipeline(model, world.scan, output), PipelineProof)
    found = prove_pipeline(in_patches(world, "before:0/0/12,padding=edge", 9), world.scan, output)
    assert isinstance(found, Mismatch)
    assert {change.field for change in found.named} == {"grid_window"}
    assert model.card.grid_window in [change.card.grid_window for change in found.named]
