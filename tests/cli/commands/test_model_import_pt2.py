"""`model import` of torch.export archives as a user meets it."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.torch_exports import Handmade, call, tensor
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.model.model_card import Established
from cuda_cyclegan.engine.model.model_file import load_model

DATA = (
    "--source T1 --target CT --intensity-in identity --intensity-out identity --axes RAS "
    "--spacing native --patch 8,8,8 --input-range open --output-range open"
)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return Handmade().written(tmp_path / "net.pt2")


def import_(archive: Path, *options: object) -> Result:
    output = archive.with_suffix(".safetensors")
    return run("model", "import", archive, "--output", output, *DATA.split(), *options)


def test_an_archive_becomes_a_model(archive: Path) -> None:
    result = import_(archive)
    assert result.exit_code == 0, result.stderr
    assert "aten.conv3d x 1, aten.relu x 1" in " ".join(result.stdout.split())
    model = load_model(archive.with_suffix(".safetensors"))
    assert model.card.established == Established("graph")
    assert model.card.provenance.layout == "layers of a torch.export program"
    patch = np.ones((1, 1, 8, 8, 8), np.float32)
    with open_cpu_generator(model.network, threads=1) as generator:
        middle = generator(patch)[0, 0, 4, 4, 4]
    assert middle == pytest.approx(max(0, Handmade().weight.sum()), rel=1e-5)


def test_a_reference_proves_or_refuses_it(archive: Path, tmp_path: Path) -> None:
    patch = np.random.default_rng(0).normal(size=(1, 1, 8, 8, 8)).astype(np.float32)
    import_(archive)
    with open_cpu_generator(load_model(archive.with_suffix(".safetensors")).network) as generator:
        made = generator(patch)
    np.savez(tmp_path / "good.npz", input=patch, output=made)
    np.savez(tmp_path / "bad.npz", input=patch, output=made + 1)
    assert import_(archive, "--force", "--reference", tmp_path / "good.npz").exit_code == 0
    refused = import_(archive, "--force", "--reference", tmp_path / "bad.npz")
    assert refused.exit_code == 2
    assert "does not compute the reference" in refused.stderr


def test_inspect_lists_its_operators(archive: Path) -> None:
    result = run("model", "inspect", archive)
    assert result.exit_code == 0, result.stderr
    assert "aten.conv3d" in result.stdout
    assert json.loads(run("model", "inspect", archive, "--json").stdout)


def test_an_operator_without_a_rule_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    made = Handmade()
    made.graph["nodes"][1] = call("softsign", "relu", self=tensor("conv"))
    path = made.written(tmp_path / "net.pt2")
    result = import_(path)
    assert result.exit_code == 2
    assert "aten.softsign (node 'relu')" in result.stderr
    assert {one.name for one in tmp_path.iterdir()} == {"net.pt2"}


def test_an_option_about_the_network_has_no_meaning(archive: Path) -> None:
    result = import_(archive, "--unproven")
    assert result.exit_code == 2
    assert "--unproven does not apply" in result.stderr
