"""`model combine`: one model file with the mean of several."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import scan, with_card
from support.model_folder import run
from support.model_pair import random_model
from support.translate_world import World
from typer.testing import CliRunner

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.cpu.session import session_bytes
from cuda_cyclegan.engine.model.calibration import (
    CycleReference,
    Expectations,
    ResultReference,
    ScanProfiles,
    Typical,
)
from cuda_cyclegan.engine.model.model_card import Established
from cuda_cyclegan.engine.model.model_file import encode_model, load_model
from cuda_cyclegan.engine.model.reference import array_sha256
from cuda_cyclegan.engine.network.graph_analysis import flops
from cuda_cyclegan.io.volume import Volume

nibabel: Any = _nibabel
SEEDS = (0, 1, 2)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [random_model(tmp_path / f"fold{seed}.safetensors", seed=seed) for seed in SEEDS]


def combined(files: Sequence[Path], *options: str) -> Path:
    output = files[0].parent / "mean.safetensors"
    done = run("combine", *files, "--output", output, *options)
    assert done.exit_code == 0, done.stderr
    return output


def translated(file: Path, inference: Literal["patches", "volume"]) -> Any:
    """A float32 volume of several patches as the model of a file translates it, in float64."""
    noise = np.random.default_rng(5).normal(500, 200, (36, 30, 28))
    volume = Volume(np.asfortranarray(noise, np.float32), np.eye(4), None, "nifti")
    with cc.Translator(load_model(file), "cpu", inference=inference) as translator:
        return translator.translate(volume).values().astype(np.float64)


@pytest.mark.parametrize("inference", ["patches", "volume"])
def test_its_results_are_the_mean_of_those_of_each(
    files: list[Path], inference: Literal["patches", "volume"]
) -> None:
    each = [translated(file, inference) for file in files]
    wanted = np.mean(each, axis=0)
    made = translated(combined(files), inference)
    assert np.abs(made - wanted).max() < 5e-7 * np.ptp(wanted)
    assert all(np.abs(one - wanted).max() > 0.3 * np.ptp(wanted) for one in each)


def test_results_of_whole_numbers_are_the_rounded_mean(tmp_path: Path, files: list[Path]) -> None:
    world = World(tmp_path)
    file = scan(world.inputs / "a.nii", shape=(36, 30, 28))
    volume = nibabel.load(file)
    as_float = Volume(
        np.asfortranarray(volume.get_fdata(), np.float32), volume.affine, None, "nifti"
    )
    each: list[Any] = []
    for one in files:
        with cc.Translator(load_model(one), "cpu") as translator:
            each.append(translator.translate(as_float).values().astype(np.float64))
    world.model = combined(files)
    assert world.translate("--device", "cpu").exit_code == 0
    made = nibabel.load(world.output / "a.nii")
    assert made.get_data_dtype() == np.int16
    step = float(made.dataobj.slope)
    assert np.abs(made.get_fdata() - np.mean(each, axis=0)).max() <= 0.5 * step + 1e-3
    again = world.translate("--device", "cpu")
    assert "1 up to date" in " ".join(again.output.split())


def planned(world: World) -> tuple[int, int]:
    """Patches and MiB of a plan."""
    done = CliRunner().invoke(app, ["plan", *world.arguments("--device", "cpu")])
    found = re.search(r"a\.nii +(\d+) +(\d+) MiB", done.stdout)
    assert found, done.output
    return int(found[1]), int(found[2])


def test_the_plan_has_the_patches_of_one_and_the_memory_of_all_weights(
    tmp_path: Path, files: list[Path]
) -> None:
    world = World(tmp_path)
    scan(world.inputs / "a.nii", shape=(128, 128, 64))
    world.model = files[0]
    one = planned(world)
    world.model = combined(files)
    mean = planned(world)
    assert mean[0] == one[0]
    networks = [load_model(file).network for file in (files[0], world.model)]
    needed = [
        session_bytes(network, (16, 16, 16)) + sum(each.nbytes for each in network.weights.values())
        for network in networks
    ]
    patch = 16, 16, 16
    assert flops(networks[1].graph, patch) == len(files) * flops(networks[0].graph, patch)
    assert abs((mean[1] - one[1]) * 2**20 - (needed[1] - needed[0])) <= 2**20


def test_the_card_names_the_models_and_keeps_what_they_share(files: list[Path]) -> None:
    with_card(files[0], established=Established("code", "ganslate"))
    with_card(files[1], established=Established("graph"))
    first, second = map(load_model, files[:2])
    card = load_model(combined(files[:2])).card
    assert card.name == "T1 to T2, mean of 2"
    assert card.established == Established("graph")
    assert (card.intensity_in, card.patch) == (first.card.intensity_in, first.card.patch)
    assert card.provenance.source == "fold0.safetensors, fold1.safetensors"
    assert first.sha256 in card.provenance.notes
    assert second.sha256 in card.provenance.notes
    assert load_model(combined(files, "--name", "All", "--force")).card.name == "All"


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_reference_is_proof_only_if_all_have_it_for_one_patch(
    files: list[Path], *, is_shared: bool
) -> None:
    for number, file in enumerate(files):
        model = load_model(file)
        card = replace(model.card, reference=replace(model.card.reference, made_by="training code"))
        pair = model.reference_input, model.reference_output
        if number and not is_shared:
            pair = tuple(array[:, :, :16].copy() for array in pair)
            hashes = map(array_sha256, pair)
            card = replace(card, reference=replace(card.reference, **_hashes(*hashes)))
        file.write_bytes(encode_model(card, model.network, *pair))
    mean = combined(files)
    reported = run("verify", mean)
    assert reported.exit_code == 0
    assert ("matches the training code" in reported.stdout) == is_shared


def _hashes(patch: str, output: str) -> dict[str, str]:
    return {"input_sha256": patch, "output_sha256": output}


def test_a_stored_reference_that_a_network_does_not_compute_is_refused(files: list[Path]) -> None:
    model = load_model(files[1])
    wrong = model.reference_output + np.float32(0.1)
    reference = replace(model.card.reference, output_sha256=array_sha256(wrong))
    card = replace(model.card, reference=reference)
    files[1].write_bytes(encode_model(card, model.network, model.reference_input, wrong))
    done = run("combine", *files, "--output", files[0].with_name("mean.safetensors"))
    assert done.exit_code == 2
    assert "check each with 'model verify'" in done.stderr


def test_cards_that_differ_are_refused_with_all_differences(tmp_path: Path) -> None:
    first = random_model(tmp_path / "a.safetensors")
    other = random_model(tmp_path / "b.safetensors", "T1", "CT", 1, (1.0, 1.0, 2.0), "SPL")
    output = tmp_path / "mean.safetensors"
    done = run("combine", first, other, "--output", output)
    assert done.exit_code == 2
    for difference in (
        'target ("T2" and "CT")',
        'axes ("RAS" and "SPL")',
        "spacing (null and [1.0, 1.0, 2.0])",
    ):
        assert difference in done.stderr
    assert "intensity" not in done.stderr
    assert not output.exists()


def test_file_without_an_ensemble_is_refused(files: list[Path]) -> None:
    before = files[0].read_bytes()
    other = files[0].with_name("mean.safetensors")
    copy = files[0].with_name("copy.safetensors")
    copy.write_bytes(before)
    run("edit", files[0], "--output", copy, "--name", "Another", "--force")
    damaged = files[0].with_name("damaged.safetensors")
    damaged.write_bytes(before[:-1])
    for words, reason in (
        ([files[0]], "name two or more"),
        ([files[0], copy], "hold the same network"),
        ([files[0], damaged], "damaged.safetensors"),
        ([files[0], other], "does not exist"),
    ):
        done = run("combine", *words, "--output", other)
        assert done.exit_code == 2
        assert done.stderr.startswith("Error: ")
        assert reason in done.stderr
    assert not other.exists()
    assert run("combine", *files, "--output", files[0], "--force").exit_code == 2
    assert files[0].read_bytes() == before


def test_figures_of_one_model_are_not_those_of_the_mean(files: list[Path]) -> None:
    with_card(files[0], cycle=CycleReference("0" * 64, 6, Typical(0.1, 0.2)))
    output = files[0].with_name("mean.safetensors")
    done = run("combine", *files, "--output", output)
    assert "of one network: statistics of a reference set" in done.stdout
    assert load_model(output).card.cycle is None


def test_models_that_were_calibrated_apart_can_be_combined(files: list[Path]) -> None:
    usual = Typical(1.0, 0.5)
    for at, file in enumerate(files):
        eighths = (Typical(1.0, 0.1 * at),) * 8
        with_card(
            file,
            expected=Expectations(20, (usual,) * 5, (usual,) * 3, (usual,) * 3),
            profiles=ScanProfiles(eighths, eighths, eighths),
            results=ResultReference(20 + at, (1.0, 1.0, 1.0), ()),
        )
    card = load_model(combined(files)).card
    assert card.expected is card.profiles is card.results is None
