"""A context that is lost in the middle of a batch costs no study."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.batch_world import scan
from support.bench_batches import write_model

STUDIES = 6
LOSING = """
from cuda_cyclegan.cli.app import main
from cuda_cyclegan.engine.cuda.patches.patch_generator import CudaGenerator
from cuda_cyclegan.engine.compiler.kernel_source import structure

run_window, calls = CudaGenerator.run_window, iter(range(99))
nobody = 256  # an address that no process owns
one = 1, 1, 1
off = 0, 0, 0
pack = structure("pack.cu", "Pack")
damage = pack(nobody, nobody, 1, one, one, 8, off, (1, 1), (1, 1), 2, 1, 1)

def run_or_lose(self, *arguments):
    if next(calls) == 2:
        gpu = self._gpu
        gpu.context.use()
        kernel = gpu.kernels.kernel("pack", "pack")
        gpu.stream.launch(kernel, (1, 1, 1), (32, 1, 1), 64, damage)
    return run_window(self, *arguments)

CudaGenerator.run_window = run_or_lose
main()
"""
"""The command, but its third study makes the driver refuse all further work of the process."""


def test_the_rest_is_translated_in_another_process(tmp_path):
    model = write_model(tmp_path / "model.safetensors", 8, 1, (32, 32, 32))
    for number in range(STUDIES):
        scan(tmp_path / "scans" / f"{number}.nii", number, (48, 40, 36))
    report = tmp_path / "report.json"
    command = [sys.executable, "-c", LOSING, "translate", tmp_path / "scans", "--model", model]
    command += ["--output", tmp_path / "results", "--device", "cuda:0", "--report", report]
    places = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["totals"]["translated"] == STUDIES
    assert list((tmp_path / "results").glob("*.part")) == []
