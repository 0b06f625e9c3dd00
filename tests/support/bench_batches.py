"""Scans and models for benchmarks of whole batches."""

import shutil
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

from cuda_cyclegan.engine.model.intensity_maps import IntensityMap, Percentiles, Window
from cuda_cyclegan.engine.model.model_card import ModelCard, Provenance, Reference
from cuda_cyclegan.engine.model.model_file import encode_model
from cuda_cyclegan.engine.model.reference import array_sha256, make_reference
from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Inference

nibabel: Any = _nibabel
WINDOW = Window(-1000, 1000)
"""An intensity map that needs no look at the scan, so that others can apply the same."""

DISTINCT = 4
"""Scans of one folder that differ; the others are copies of them."""


def make_scans(folder: Path, count: int, shape: Triple, suffix: str) -> list[Path]:
    """Write `count` int16 scans of smooth tissue under noise, in a new folder."""
    folder.mkdir(parents=True)
    scans = [folder / f"{number:04}{suffix}" for number in range(count)]
    for number, path in enumerate(scans):
        if number < DISTINCT:
            nibabel.Nifti1Image(tissue(shape, number), np.eye(4)).to_filename(path)
        else:
            shutil.copyfile(scans[number % DISTINCT], path)
    return scans


def tissue(shape: Triple, seed: int) -> "np.ndarray[Any, Any]":
    """int16 [i, j, k] between about -910 and 910."""
    i, j, k = np.ogrid[: shape[0], : shape[1], : shape[2]]
    smooth = (900 * np.sin(i / 60) * np.cos(j / 70)).astype(np.float32) * np.sin(k / 50)
    noise = np.random.default_rng(seed).integers(-12, 12, shape, np.int16)
    return smooth.astype(np.int16) + noise


def write_model(
    path: Path, width: int, blocks: int, patch: Triple, intensity: IntensityMap | None = None
) -> Path:
    """Write a ResNet generator of random weights."""
    return write_generator(path, ResNetSpec(1, 1, width, blocks), patch, intensity)


def write_generator(
    path: Path,
    spec: Spec,
    patch: Triple,
    intensity: IntensityMap | None = None,
    inference: Inference | None = None,
) -> Path:
    """Write a generator of random weights.

    inference: the model's default; if it is set, no first study is compared with its whole volume.
    """
    graph, random = build(spec), np.random.default_rng(0)
    weights = {
        name: random.normal(0, 1 / np.sqrt(max(1, np.prod(shape[1:]))), shape).astype(np.float32)
        for name, shape in graph.weight_shapes()
    }
    network = Network(graph, weights)
    reference_input, reference_output = make_reference(network)
    intensity = intensity or Percentiles(1, 99)
    card = ModelCard(
        name="random",
        architecture=spec,
        source="T1",
        target="T2",
        input_channels=("T1",),
        output_channels=("T2",),
        axes="RAS",
        spacing=None,
        patch=patch,
        intensity_in=intensity,
        intensity_out=intensity,
        small_volume_padding="edge",
        inference=inference,
        provenance=Provenance("none", "0" * 64, "none", "benchmark"),
        reference=Reference(
            array_sha256(reference_input), array_sha256(reference_output), "cuda-cyclegan"
        ),
    )
    path.write_bytes(encode_model(card, network, reference_input, reference_output))
    return path
