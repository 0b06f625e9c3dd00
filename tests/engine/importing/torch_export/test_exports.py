"""torch.export archives as PyTorch writes them become the networks that they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import onnx_exports, torch_exports
from support.lazy_modules import torch
from support.onnx_exports import BLOCK, CUBE, output_of, patch_of
from support.operator_dialect import check_dialect
from support.torch_exports import Handmade, call, exported, file_of, tensor

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import CheckpointError, PatchShapeError
from cuda_cyclegan.engine.importing.operators.converter import convert_graph, operators_of
from cuda_cyclegan.engine.importing.torch_export.archive import is_exported
from cuda_cyclegan.engine.importing.torch_export.aten import VIEWS
from cuda_cyclegan.engine.importing.torch_export.exported_graph import read_exported
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Downsample, FloatArray, Upsample, kind_of

NEAR = 2e-6
"""Relative L2; max(5e-6, 1.5 times PyTorch's own error) is asked."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stored archives."""
    folder = tmp_path_factory.mktemp("exports")
    torch_exports.extract(folder)
    return folder


def imported(path: Path) -> Network:
    return convert_graph(check_dialect(read_exported(path)), None).network


def distance(found: Network, patch: FloatArray, expected: FloatArray) -> float:
    with open_cpu_generator(found, threads=1) as generator:
        made = generator(patch)
    assert made.shape == expected.shape
    return float(np.linalg.norm(made - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    "name", [*onnx_exports.NETWORKS, onnx_exports.STORED, onnx_exports.OF_PATCH]
)
def test_a_network_computes_what_pytorch_does(name: str, exports: Path) -> None:
    path = exports / file_of(name)
    assert is_exported(path)
    found = imported(path)
    assert found.graph.patch is None
    for extents in (CUBE, BLOCK) if name in onnx_exports.NETWORKS else (CUBE,):
        patch = patch_of(*extents)
        assert distance(found, patch, output_of(name, patch)) < NEAR


def test_filters_become_sampling_layers(exports: Path) -> None:
    layers = [
        node.layer for node in imported(exports / file_of("CUT with anti-aliasing")).graph.nodes
    ]
    assert any(isinstance(one, Downsample) for one in layers)
    assert any(isinstance(one, Upsample) for one in layers)


def test_an_archive_of_an_older_pytorch_is_the_same_network(exports: Path) -> None:
    name = torch_exports.FLAT
    old, new = (imported(exports / file_of(one)) for one in (f"flat {name}", name))
    assert old.graph == new.graph
    assert all(np.array_equal(old.weights[key], new.weights[key]) for key in new.weights)


def test_the_operators_of_the_file_are_counted(exports: Path) -> None:
    counts = operators_of(read_exported(exports / file_of("DynUNet")))
    assert counts["aten.conv3d"] == 11
    assert next(iter(counts)) == "aten.conv3d"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all kinds of layers", "what is expanded"])
def test_pytorch_writes_the_network_that_is_stored(
    name: str, exports: Path, tmp_path: Path
) -> None:
    """A new PyTorch may write otherwise: then make.py in the folder of the stored files is due."""
    pytest.importorskip("monai")
    from support.onnx_networks import network, rounded

    live = imported(exported(rounded(network(name)), tmp_path / "net.pt2"))
    assert live.graph == imported(exports / file_of(name)).graph
    patch = patch_of(*CUBE)
    assert distance(live, patch, output_of(name, patch)) < NEAR


def test_a_program_of_one_patch_is_of_that_patch(tmp_path: Path) -> None:
    path = exported(torch.nn.Conv3d(1, 1, 3, padding=1), tmp_path / "net.pt2", 8, is_fixed=True)
    found = convert_graph(read_exported(path), None)
    assert found.network.graph.patch == (8, 8, 8)
    assert "fixed to 8x8x8" in found.reason
    with pytest.raises(PatchShapeError):
        found.network.graph.check_patch((16, 16, 16))


def module_of(compute: Callable[..., Any], *layers: Any) -> Any:
    """Return a module that computes a function of its input and its layers."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x: Any) -> Any:
            return compute(x, *self.layers)

    return Module().eval()


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "activations": lambda x, f: sum(
        act(x + 0.1)
        for act in (
            *(f.relu, f.relu6, f.elu, f.selu, f.celu, f.gelu, f.silu, f.mish, f.hardswish),
            *(f.hardsigmoid, f.hardtanh, f.softplus, f.logsigmoid, torch.tanh, torch.sigmoid),
            *(torch.erf, torch.abs, torch.neg, f.leaky_relu),
        )
    ),
    "activations with numbers": lambda x, f: (
        f.elu(x, 0.7)
        + f.celu(x, 0.6)
        + f.gelu(x, approximate="tanh")
        + f.softplus(x, 2.0)
        + f.hardtanh(x, -0.3, 0.4)
        + f.leaky_relu(x, 0.3)
        + torch.clamp(x, max=0.2)
        + torch.clamp(x, -0.1, float("inf"))
    ),
    "arithmetic": lambda x, _: (
        torch.add(x, x * 0.5, alpha=3) - torch.sub(x, 0.2, alpha=2) / 4 + (1 - x) * x**3 + 2
    ),
    "norms written out": lambda x, _: (
        (x - x.mean((2, 3, 4), keepdim=True))
        / torch.sqrt(x.var((2, 3, 4), keepdim=True, unbiased=False) + 1e-5)
    ),
    "pads": lambda x, f: (
        f.pad(x, (1, 2, 0, 1, 2, 0), mode="reflect")
        + f.pad(x, (2, 1, 1, 0, 1, 1), mode="replicate")
        + f.pad(x, (1, 2, 1, 0, 0, 2), value=0.5)
    )[:, :, 1:-1, :-1, 2:-1],
    "cuts": lambda x, f: f.pad(
        f.pad(x, (-1, -1, -1, -1, -1, -1))
        + x[:, :, 1:-1, 2:, :-2]
        + x.narrow(2, 1, 14)[..., 1:-1, :-2],
        (1, 1, 1, 1, 1, 1),
    ),
    "channels": lambda x, f: torch.cat(
        [
            *torch.split(x, [1, 3], 1),
            *x.chunk(3, 1),
            *x.split(3, 1),
            x[:, 1][:, None],
            x.softmax(1),
            f.log_softmax(x, -4),
        ],
        1,
    ),
    "samplings": lambda x, f: f.avg_pool3d(
        f.interpolate(x, scale_factor=2)
        + f.interpolate(x, scale_factor=2, mode="nearest-exact")
        + f.interpolate(x, scale_factor=(2, 2, 2), mode="trilinear")
        + f.interpolate(x, [2 * n for n in x.shape[2:]], mode="trilinear", align_corners=True),
        2,
    ),
    "samplings by other factors": lambda x, f: f.interpolate(
        f.interpolate(x, scale_factor=(1.5, 0.25, 2), mode="trilinear"),
        x.shape[2:],
        mode="trilinear",
    ),
    "larger ones": lambda x, _: (
        torch.maximum(x, -x) + torch.max(x, x * 2) * x.max(1, keepdim=True)[0] + torch.min(x, -x)
    ),
    "smaller ones": lambda x, _: (
        torch.minimum(x, -x) * x.min(1, keepdim=True)[0] + x.amin(1, keepdim=True)
    ),
    "constant channels": lambda x, _: torch.cat(
        [x, x.new_zeros(x.shape), torch.zeros(1, 2, *x.shape[2:])], 1
    )[:, 3:],
    "constants like the tensor": lambda x, _: (
        x + torch.ones_like(x) * torch.maximum(x, torch.full_like(x, 0.2)) - torch.zeros_like(x)
    ),
    "unit vectors": lambda x, f: (
        f.normalize(x, dim=1)
        + f.normalize(x, p=1, dim=1)
        + torch.linalg.vector_norm(x, dim=1)[:, None]
    ),
    "a leaky ReLU that is random in training": lambda x, f: f.rrelu(x) + f.rrelu(x, 0.1, 0.2),
    "slices": lambda x, f: (
        f.interpolate(
            f.max_pool2d(
                f.conv2d(
                    x.transpose(1, 2).reshape(-1, 4, 16, 16),
                    x.new_zeros(4, 4, 3, 3) + 0.1,
                    padding=1,
                ),
                2,
            ),
            scale_factor=2,
            mode="bilinear",
        )
        .reshape(1, 16, 4, 16, 16)
        .transpose(1, 2)
    ),
    "moved axes": lambda x, f: (
        f.layer_norm(x.movedim(1, -1), (4,)).movedim((4, 1), (1, 2))
        + torch.moveaxis(x.moveaxis((1, 2), (-2, 0)), (0, 3), (2, 1)).view_as(x)
        + x.flatten(2).reshape_as(x)
    ),
    "gates": lambda x, f: f.glu(x, 1) - f.glu(torch.cat([x, -x], 1), -4)[:, :2],
    "pools": lambda x, f: f.interpolate(
        f.max_pool3d(x, 2) + f.avg_pool3d(x, 3, 2, 1) + f.avg_pool3d(x, 3, 2, 1, False, False),
        scale_factor=2,
    ),
    "shuffled cells": lambda x, f: f.interpolate(
        x[:, :1]
        .reshape(1, 1, x.shape[2] // 2, 2, x.shape[3] // 2, 2, x.shape[4] // 2, 2)
        .permute(0, 1, 3, 5, 7, 2, 4, 6)
        .flatten(1, 4),
        scale_factor=2,
    ),
    "casts and copies": lambda x, f: (
        x.to(torch.float32).contiguous().clone().detach() + x.float() + f.dropout(x, 0.5, False)
    ),
}


def check(module: Any, folder: Path, channels: int) -> list[str]:
    """Compare a module with its import; return the kinds of the layers."""
    path = exported(module, folder / "net.pt2", 16, channels, is_fixed=True)
    patch = patch_of(16, 16, 16, channels=channels)
    with torch.no_grad():
        expected = module(torch.from_numpy(patch)).numpy()
    found = imported(path)
    assert distance(found, patch, expected) < NEAR
    return [kind_of(node.layer) for node in found.graph.nodes]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_pytorch_does(name: str, tmp_path: Path) -> None:
    compute = OPERATORS[name]
    check(module_of(lambda x: compute(x, torch.nn.functional)), tmp_path, 4)


def test_spectral_and_weight_norm_are_computed_once(tmp_path: Path) -> None:
    convolutions = [torch.nn.Conv3d(2, 2, 3, padding="same") for _ in range(3)]
    norms = torch.nn.utils
    layers = (
        norms.spectral_norm(convolutions[0]),
        norms.parametrizations.spectral_norm(convolutions[1]),
        norms.parametrizations.weight_norm(convolutions[2]),
    )
    assert check(torch.nn.Sequential(*layers).eval(), tmp_path, 2) == ["conv"] * 3


def test_norms_of_all_kinds(tmp_path: Path) -> None:
    kinds = (
        *(torch.nn.InstanceNorm3d(4), torch.nn.InstanceNorm3d(4, affine=True)),
        *(torch.nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4, affine=False)),
        *(torch.nn.BatchNorm3d(4), torch.nn.BatchNorm3d(4, affine=False)),
        torch.nn.InstanceNorm3d(4, track_running_stats=True),
    )
    made = check(
        torch.nn.Sequential(*kinds, torch.nn.PReLU(4), torch.nn.PReLU()).eval(), tmp_path, 4
    )
    assert made[:4] == ["instance_norm", "instance_norm", "group_norm", "group_norm"]
    assert made[-2:] == ["prelu", "leaky_relu"]


@pytest.mark.parametrize("bias", [True, False])
def test_a_block_of_convnext(bias: bool, tmp_path: Path) -> None:
    """The block's linear layers are on channels that were moved after the voxels."""
    layers = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8, bias), torch.nn.Linear(8, 4, bias)

    def block(x: Any, norm: Any, grow: Any, shrink: Any) -> Any:
        moved = norm(x.permute(0, 2, 3, 4, 1))
        return x + shrink(torch.nn.functional.gelu(grow(moved))).permute(0, 4, 1, 2, 3)

    assert check(module_of(block, *layers), tmp_path, 4).count("conv") == 4


def test_an_operator_in_place_changes_what_is_read_after_it(tmp_path: Path) -> None:
    """The skips of pix2pix' U-Net, for instance, hold what the next block activated in place."""

    def compute(x: Any, conv: Any) -> Any:
        wide = conv(x)
        return torch.cat([torch.relu_(wide), wide], 1) + wide.add_(1)[:, :1]

    check(module_of(compute, torch.nn.Conv3d(1, 3, 1)), tmp_path, 1)


def in_place(later: str) -> Handmade:
    """conv -> slice -> relu_ of the slice, and a sum with what `later` names."""
    made = Handmade()
    conv = made.graph["nodes"][0]
    dim = {"as_int": 1}
    made.graph["nodes"] = [
        conv,
        call("slice", "part", self=tensor("conv"), dim=dim),
        call("relu_", "changed", self=tensor("part")),
        call("add", "relu", self=tensor("changed"), other=tensor(later)),
    ]
    return made


def test_names_of_a_changed_value_read_the_change(tmp_path: Path) -> None:
    again, twice = (
        imported(in_place(name).written(tmp_path / "net.pt2")) for name in ("part", "changed")
    )
    assert again.graph == twice.graph
    assert [node.inputs for node in again.graph.nodes][-1] == ("1.relu", "1.relu")


READ_LATER = r"aten\.\w+_ .* in place a tensor that is read later"


def test_a_view_of_a_changed_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=READ_LATER):
        imported(in_place("conv").written(tmp_path / "net.pt2"))


def _activated(part: Callable[[Any], Any]) -> Callable[..., Any]:
    """A network that activates a part of its output in place, which nothing else reads."""

    def compute(x: Any, conv: Any) -> Any:
        wide = conv(x)
        part(wide).relu_()
        return wide

    return compute


def _with_zeros(x: Any, conv: Any) -> Any:
    wide = conv(x)
    wide[:, :2] = 0
    return wide


@pytest.mark.parametrize(
    "compute",
    [
        _activated(lambda wide: wide.view(wide.shape)),
        _activated(lambda wide: wide[:, :2]),
        _activated(lambda wide: wide.chunk(2, 1)[1]),
        _activated(lambda wide: wide.unbind(1)[0]),
        _activated(lambda wide: wide.movedim(1, 4)),
        _with_zeros,
    ],
)
def test_a_change_of_a_part_of_the_output_is_refused(
    compute: Callable[..., Any], tmp_path: Path
) -> None:
    """Nothing reads the changed part by its name; only the output shares its memory."""
    path = exported(module_of(compute, torch.nn.Conv3d(1, 4, 3, padding=1)), tmp_path / "net.pt2")
    with pytest.raises(CheckpointError, match=READ_LATER):
        imported(path)


def test_every_operator_that_shares_memory_is_known_as_a_view() -> None:
    """PyTorch states in its schemas which results alias an argument that is not written."""
    of_sparse = {"values", "indices", "coalesce", "crow_indices", "col_indices", "ccol_indices"}
    of_lists = {"get", "pop", "keys", "setdefault", "local_value", "to_here", "as_tensor"}
    found = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
        for result in schema.returns
        if result.alias_info is not None and not result.alias_info.is_write
    }
    public = {name for name in found if not name.startswith("_")}
    unknown = {f"aten.{name}" for name in public - of_sparse - of_lists} - VIEWS
    assert unknown == {"aten.row_indices"}


def test_alpha_scales_the_number_that_is_subtracted(tmp_path: Path) -> None:
    """The subtrahend of rsub is the tensor."""

    def compute(x: Any, wide: Any, other: Any) -> Any:
        made = torch.sub(wide(x), other(x), alpha=3)
        return torch.rsub(torch.rsub(made, other(x), alpha=0.5), 0.25, alpha=2)

    layers = torch.nn.Conv3d(1, 3, 3, padding=1), torch.nn.Conv3d(1, 3, 1)
    check(module_of(compute, *layers), tmp_path, 1)


@pytest.mark.parametrize("axis", [0, 1, -2, None])
def test_a_weight_norm_over_some_or_all_axes(axis: int | None, tmp_path: Path) -> None:
    """PyTorch stores the axis None, by which all numbers have one length, as -1."""
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv3d(2, 3, 3), dim=axis)

    def compute(x: Any, first: Any, normed: Any) -> Any:
        return normed(torch.nn.functional.pad(first(x), (1,) * 6))

    check(module_of(compute, torch.nn.Conv3d(1, 2, 1), normed), tmp_path, 1)
