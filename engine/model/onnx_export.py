"""A model as an ONNX file that other programs can run."""

from onnx import helper

from ..onnxruntime.conversion import to_onnx
from .card import card_to_json
from .model import Model


def onnx_bytes(model: Model) -> bytes:
    """The network as `to_onnx` makes it; its metadata hold the card and the model file's hash."""
    proto = to_onnx(model.network)
    helper.set_model_props(
        proto,
        {"cuda-cyclegan.card": card_to_json(model.card), "cuda-cyclegan.sha256": model.sha256},
    )
    return proto.SerializeToString()
