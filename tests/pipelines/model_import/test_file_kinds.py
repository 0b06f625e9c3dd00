"""Statements of an import about the network of a graph."""

from pathlib import Path

import pytest
from onnx import TensorProto
from support.onnx_files import tiny, written

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.model.reference import make_reference
from cuda_cyclegan.pipelines.model_import.file_kinds import (
    ImportRequest,
    find_network,
    with_reference,
)


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_file_that_computes_in_half_precision_is_noted(element: int, tmp_path: Path) -> None:
    proto = tiny()
    proto.graph.input[0].type.tensor_type.elem_type = element
    found = find_network(ImportRequest(written(proto, tmp_path / "g.onnx")))
    noted = [fact.value for fact in found.facts if fact.subject == "precision"]
    assert noted == (["single"] if element == TensorProto.FLOAT16 else [])


@pytest.mark.parametrize(
    ("element", "way"),
    [(TensorProto.FLOAT, "export the network that"), (TensorProto.FLOAT16, "in single precision")],
)
def test_a_reference_that_is_not_computed_names_the_rounding_of_the_file(
    element: int, way: str, tmp_path: Path
) -> None:
    proto = tiny()
    proto.graph.input[0].type.tensor_type.elem_type = element
    found = find_network(ImportRequest(written(proto, tmp_path / "g.onnx")))
    patch, output = make_reference(found.network)
    with pytest.raises(CheckpointError, match=way):
        with_reference(found, (patch, output * 1.001), lambda _: None)
