"""Files and folders of other programs: their true names, and the shortest way to an import."""

import re
import zlib
from collections.abc import Collection
from pathlib import Path

from ...io.files.nifti_start import gzip_unpacker, has_nifti_magic
from ..errors import quoted
from .pickles import is_pickle

_EXAMPLE = "torch.zeros(1, 1, 64, 64, 64)"
_OPEN = "dynamo=False, input_names=['x'], dynamic_axes={'x': [0, 2, 3, 4]}"
_SAVED_MODEL = (
    "a TensorFlow SavedModel; run python -m tf2onnx.convert --saved-model FOLDER --output "
    "generator.onnx and import that"
)
_KERAS = (
    "a Keras model; in the training code run model.export('generator.onnx', format='onnx') "
    "(Keras 3.8 or newer, before it tf2onnx) and import that"
)
_TORCHSCRIPT = (
    "a TorchScript program, whose code is not run; in any PyTorch run "
    f"torch.onnx.export(torch.jit.load('FILE').eval(), {_EXAMPLE}, 'generator.onnx', {_OPEN}) "
    "and import that"
)
_EXPORTED = (
    "a torch.export archive, which holds a network; name it as the checkpoint of 'cuda-cyclegan "
    "model import'"
)
_OPENVINO = (
    "an OpenVINO network, which cannot be converted back to ONNX; import the ONNX file or "
    "checkpoint from which it was converted"
)
_TENSORRT = (
    "a TensorRT engine, compiled for one kind of GPU; import the ONNX file that it was built from"
)
_TFLITE = (
    "a TensorFlow Lite model; run python -m tf2onnx.convert --tflite FILE --output generator.onnx "
    "and import that"
)
_NUMPY = (
    "a NumPy archive, which contains arrays but no network; export the network as ONNX and import "
    "that, or give a reference with setting reference"
)
_SCAN = "a NIfTI scan, not weights; it is for 'cuda-cyclegan translate'"
_SAVED_MODEL_FILE = "saved_model.pb"
FLAT_PROGRAM = "serialized_exported_program.json"
"""Entry with the graph in torch.export archives of PyTorch before 2.8, which have no folder."""

_HDF5, _GZIP = b"\x89HDF", b"\x1f\x8b"
_KERAS_MARKS = b"keras_version", b"model_config", b"layer_names"
_FIRST_BYTES = {
    _GZIP: "gzip-compressed; unpack it first if it holds weights",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file itself with git lfs pull",
    b"ftrt": _TENSORRT,
}
_TFLITE_MARK = slice(4, 8), b"TFL3"

_GZIP_READ, _NIFTI_HEADER = 1 << 16, 348
_ONNX = re.compile(rb"\x08[\x01-\x20](?:\x12([\x01-\x40])|[\x3a\x42])", re.DOTALL)
"""Start of an ONNX file: its version, then the program that wrote it, its graph or its opset."""

_TEXT_READ = 1 << 16
_TEXT = re.compile(rb"(\xff\xfe|\xfe\xff).*|[\t\n\v\f\r\x20-\x7e\x80-\xff]*", re.DOTALL)
"""Text in UTF-16, by its first bytes, or in an encoding that extends ASCII."""

_PAGE = re.compile(rb"\s*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_NET = re.compile(rb"<net\s[^>]*>\s*<layers>")


def foreign_file(name: str, data: bytes) -> str | None:
    """Return what a known kind of file without PyTorch weights is, or None.

    name: of the file. The result completes "This is ...".
    """
    if has_nifti_magic(data) or (data.startswith(_GZIP) and has_nifti_magic(_unpacked_start(data))):
        return _SCAN
    if name == _SAVED_MODEL_FILE:
        return _SAVED_MODEL
    if is_onnx_start(data):
        return "an ONNX model, not a checkpoint"
    if data.startswith(_HDF5):
        is_keras = any(mark in data for mark in _KERAS_MARKS)
        return _KERAS if is_keras else "an HDF5 file, not a checkpoint of PyTorch"
    place, mark = _TFLITE_MARK
    if data[place] == mark:
        return _TFLITE
    for magic, what in _FIRST_BYTES.items():
        if data.startswith(magic):
            return what
    if data and _TEXT.fullmatch(data[:_TEXT_READ]) and not is_pickle(data):
        return _text(data[:_TEXT_READ])
    return None


def _text(start: bytes) -> str:
    if _PAGE.match(start):
        return "a web page; the download failed"
    if _NET.search(start):
        return _OPENVINO
    return "a text file, not a checkpoint; give the file with the saved weights"


def foreign_archive(names: Collection[str]) -> str | None:
    """Return what a known kind of zip archive without a PyTorch checkpoint is, or None.

    names: of its entries. The result completes "This is ...".
    """
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner or any(name.startswith("code/") for name in inner):
        return _TORCHSCRIPT
    if "models/model.json" in inner or FLAT_PROGRAM in names:
        return _EXPORTED
    if {"config.json", "model.weights.h5"} <= set(names):
        return _KERAS
    if any(name.endswith(".npy") for name in names):
        return _NUMPY
    return None


_WEIGHTS = (".pth", ".pt", ".ckpt", ".tar", ".safetensors", ".onnx")


def foreign_folder(folder: Path) -> str:
    """Return what a folder is that holds no network; the result completes "This is ..."."""
    if (folder / _SAVED_MODEL_FILE).is_file():
        return _SAVED_MODEL
    for model in (folder, folder.parent):
        if (model / "plans.json").is_file() and (model / "dataset.json").is_file():
            return (
                "part of an nnU-Net model; name the folder that holds plans.json, or export its "
                "network as ONNX and import that"
            )
    for plans in (*folder.glob("*/plans.json"), *folder.glob("*/*/plans.json")):
        model = plans.parent.relative_to(folder)
        return f"a folder of nnU-Net models; give the folder of one, such as {quoted(str(model))}"
    if (folder / "configs").is_dir() and (folder / "models").is_dir():
        return (
            "a MONAI bundle; run python -m monai.bundle onnx_export in it, with its network and "
            "checkpoint, and import the ONNX file"
        )
    held = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in _WEIGHTS)
    if held:
        return f"a folder; give a file in it, such as {quoted(held[0])}"
    return (
        "a folder without a network; give a checkpoint, an .onnx or .pt2 file, or the folder of a "
        "MONAI bundle or of an nnU-Net model"
    )


def is_onnx_start(data: bytes) -> bool:
    """Return whether these are the first bytes of an ONNX file."""
    start = _ONNX.match(data)
    if not start or not start[1]:
        return bool(start)
    after = start.end() + start[1][0]
    return data[after : after + 1] in (b"\x1a", b"\x22", b"\x3a", b"\x42")


def _unpacked_start(data: bytes) -> bytes:
    """Return the first bytes of gzip-compressed data; empty if it is damaged."""
    try:
        return gzip_unpacker().decompress(data[:_GZIP_READ], _NIFTI_HEADER)
    except zlib.error:
        return b""
