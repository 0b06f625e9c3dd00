"""The shipped sample: its model is what training made, and the command makes of it what we show."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from support.waiting import ENOUGH

from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.model.reference import verify
from cuda_cyclegan.pipelines.cycle import check_counterpart

SAMPLE = Path(__file__).parents[1] / "sample_data"
SCAN = Path("scans") / "icbm152_2009_t1_2mm.nii.gz"
TRAINED = {
    "model.safetensors": SAMPLE / "training",
    "model_back.safetensors": SAMPLE / "training" / "back",
}
FULL_SCALE = 1000
HELD_OUT_FROM = 66

nibabel: Any = nib  # the package leaves much untyped
numpy: Any = np
approx: Any = pytest.approx


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the README's first command writes."""
    output = tmp_path_factory.mktemp("translated")
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(SAMPLE)]
    command += ["--model", str(SAMPLE / "model.safetensors"), "--output", str(output)]
    command += ["--device", "cpu", "--report", str(output / "report.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=ENOUGH)
    return output


@pytest.mark.parametrize("name", TRAINED)
def test_the_model_computes_what_the_training_code_computed(name: str) -> None:
    verification = verify(load_model(SAMPLE / name))
    assert verification.made_by == "training code"
    assert verification.passed


@pytest.mark.parametrize("name", TRAINED)
def test_the_model_holds_the_reference_that_training_wrote(name: str) -> None:
    model = load_model(SAMPLE / name)
    with numpy.load(TRAINED[name] / "reference.npz") as arrays:
        numpy.testing.assert_array_equal(model.reference_input, arrays["input"])
        numpy.testing.assert_array_equal(model.reference_output, arrays["output"])


def test_the_way_back_is_the_counterpart_of_the_model() -> None:
    forth, back = (load_model(SAMPLE / name).card for name in TRAINED)
    check_counterpart(forth, back)
    assert forth.cycle is None  # so that nothing is marked: too few of what should be found is


def test_the_scan_is_the_only_study(results: Path) -> None:
    report: dict[str, list[dict[str, str]]] = json.loads((results / "report.json").read_text())
    assert [row["name"] for row in report["studies"]] == [SCAN.as_posix()]


def test_the_result_lies_on_the_grid_of_the_scan(results: Path) -> None:
    scan, result = nibabel.load(SAMPLE / SCAN), nibabel.load(results / SCAN)
    assert result.shape == scan.shape
    assert result.get_data_dtype() == scan.get_data_dtype()
    for form in ("get_sform", "get_qform"):
        expected, code = getattr(scan, form)(coded=True)
        found, found_code = getattr(result, form)(coded=True)
        numpy.testing.assert_array_equal(found, expected)
        assert found_code == code


def test_the_result_is_as_near_to_the_truth_as_recorded(results: Path) -> None:
    recorded: dict[str, float] = json.loads((SAMPLE / "figures.json").read_text())
    translated = numpy.asarray(nibabel.load(results / SCAN).dataobj) / FULL_SCALE
    with numpy.load(SAMPLE / "training" / "t2_like.npz") as arrays:
        truth = arrays["t2_like"] / 255
    region = truth > 0
    region[:, :HELD_OUT_FROM] = False
    error = translated[region] - truth[region]
    assert region.sum() == recorded["voxels"]
    assert numpy.abs(error).mean() == approx(recorded["mae"], abs=5e-4)
    assert -10 * numpy.log10(numpy.square(error).mean()) == approx(recorded["psnr_db"], abs=0.05)
