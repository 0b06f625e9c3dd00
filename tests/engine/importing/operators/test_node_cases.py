"""ONNX's own cases are computed as ONNX does, or refused; none is wrong, and none ends as a bug."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.described_gpus import H200
from support.onnx_node_cases import NEAR, Verdict, distance, judged, node_cases
from support.operator_table import PAGE, on_page, table
from support.step_interpreter import interpret
from support.volumes_at_once import at_once

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower

COVERING = (
    *("add", "cast", "celu", "clip", "concat", "conv", "convtranspose", "div", "gather", "gelu"),
    *("groupnormalization", "instance_normalization", "leakyrelu", "matmul", "max", "pad", "pow"),
    *("reducel2", "reducesum", "resize", "slice", "softmax", "split", "sqrt", "transpose"),
)
"""Modules of ONNX's cases of which the default tier tries some."""
_MOST = 6


def check(verdicts: list[Verdict]) -> None:
    """Networks that were accepted are computed alike for patches and for a volume at once."""
    faults = [f"{one.case.name}: {one.text}" for one in verdicts if one.status in ("wrong", "bug")]
    assert not faults
    for one in verdicts:
        if one.network is not None and one.is_open and np.isfinite(one.output).all():
            whole = at_once(one.network, one.case.input_patch()[0], threads=1)
            assert distance(whole, one.output[0]) < NEAR, one.case.name


@pytest.mark.parametrize("module", COVERING)
def test_cases_of_an_operator(module: str, tmp_path: Path) -> None:
    cases = [*node_cases(module)]
    verdicts = [judged(case, tmp_path) for case in cases[:: -(-len(cases) // _MOST)]]
    check(verdicts)
    assert any(one.status == "equal" for one in verdicts)


@pytest.fixture(scope="module")
def all_verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[Verdict]:
    folder = tmp_path_factory.mktemp("cases")
    return [judged(case, folder) for case in node_cases()]


@pytest.mark.slow
def test_all_cases(all_verdicts: list[Verdict]) -> None:
    check(all_verdicts)
    assert sum(one.status == "equal" for one in all_verdicts) > 900


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_compiler_computes_all_cases(precision: str, all_verdicts: list[Verdict]) -> None:
    seen = set()
    for one in all_verdicts:
        if one.network is None or one.network.graph in seen or not np.isfinite(one.output).all():
            continue
        seen.add(one.network.graph)
        layout = Layout(one.case.patch, 1, precision, split_fp16=precision == "fp32")
        made = interpret(lower(one.network, layout, H200), one.case.input_patch(), 1)
        assert distance(made, one.output) < 2 * NEAR, one.case.name


@pytest.mark.slow
def test_the_page_has_the_table_of_all_cases(all_verdicts: list[Verdict]) -> None:
    written = on_page(PAGE.read_text("utf-8"))
    if f"onnx {onnx.__version__}:" not in written:
        pytest.skip(f"the page was made with another onnx than {onnx.__version__}")
    assert written == table(all_verdicts), "run PYTHONPATH=tests python -m support.operator_table"
