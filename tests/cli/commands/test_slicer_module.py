"""`slicer-module`: a module as 3D Slicer reads and starts it."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import SimpleITK as _SimpleITK
import typer
from support.batch_world import scan, tiny_model
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app

sitk: Any = _SimpleITK
SCALARS = {"boolean", "integer", "float", "string", "string-enumeration", "file", "image"}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a module that was written."""
    folder = tmp_path_factory.mktemp("slicer") / "modules of mine"
    done = CliRunner().invoke(app, ["slicer-module", str(folder)])
    assert done.exit_code == 0, done.output
    return folder / "CudaCycleGAN"


def described(module: Path) -> ElementTree.Element:
    answer = subprocess.run([module, "--xml"], capture_output=True, text=True, check=True)
    return ElementTree.fromstring(answer.stdout)


def test_every_parameter_is_an_option_of_translate_and_can_be_passed(module: Path) -> None:
    root: Any = typer.main.get_command(app)
    options = {one.name: one for one in root.commands["translate"].params}
    names: list[str] = []
    for parameter in described(module).findall("parameters/*[name]"):
        name = parameter.findtext("name", "")
        names.append(name)
        assert parameter.tag in SCALARS
        assert parameter.findtext("description")
        assert parameter.findtext("label")
        flag = parameter.findtext("longflag")
        assert (flag in options[name].opts) if flag else parameter.findtext("index") == "0"
        if parameter.tag == "string-enumeration":
            words = [element.text for element in parameter.findall("element")]
            assert parameter.findtext("default") in words
    assert len(names) == len(set(names))
    assert {"model", "inputs", "output", "any_contrast", "device"} <= {*names}


def test_the_reader_of_ctk_understands_it(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader: Any = pytest.importorskip("ctk_cli")
    warnings: list[object] = []
    monkeypatch.setattr(reader.module.logger, "warning", warnings.append)
    found = reader.CLIModule(str(module))
    arguments, options, outputs = found.classifyParameters()
    assert [each.name for each in arguments] == ["inputs"]
    assert not outputs
    assert len(options) > 10
    assert not warnings


@pytest.mark.process
def test_it_translates_a_volume_with_the_defaults_that_it_states(
    module: Path, tmp_path: Path
) -> None:
    volume, result = tmp_path / "A_vtkMRMLScalarVolumeNode1.nrrd", tmp_path / "B_Node2.nrrd"
    sitk.WriteImage(sitk.ReadImage(str(scan(tmp_path / "x.nii.gz"))), str(volume))
    chosen = {"model": str(tiny_model(tmp_path / "model.safetensors")), "output": str(result)}
    words: list[str] = []
    for parameter in described(module).findall("parameters/*[longflag]"):
        value = chosen.get(parameter.findtext("name", ""), parameter.findtext("default"))
        if parameter.tag != "boolean" and value:
            words += [parameter.findtext("longflag", ""), value]
    missing = str(tmp_path / "missing")
    strange = dict.fromkeys(("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH"), missing)
    done = subprocess.run(
        [module, *words, volume],
        env={**os.environ, **strange},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert sitk.ReadImage(str(result)).GetSize() == sitk.ReadImage(str(volume)).GetSize()
    shares = [float(share) for share in re.findall("<filter-progress>(.*)</filter", done.stdout)]
    assert shares[0] == 0
    assert shares[-1] == 1
    assert shares == sorted(shares)


def test_a_failure_has_its_reason_and_status(module: Path, tmp_path: Path) -> None:
    words = ["--model", tmp_path / "none", "--output", tmp_path / "b.nrrd", tmp_path / "a.nrrd"]
    done = subprocess.run([module, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_existing_files_are_kept_unless_forced(module: Path) -> None:
    module.write_text("mine")
    again = ["slicer-module", str(module.parent)]
    refused = CliRunner().invoke(app, again)
    assert refused.exit_code == 2
    assert "exists already; give --force" in " ".join(refused.stderr.split())
    assert module.read_text() == "mine"
    assert CliRunner().invoke(app, [*again, "--force"]).exit_code == 0
    assert os.access(module, os.X_OK)
    assert module.read_text() != "mine"
