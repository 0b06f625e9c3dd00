"""A model as an ONNX file that other programs can run."""

from onnx import helper

from .card_json import card_to_json
from .model import Model
from .onnx import to_onnx


def onnx_bytes(model: Model) -> bytes:
    """The network as `to_onnx` makes it; its metadata hold the card and the model file's hash."""
    proto = to_onnx(model.network)
    helper.set_model_props(
        proto,
        {"cuda-cyclegan.card": card_to_json(model.card), "cuda-cyclegan.sha256": model.sha256},
    )
    return proto.SerializeToString()
