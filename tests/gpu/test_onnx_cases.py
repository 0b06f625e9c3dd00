"""ONNX's own cases that are accepted give on a GPU what ONNX gives."""

from pathlib import Path

import numpy as np
import pytest
from support.onnx_node_cases import distance, judged, node_cases
from support.onnx_official import official_modules

LIMITS = {"fp16": 2e-2, "fp32": 1e-5}
"""Relative L2; a case of a few numbers has the rounding of each."""


@pytest.mark.slow
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("module", official_modules())
def test_cases_of_an_operator(module: str, precision: str, tmp_path: Path) -> None:
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator

    seen = set()
    for case in node_cases(module):
        verdict = judged(case, tmp_path)
        network = verdict.network
        if network is None or network.graph in seen or not np.isfinite(verdict.output).all():
            continue
        seen.add(network.graph)
        options = CudaOptions(precision, cache=tmp_path / "cache")
        with open_cuda_generator(network, options, case.patch) as generator:
            assert distance(generator(case.input_patch()), verdict.output) < LIMITS[precision], (
                case.name
            )
