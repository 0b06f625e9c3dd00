"""`model combine --disagreement`: a map next to each result, and a measure wherever studies are
reported.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pydicom
import pytest
from support.batch_world import scan
from support.dicom_judges import conformance_errors
from support.dicom_phantoms import PATIENT, Phantom
from support.model_folder import run
from support.model_pair import random_model
from support.pages import json_in
from support.queue_world import QueueWorld
from support.result_marks import read_mark
from typer.testing import CliRunner, Result

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.model.intensity_maps import Logarithm, SampleZScore, Steps, Window
from cuda_cyclegan.engine.model.model_file import encode_model, load_model
from cuda_cyclegan.io.volume import Volume

nibabel: Any = _nibabel
SEEDS = (0, 1, 2)
MAP = ".map-disagreement"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [random_model(tmp_path / f"fold{seed}.safetensors", seed=seed) for seed in SEEDS]


@pytest.fixture
def world(tmp_path: Path, files: list[Path]) -> QueueWorld:
    made = QueueWorld(tmp_path)
    scan(made.inputs / "a.nii.gz", shape=(30, 28, 26))
    scan(made.inputs / "b.nii", seed=1)
    made.model = combined(files)
    return made


def combined(files: Sequence[Path], *options: str) -> Path:
    output = files[0].parent / "ensemble.safetensors"
    done = run("combine", *files, "--output", output, "--disagreement", "--force", *options)
    assert done.exit_code == 0, done.stderr
    return output


def command(world: QueueWorld, name: str, *options: str) -> Result:
    words = [name, world.inputs, "--model", world.model, "--output", world.output]
    return CliRunner().invoke(app, [*map(str, words), "--device", "cpu", *options])


def rows(world: QueueWorld, *options: str) -> list[dict[str, Any]]:
    report = world.folder / "report.json"
    report.unlink(missing_ok=True)
    done = command(world, "translate", *options, "--report", str(report))
    assert done.exit_code == 0, done.output
    return json.loads(report.read_text())["studies"]


def values(path: Path) -> Any:
    return np.asarray(nibabel.load(path).get_fdata())


def results_of_each(files: Sequence[Path], file: Path) -> Any:
    """Return the float32 results of each model for a scan, as whole volumes."""
    image = nibabel.load(file)
    voxels = np.asfortranarray(image.get_fdata(), np.float32)
    volume, each = Volume(voxels, image.affine, None, "nifti"), list[Any]()
    for one in files:
        with cc.Translator(load_model(one), "cpu", inference="volume") as translator:
            each.append(translator.translate(volume).values().astype(np.float64))
    return np.stack(each)


def test_results_are_the_mean_and_maps_the_mean_deviation(
    world: QueueWorld, files: list[Path]
) -> None:
    first, _ = rows(world, "--inference", "volume", "--output-type", "float32")
    each = results_of_each(files, world.inputs / "a.nii.gz")
    mean, apart = each.mean(axis=0), np.abs(each - each.mean(axis=0)).mean(axis=0)
    assert np.abs(values(world.output / "a.nii.gz") - mean).max() < 1e-3
    made = nibabel.load(world.output / f"a{MAP}.nii.gz")
    assert made.get_data_dtype() == np.float32
    assert np.abs(made.get_fdata() - apart).max() < 1e-3
    assert apart.max() > 100
    assert first["maps"] == [str(world.output / f"a{MAP}.nii.gz")]
    assert re.search(
        r"peak RAM +disagreement +status", command(world, "translate", "--overwrite").stdout
    )
    assert first["measures"]["disagreement"] == pytest.approx(apart.mean(), rel=0.2)


def test_patches_are_blended_as_those_of_the_result(world: QueueWorld, files: list[Path]) -> None:
    """The mean deviation in each patch is at least that of the blended results."""
    [alone, _] = rows(world)
    world.model, world.output = files[0], world.folder / "one"
    [one, _] = rows(world)
    assert one["measures"]["disagreement"] is None
    assert one["maps"] == []
    made = values(world.folder / "out" / f"a{MAP}.nii.gz")
    apart = np.abs(values(world.folder / "out" / "a.nii.gz") - values(world.output / "a.nii.gz"))
    assert (apart <= len(files) * made + 2).all()
    assert alone["measures"]["disagreement"] > 0


def test_maps_follow_a_model_with_its_own_spacing(world: QueueWorld, tmp_path: Path) -> None:
    spaced = [
        random_model(tmp_path / f"{seed}.safetensors", seed=seed, spacing=(1.3, 1.2, 1.1))
        for seed in SEEDS
    ]
    world.model = combined(spaced)
    first, _ = rows(world)
    made = values(world.output / f"a{MAP}.nii.gz")
    assert made.shape == values(world.inputs / "a.nii.gz").shape
    assert made.min() >= 0
    assert made.mean() == pytest.approx(first["measures"]["disagreement"], rel=0.2)


def test_maps_have_marks_and_are_no_scans(world: QueueWorld) -> None:
    rows(world)
    marks = [read_mark(world.output / name) for name in ("b.nii", f"b{MAP}.nii")]
    assert [mark and mark.shows for mark in marks] == [None, "disagreement"]
    found = CliRunner().invoke(app, ["discover", str(world.output)]).stdout
    assert found.count("its name marks it as a map stored with a result") == 2


def test_a_second_run_keeps_results_maps_and_measures(world: QueueWorld) -> None:
    before = rows(world)
    again = rows(world)
    assert {row["status"] for row in again} == {"up to date"}
    assert [row["measures"] for row in again] == [row["measures"] for row in before]
    assert [row["maps"] for row in again] == [row["maps"] for row in before]
    (world.output / f"b{MAP}.nii").unlink()
    dues = {row["name"]: row["due"] for row in rows(world)}
    assert dues == {"a.nii.gz": None, "b.nii": "a map of its result was deleted"}


def test_a_model_without_disagreement_removes_the_map(world: QueueWorld, files: list[Path]) -> None:
    rows(world)
    world.model = files[0]
    rows(world)
    assert not list(world.output.glob("*.map-*"))


def test_the_page_and_a_preview_show_it(world: QueueWorld) -> None:
    rows(world, "--preview")
    page = world.folder / "page.html"
    report = [str(world.folder / "report.json"), "--html", str(page)]
    assert CliRunner().invoke(app, ["report", *report]).exit_code == 0
    titles = [measure["title"] for measure in json_in(page.read_text())["measures"]]
    assert "Disagreement" in titles
    pictures = {file: file.read_bytes() for file in world.output.glob("*.png")}
    for file in pictures:
        file.unlink()
    assert "2 previews drawn from existing files" in command(world, "translate", "--preview").stdout
    assert {file: file.read_bytes() for file in pictures} == pictures


def test_a_plan_counts_the_channel_and_the_map(world: QueueWorld, files: list[Path]) -> None:
    scan(world.inputs / "large.nii", shape=(96, 96, 96))
    with_map = planned(world)
    world.model = files[0].parent / "mean.safetensors"
    assert run("combine", *files, "--output", world.model).exit_code == 0
    without = planned(world)
    assert with_map[0] == without[0]
    array = 4 * 96**3 / 2**20
    assert 2 * array - 1 <= with_map[1] - without[1] <= 3 * array + 2


def planned(world: QueueWorld) -> tuple[int, int]:
    done = command(world, "plan")
    found = re.search(r"large\.nii +(\d+) +(\d+) MiB", done.stdout)
    assert found, done.output
    return int(found[1]), int(found[2])


def test_a_verified_study_and_its_cycle_check_take_the_first_channel(
    world: QueueWorld, tmp_path: Path
) -> None:
    back = [
        random_model(tmp_path / f"back{seed}.safetensors", "T2", "T1", seed=9 + seed)
        for seed in SEEDS
    ]
    forward = world.model
    reverse = combined(back).rename(tmp_path / "reverse.safetensors")
    world.model = combined([tmp_path / f"fold{seed}.safetensors" for seed in SEEDS])
    assert world.model == forward
    options = ("--verify", "1", "--seam-score", "--spread", "2", "--cycle-check", str(reverse))
    first, _ = rows(world, *options)
    assert first["verified"]["error"] <= first["verified"]["allowed"]
    assert [Path(place).name.partition(".map-")[2] for place in first["maps"]] == [
        "spread-mean.nii.gz",
        "spread-sd.nii.gz",
        "disagreement.nii.gz",
    ]
    assert first["cycle"]["error"] > 0
    assert first["seam_score"]["worst"] > 0


def test_jobs_make_the_same_files(world: QueueWorld) -> None:
    batch = world.submit()
    world.work()
    by_jobs = {path.name: path.read_bytes() for path in world.output.glob("*.nii*")}
    assert len(by_jobs) == 4
    assert "up to date" not in world.did("jobs", "summary", batch)
    world.output = world.folder / "by hand"
    rows(world)
    assert {path.name: path.read_bytes() for path in world.output.glob("*.nii*")} == by_jobs


@pytest.mark.process
def test_the_map_of_a_series_is_a_derived_series_without_a_fault(world: QueueWorld) -> None:
    world.inputs = world.folder / "dicom"
    Phantom("MR", slices=16, intercept=0.0).write(world.inputs)
    rows(world)
    shown = sorted(path for path in world.output.rglob("*.dcm") if MAP in str(path.parent))
    assert len(shown) == 16
    assert conformance_errors(shown[0]) == set()
    header = pydicom.dcmread(shown[0])
    assert header.Modality == "OT"
    assert "DISAGREEMENT" in header.ImageType
    assert "disagreement of 3 networks" in header.SeriesDescription
    assert not any(PATIENT in str(path) for path in world.output.rglob("*"))


def test_every_volume_of_a_file_is_refused(world: QueueWorld) -> None:
    for name in ("translate", "plan"):
        done = command(world, name, "--volume", "all")
        assert done.exit_code == 2
        assert "The disagreement that model" in done.stderr
        assert "--volume" in done.stderr


def test_its_models_are_not_combined_again(world: QueueWorld, files: list[Path]) -> None:
    done = run("combine", world.model, files[0], "--output", world.folder / "other.safetensors")
    assert done.exit_code == 2
    assert "name the models that it was combined from" in done.stderr


def test_models_whose_results_have_no_unit_of_deviation_are_refused(files: list[Path]) -> None:
    bent = Steps((Logarithm(1.0), SampleZScore()))
    for file in files:
        model = load_model(file)
        card = replace(model.card, intensity_out=bent)
        pair = model.reference_input, model.reference_output
        file.write_bytes(encode_model(card, model.network, *pair))
    output = files[0].with_name("bent.safetensors")
    done = run("combine", *files, "--output", output, "--disagreement")
    assert done.exit_code == 2
    assert "a logarithm or a gamma curve" in done.stderr
    assert run("combine", *files, "--output", output).exit_code == 0


def test_cards_that_differ_are_refused(files: list[Path], tmp_path: Path) -> None:
    other = random_model(tmp_path / "other.safetensors", seed=7, window=Window(0.0, 2000.0))
    output = tmp_path / "new.safetensors"
    done = run("combine", files[0], other, "--output", output, "--disagreement")
    assert done.exit_code == 2
    assert "intensity_out" in done.stderr
    assert not output.exists()


def test_its_card_is_verified_inspected_and_known_by_what_it_computes(
    world: QueueWorld, files: list[Path]
) -> None:
    model = load_model(world.model)
    assert model.card.disagreement == len(files)
    assert model.card.output_channels == ("T2",)
    assert run("verify", world.model).exit_code == 0
    assert "of 3 networks" in run("inspect", world.model).stdout
