"""Models and their files: one safetensors file with the network's weights and the model card in its
metadata; and export to ONNX.
"""

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors as _safetensors
import safetensors.numpy as _safetensors_numpy

from ...io.files.regular import open_regular, read_regular
from ..decoding import Json, encode
from ..errors import EngineError, ModelFileError
from ..network.architectures import build
from ..network.graph import LARGEST_WEIGHTS, Graph, Network, times
from ..network.graph_analysis import sees_whole_patch
from ..network.layers import FloatArray
from ..options import Inference
from ..whole_volume import volume_refusal
from .architecture_json import architecture_to_json
from .model_card import (
    ModelCard,
    card_from_json,
    card_to_json,
    stated_grids,
    stated_ranges,
    strict_json,
)


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """A generator with its card, as stored in a model file.

    network: graph and weights. reference_input, reference_output: the stored patch pair, [1, C, D,
    H, W]. sha256: hash of the model file, by which jobs and reports name it. identity: hash of all
    that changes voxels, by which results are known to be up to date. path: the model file; None if
    the model is in memory only.
    """

    card: ModelCard
    network: Network
    reference_input: FloatArray
    reference_output: FloatArray
    sha256: str
    identity: str = ""
    path: Path | None = None

    def __repr__(self) -> str:
        weights = sum(weight.size for weight in self.network.weights.values())
        return f"Model({self.card.name}, {weights:,} weights)"

    @property
    def modes_agree(self) -> bool:
        """Whether patches and the whole volume compute the same function, apart from borders."""
        return not sees_whole_patch(self.network.graph)

    @property
    def inference(self) -> Inference:
        """Default inference mode.

        It is the card's; without one, whole-volume inference if that computes the same function
        apart from borders, and if every device supports it for this network.
        """
        if self.card.inference:
            return self.card.inference
        is_supported = volume_refusal(self.network.graph) is None
        return "volume" if self.modes_agree and is_supported else "patches"


safetensors: Any = _safetensors  # the package ships no types

_REFERENCE_INPUT, _REFERENCE_OUTPUT = "reference.input", "reference.output"

# The deepest U-Net takes no less than 256 x 256 x 256.
_LARGEST_REFERENCE = 256**3


def read_tensors(data: bytes) -> dict[str, FloatArray]:
    """Return all tensors of a safetensors file; raises ModelFileError unless all are float32."""
    try:
        # Rejects overlapping, missing and surplus bytes, so it needs no more memory than the file.
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise ModelFileError(f"The file is damaged ({error}); copy it again.") from error
    tensors: dict[str, FloatArray] = {}
    for name, entry in entries:
        if entry["dtype"] != "F32":
            raise ModelFileError(
                f"Tensor {name[:80]!r} is {entry['dtype']}; a model must store F32."
            )
        tensors[name] = np.frombuffer(entry["data"], "<f4").reshape(entry["shape"])
    return tensors


def check_tensors(graph: Graph, tensors: Mapping[str, FloatArray]) -> None:
    """Raise ModelFileError unless these are the graph's weights and a reference, all finite."""
    shapes = list(graph.weight_shapes())
    known = {name for name, _ in shapes} | {_REFERENCE_INPUT, _REFERENCE_OUTPUT}
    if missing := sorted(known - tensors.keys()):
        raise ModelFileError(f"Tensor {missing[0]!r} of the model card's architecture is missing.")
    if extra := sorted(tensors.keys() - known):
        raise ModelFileError(
            f"Tensor {extra[0][:80]!r} is not part of the model card's architecture."
        )
    shapes += _reference_shapes(graph, tensors[_REFERENCE_INPUT].shape).items()
    for name, shape in shapes:
        if tensors[name].shape != shape:
            raise ModelFileError(
                f"Tensor {name!r} is {_times(tensors[name].shape)}, but the model card's "
                f"architecture requires {_times(shape)}."
            )
        if not np.isfinite(tensors[name]).all():
            raise ModelFileError(f"Tensor {name!r} contains numbers that are not finite.")


def _reference_shapes(graph: Graph, stored: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the reference pair, from the stored input's extents and the network."""
    if len(stored) != 5:
        raise ModelFileError(f"Tensor {_REFERENCE_INPUT!r} is {_times(stored)}, not 1xCxDxHxW.")
    extents = stored[2], stored[3], stored[4]
    if prod(extents) > _LARGEST_REFERENCE:
        raise ModelFileError(
            f"Tensor {_REFERENCE_INPUT!r} is {_times(stored)}; a reference patch has at most "
            f"{_LARGEST_REFERENCE} voxels."
        )
    try:
        graph.check_patch(extents)
    except EngineError as error:
        raise ModelFileError(f"Tensor {_REFERENCE_INPUT!r} does not fit: {error}") from error
    return {
        _REFERENCE_INPUT: (1, graph.in_channels, *extents),
        _REFERENCE_OUTPUT: (1, graph.out_channels, *extents),
    }


def _times(shape: tuple[int, ...]) -> str:
    return times(shape) or "a single number"


safetensors_numpy: Any = _safetensors_numpy  # the package ships no types

FORMAT = 1
"""Version of the file format, raised whenever an older program would misread a newer file."""

_LARGEST_HEADER = 1 << 20
_CLAIM = b"cuda-cyclegan model "
_FORMAT = re.compile(r"cuda-cyclegan model ([1-9][0-9]{0,8})")
_CHECKPOINT_MAGIC = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
_OPENING = b"{"  # first byte of the header's text, after its length of eight bytes
_IMPORT = "convert it with 'cuda-cyclegan model import'"


def encode_model(
    card: ModelCard, network: Network, reference_input: FloatArray, reference_output: FloatArray
) -> bytes:
    """Return the bytes of the model file; equal models give equal bytes.

    Raises ModelFileError for a model that `decode_model` would reject.
    """
    if network.graph != build(card.architecture):
        raise ValueError("the network is not the one described by the model card")
    tensors = {
        **network.weights,
        _REFERENCE_INPUT: reference_input,
        _REFERENCE_OUTPUT: reference_output,
    }
    check_tensors(network.graph, tensors)
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    plain: bytes = safetensors_numpy.save(contiguous)
    header, data = _split(plain)
    index = cast("dict[str, Json]", json.loads(bytes(header)))
    card_text = card_to_json(card)
    metadata: dict[str, Json] = {
        "format": f"cuda-cyclegan model {FORMAT}",
        "card": card_text,
        "content_sha256": _content_sha256(card_text, index, data),
    }
    # The library writes metadata in an order that changes from run to run.
    text = json.dumps({"__metadata__": metadata, **index}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST_HEADER:
        raise ModelFileError(
            f"The model card and the layers take {len(text)} bytes as text, but at most "
            f"{_LARGEST_HEADER} are allowed; the network has too many layers."
        )
    return b"".join((len(text).to_bytes(8, "little"), text, data))


def load_model(path: str | PathLike[str]) -> Model:
    """Read a model file; raises ModelFileError if it is none, is damaged, or is too new.

    >>> load_model("t1-to-t2.safetensors").card.source
    'T1'
    """
    path = _as_path(path)
    try:
        if not path.exists():
            raise _missing(path)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"Model {path} is not a file; give the model file itself.")
        if status.st_size > LARGEST_WEIGHTS:
            raise ModelFileError(
                f"Model {path} is larger than {LARGEST_WEIGHTS >> 30} GiB, so it is not a model "
                "file."
            )
        data = read_regular(path)
    except FileNotFoundError as error:  # it was moved meanwhile
        raise _missing(path) from error
    except OSError as error:
        raise ModelFileError(f"Model {path} cannot be read ({error.strerror}).") from error
    try:
        return replace(decode_model(data), path=path)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error


def _missing(path: Path) -> ModelFileError:
    return ModelFileError(f"Model {path} does not exist; check the name of the model file.")


def _as_path(value: object) -> Path:
    if not isinstance(value, str | PathLike):
        raise ModelFileError(
            f"A model is read from the path of its file, not from a {type(value).__name__}."
        )
    return Path(cast("str | PathLike[str]", value))


def is_model_file(path: Path) -> bool:
    """Whether a file claims to be a model of this program, valid or not; False if unreadable."""
    try:
        with open_regular(path) as file:
            start = file.read(8 + _LARGEST_HEADER)
    except OSError:
        return False
    return start[8:9] == _OPENING and _CLAIM in start


def decode_model(data: bytes) -> Model:
    """Decode the bytes of a model file.

    Raises ModelFileError unless the tensors are intact, finite, and exactly those of the card's
    architecture.
    """
    header, body = _split(data)
    with ThreadPoolExecutor(2) as beside:
        sha256 = beside.submit(hashlib.sha256, data)
        read = beside.submit(read_tensors, data)
        card = _card(header, body)
        tensors = read.result()
        graph = build(card.architecture)
        check_tensors(graph, tensors)
        reference_input = tensors.pop(_REFERENCE_INPUT)
        reference_output = tensors.pop(_REFERENCE_OUTPUT)
        network = Network(graph, tensors)
        return Model(
            card=card,
            network=network,
            reference_input=reference_input,
            reference_output=reference_output,
            identity=_identity(card, network),
            sha256=sha256.result().hexdigest(),
        )


def _identity(card: ModelCard, network: Network) -> str:
    """Return a hash of the weights and of all fields of the card that change voxels.

    Labels, provenance and reference are excluded, and so is the patch, which is one of a run's
    settings. Architecture fields added by later versions are excluded if they are not used.
    """
    content = {
        "architecture": architecture_to_json(card.architecture),
        "axes": card.axes,
        "spacing": card.spacing,
        "intensity_in": encode(card.intensity_in),
        "intensity_out": encode(card.intensity_out),
        "small_volume_padding": card.small_volume_padding,
        **stated_ranges(card),
        **stated_grids(card),
        **({"disagreement": card.disagreement} if card.disagreement else {}),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, weight in sorted(network.weights.items()):
        digest.update(json.dumps([name, weight.shape]).encode())
        digest.update(np.ascontiguousarray(weight, "<f4").data)
    return digest.hexdigest()


def _split(data: bytes) -> tuple[memoryview, memoryview]:
    """Split a safetensors file into header text and tensor data."""
    if not data:
        raise ModelFileError("The file is empty; copy or download it again.")
    if data[8:9] != _OPENING:
        if data.startswith(_CHECKPOINT_MAGIC):
            raise ModelFileError(f"This is a training checkpoint; {_IMPORT}.")
        raise ModelFileError(
            "This is not a model file; if it is a checkpoint or a network, such as .onnx, "
            f"{_IMPORT}."
        )
    length = int.from_bytes(data[:8], "little")
    if length > _LARGEST_HEADER:
        raise ModelFileError(
            f"The header declares {length} bytes, but no model needs more than {_LARGEST_HEADER}."
        )
    if length > len(data) - 8:
        raise ModelFileError("The file ends within its header; copy or download it again.")
    view = memoryview(data)
    return view[8 : 8 + length], view[8 + length :]


def _card(header: memoryview, body: memoryview) -> ModelCard:
    index = strict_json(bytes(header), "header")
    metadata = index.pop("__metadata__", None) if isinstance(index, dict) else None
    stated = metadata.get("format") if isinstance(metadata, dict) else None
    version = _FORMAT.fullmatch(stated) if isinstance(stated, str) else None
    if not isinstance(index, dict) or not isinstance(metadata, dict) or version is None:
        raise ModelFileError(f"This safetensors file has no model card; {_IMPORT}.")
    if int(version[1]) > FORMAT:
        raise ModelFileError(
            f"The file has model format {version[1]}, but this program reads up to {FORMAT}; "
            "install a newer cuda-cyclegan."
        )
    card = metadata.get("card")
    if not isinstance(card, str):
        raise ModelFileError(f"The metadata has no model card; {_IMPORT}.")
    if _content_sha256(card, index, body) != metadata.get("content_sha256"):
        raise ModelFileError(
            "The model card or the weights do not match the stored SHA-256; copy the file again."
        )
    return card_from_json(card)


def _content_sha256(card: str, index: dict[str, Json], data: memoryview) -> str:
    """Return a hash of the whole model: a flipped bit in the card is as harmful as one in a weight.

    It covers the JSON list of card text and tensor index, with sorted keys, and then the data.
    """
    digest = hashlib.sha256(json.dumps([card, index], sort_keys=True).encode())
    digest.update(data)
    return digest.hexdigest()


def onnx_bytes(model: Model) -> bytes:
    """Export a model to ONNX, with the card and the model file's hash as metadata."""
    from onnx import helper

    from ..cpu.onnx_model import to_onnx

    proto = to_onnx(model.network)
    helper.set_model_props(
        proto,
        {"cuda-cyclegan.card": card_to_json(model.card), "cuda-cyclegan.sha256": model.sha256},
    )
    return proto.SerializeToString()
