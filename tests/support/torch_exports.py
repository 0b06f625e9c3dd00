"""torch.export archives: stored ones of the exporters' networks, and small ones made by hand."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cuda_cyclegan.engine.network.layers import FloatArray

FOLDER = Path(__file__).parents[1] / "fixtures" / "torch_exports"
ARCHIVE = FOLDER / "networks.tar.xz"
VERSIONS = FOLDER / "versions.txt"

FLAT = "sub-pixels and GELU"
"""Network that is also stored as PyTorch before 2.8 did, by `flat`."""


def extract(folder: Path) -> None:
    """Put every stored file into a folder, named by `file_of`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def file_of(name: str) -> str:
    return f"{name}.pt2"


def exported(
    module: Any, path: Path, extent: int = 16, channels: int = 1, *, is_fixed: bool = False
) -> Path:
    """A module saved by torch.export with open extents, or for one patch."""
    import torch
    from support.onnx_networks import silent

    patch = torch.zeros(1, channels, extent, extent, extent)
    shapes = None if is_fixed else (dict.fromkeys((2, 3, 4), torch.export.Dim.DYNAMIC),)
    with silent(), torch.no_grad():
        program = torch.export.export(module, (patch,), dynamic_shapes=shapes)
        torch.export.save(_without_paths(program), path)
    return path


def flat(module: Any, extent: int = 16) -> bytes:
    """A module as PyTorch 2.1 to 2.7 stored it: entries without a folder, weights by torch.save."""
    import torch
    from support.onnx_networks import silent
    from torch._export.serde.serialize import serialize

    shapes = (dict.fromkeys((2, 3, 4), torch.export.Dim.DYNAMIC),)
    with silent(), torch.no_grad():
        patch = torch.zeros(1, 1, extent, extent, extent)
        program = torch.export.export(module, (patch,), dynamic_shapes=shapes)
        made = serialize(_without_paths(program))
    return zipped(
        {
            "serialized_exported_program.json": made.exported_program,
            "serialized_state_dict.pt": made.state_dict,
            "serialized_constants.pt": made.constants,
            "version": b"8.8",
        }
    )


def _without_paths(program: Any) -> Any:
    """Leave out the source lines of each node, which name folders of this machine."""
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def zipped(entries: Mapping[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, kind)
    return stream.getvalue()


class Handmade:
    """An archive of one convolution and a ReLU; tests change its parts.

    program: JSON of the graph. config: description of the weights. entries: what else it holds.
    """

    def __init__(self) -> None:
        weight = np.random.default_rng(0).normal(size=(1, 1, 3, 3, 3)).astype(np.float32)
        self.weight: FloatArray = weight
        self.program: dict[str, Any] = {
            "graph_module": {
                "graph": {
                    "inputs": [tensor("p_weight"), tensor("x")],
                    "outputs": [tensor("relu")],
                    "nodes": [
                        call(
                            *("conv3d", "conv"),
                            input=tensor("x"),
                            weight=tensor("p_weight"),
                            padding={"as_ints": [1, 1, 1]},
                        ),
                        call("relu", "relu", self=tensor("conv")),
                    ],
                    "tensor_values": {
                        "x": meta(1, 1, None, None, None),
                        "p_weight": meta(1, 1, 3, 3, 3),
                        "conv": meta(1, 1, None, None, None),
                    },
                },
                "signature": {
                    "input_specs": [
                        {"parameter": {"arg": {"name": "p_weight"}, "parameter_name": "weight"}},
                        {"user_input": {"arg": tensor("x")}},
                    ],
                    "output_specs": [{"user_output": {"arg": tensor("relu")}}],
                },
            },
            "schema_version": {"major": 8, "minor": 20},
            "torch_version": "2.13.0",
        }
        described = {
            "path_name": "weight_0",
            "is_param": True,
            "use_pickle": False,
            "tensor_meta": meta(1, 1, 3, 3, 3),
        }
        self.config: dict[str, Any] = {"config": {"weight": described}}
        self.entries: dict[str, bytes] = {
            "net/byteorder": b"little",
            "net/data/weights/weight_0": weight.tobytes(),
        }

    @property
    def graph(self) -> dict[str, Any]:
        return self.program["graph_module"]["graph"]

    @property
    def signature(self) -> dict[str, Any]:
        return self.program["graph_module"]["signature"]

    @property
    def stored(self) -> dict[str, Any]:
        """Description of the only weight."""
        return self.config["config"]["weight"]

    def bytes(self, kind: int = zipfile.ZIP_STORED) -> bytes:
        described = {
            "net/models/model.json": json.dumps(self.program).encode(),
            "net/data/weights/model_weights_config.json": json.dumps(self.config).encode(),
        }
        return zipped(described | self.entries, kind)

    def written(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path


def tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def call(kind: str, output: str, **arguments: Any) -> dict[str, Any]:
    """A node of the graph with one result."""
    named = [{"name": name, "arg": one, "kind": 1} for name, one in arguments.items()]
    target = f"torch.ops.aten.{kind}.default"
    return {"target": target, "inputs": named, "outputs": [tensor(output)], "name": output}


def meta(*sizes: int | None, dtype: int = 7) -> dict[str, Any]:
    """The description of a contiguous tensor; None is an extent that depends on the patch."""
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size or 1
    return {
        "dtype": dtype,
        "sizes": [
            {"as_expr": {"expr_str": f"s{axis}", "hint": None}}
            if size is None
            else {"as_int": size}
            for axis, size in enumerate(sizes)
        ],
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }
