"""A real model file of a tiny random generator from one contrast to another."""

import hashlib
from pathlib import Path

import numpy as np

from cuda_cyclegan.engine.architectures import ResNetSpec, build
from cuda_cyclegan.engine.card import MinMax, ModelCard, Provenance, Reference, Window
from cuda_cyclegan.engine.graph import FloatArray, Network
from cuda_cyclegan.engine.model_file import encode_model

PATCH = (16, 32, 32)


def tiny_model(path: Path, source: str = "CT", target: str = "T1") -> Path:
    """A ResNet without blocks; an output in HU if the target is CT."""
    spec = ResNetSpec(1, 1, 4, 0)
    graph = build(spec)
    numbers = np.random.default_rng(0)
    weights = {
        name: numbers.normal(0, 0.1, shape).astype(np.float32)
        for name, shape in graph.weight_shapes()
    }
    patch = np.zeros((1, 1, *PATCH), np.float32)
    digest = _digest(patch)
    card = ModelCard(
        name="tiny",
        architecture=spec,
        source=source,
        target=target,
        input_channels=(source,),
        output_channels=(target,),
        axes="SPL",
        spacing=None,
        patch=PATCH,
        intensity_in=MinMax(),
        intensity_out=Window(-1000.0, 2000.0) if target == "CT" else MinMax(),
        small_volume_padding="edge",
        provenance=Provenance("none", "0" * 64, "none", "test"),
        reference=Reference(digest, digest, "cuda-cyclegan"),
    )
    path.write_bytes(encode_model(card, Network(graph, weights), patch, patch))
    return path


def _digest(array: FloatArray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
