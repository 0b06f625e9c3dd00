"""The spread on a GPU: patches that it mirrors, and results that stay as they are."""

import json

import nibabel
import numpy as np
import pytest
from support.batch_world import scan, tiny_model
from support.gpu_networks import random_network
from support.numerics_models import FunctionGenerator, through
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.pipelines.study.inference import SlidingWindow
from cuda_cyclegan.pipelines.study.patches import cover, flips

PATCH = (24, 20, 28)
EXTENTS = (100, 41, 60)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator

    network = random_network(build(ResNetSpec(1, 1, 8, 1)), 0)
    options = CudaOptions("fp16", cache=tmp_path_factory.mktemp("cache"))
    with open_cuda_generator(network, options, PATCH, 2) as generator:
        yield generator


@pytest.mark.parametrize("flip", [*flips(8, "RAS")])
def test_patches_are_mirrored_on_the_gpu_as_on_the_host(opened, flip):
    array = np.random.default_rng(0).uniform(-1, 1, (1, *EXTENTS)).astype(np.float32)
    window = SlidingWindow(cover(EXTENTS, PATCH, 0.3), "gaussian", "edge", flip)
    there = through(array, opened, window)
    here = through(array, FunctionGenerator(opened, opened.graph), window)
    assert np.abs(there - here).max() <= 4e-6 * np.abs(here).max()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_result_on_a_gpu_has_the_same_bytes_with_and_without_its_spread(tmp_path, precision):
    model = tiny_model(tmp_path / "model.safetensors")
    scan(tmp_path / "scans" / "a.nii", shape=(60, 50, 40))
    given = ["translate", str(tmp_path / "scans"), "--model", str(model), "--device", "cuda"]
    given += ["--precision", precision, "--tune", "off"]  # both take the same plans
    given += ["--report", str(tmp_path / "report.json")]
    for name, more in (("alone", []), ("beside", ["--spread", "4"])):
        (tmp_path / "report.json").unlink(missing_ok=True)
        done = CliRunner().invoke(app, [*given, "--output", str(tmp_path / name), *more])
        assert done.exit_code == 0, done.output
    alone, beside = ((tmp_path / name / "a.nii").read_bytes() for name in ("alone", "beside"))
    assert beside == alone
    [row] = json.loads((tmp_path / "report.json").read_text())["studies"]
    deviation = nibabel.load(tmp_path / "beside" / "a.map-spread-sd.nii").get_fdata()
    assert deviation.min() >= 0
    assert 0 < row["spread"]["deviation"] < deviation.max()
    assert not any("host" in note for note in row["notes"])
