"""Stored ONNX files of PyTorch's exporters, and what PyTorch computed with the same networks.

tests/fixtures/onnx_exports/make.py wrote them, so reading them takes neither PyTorch nor MONAI.
"""

import tarfile
from pathlib import Path

import numpy as np

from cuda_cyclegan.engine.network.layers import FloatArray

FOLDER = Path(__file__).parents[1] / "fixtures" / "onnx_exports"
ARCHIVE = FOLDER / "networks.tar.xz"
OUTPUTS = FOLDER / "outputs.npz"
VERSIONS = FOLDER / "versions.txt"

CUBE, BLOCK = (8, 8, 8), (16, 8, 12)
"""Extents of the patches whose outputs are stored for each of NETWORKS."""

LARGE = (16, 16, 16)
"""Extents of the patch whose output is stored for each of FEATURES."""

NETWORKS = (
    "DynUNet",
    "DynUNet of residual blocks",
    "UNet of residual units",
    "BasicUNet",
    "SegResNet",
    "AutoEncoder",
    "AttentionUnet",
    "CUT with anti-aliasing",
    "pix2pixHD",
    "sub-pixels and GELU",
    "what is expanded",
    "all kinds of layers",
)
"""Names in support.onnx_networks, each stored by every one of EXPORTERS."""

EXPORTERS = ("opset 11", "opset 17", "dynamo")

FIXED = (
    ("BasicUNet", "opset 13 fixed"),
    ("SegResNet", "opset 13 fixed"),
    ("all kinds of layers", "opset 13 fixed"),
    ("all kinds of layers", "dynamo fixed"),
)
"""Networks and exporters of the files that take a CUBE alone."""

FEATURES = (
    "activations by part",
    "constant padding",
    "dilation",
    "elu after the sum",
    "epsilon",
    "added input of several channels",
    "group norm without scale",
    "group norm of single channels",
    "inner padding",
    "leaky relu",
    "padding behind sampling",
    "sigmoid",
    "strides of 1, 2, 2, sampled",
    "U-Net, constant padding",
    "U-Net, group norm",
)
"""Names in support.network_features, stored in opset 17."""


TRACKED = "tracked norms"
STORED, OF_PATCH = f"{TRACKED}, stored", f"{TRACKED}, of the patch"
RECIPES = ((OF_PATCH, "older"), (OF_PATCH, "newer"), (STORED, "newer"))
"""Networks whose norms track statistics, and the recipe of docs/onnx.md that exported each."""

FOLLOWED = FOLDER / "recipes.txt"
"""The recipes as they were when the files were made."""


def extract(folder: Path) -> None:
    """Put every stored file into a folder, named by `file_of`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def file_of(name: str, exporter: str) -> str:
    return f"{name}, {exporter}.onnx"


def output_of(name: str, patch: FloatArray) -> FloatArray:
    """Return what PyTorch computed with a network for the patch of these extents."""
    with np.load(OUTPUTS) as outputs:
        return outputs[key_of(name, patch)]


def key_of(name: str, patch: FloatArray) -> str:
    return f"{name}, {'x'.join(map(str, patch.shape[2:]))}"


def patch_of(*extents: int, channels: int = 1) -> FloatArray:
    random = np.random.default_rng(0)
    return random.uniform(-1, 1, (1, channels, *extents)).astype(np.float32)
