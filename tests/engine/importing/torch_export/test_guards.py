"""Exported programs that hold for some patches only, as their code has branches for others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.lazy_modules import torch
from support.torch_exports import Handmade, exported

from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.operators.converter import ConvertedGraph, convert_graph
from cuda_cyclegan.engine.importing.torch_export.exported_graph import read_exported
from cuda_cyclegan.engine.importing.torch_export.guards import guard_conditions
from cuda_cyclegan.engine.network.layers import Triple


def branching(chooses: Callable[[Any, Any, Any], Any]) -> Any:
    """A module of two convolutions, between which code decides by the extents."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (torch.nn.Conv3d(1, 1, 3, padding=1) for _ in range(2))

        def forward(self, x: Any) -> Any:
            return self.one(x) if chooses(*x.shape[2:]) else self.other(x)

    return Module().eval()


def converted(module: Any, folder: Path, patch: Triple = (16, 16, 16)) -> ConvertedGraph:
    """The import of a module that was exported for 16x16x16, for a patch."""
    return convert_graph(read_exported(exported(module, folder / "net.pt2")), patch)


@pytest.mark.parametrize(
    ("chooses", "condition"),
    [
        (lambda d, *_: d > 40, "D <= 40"),
        (lambda _, h, w: h == w, "H == W"),
        (lambda d, *_: d % 2 == 0, "(D % 2) == 0"),
        (lambda d, h, _: d + h > 40, "H + D <= 40"),
        (lambda _, h, w: h / w > 1.5, "(H / W) <= 1.5"),
        (lambda d, *_: d**0.5 > 3, "torch.sym_float(D) ** 0.5 > 3.0"),  # of a form that is not read
    ],
)
def test_a_program_with_a_branch_is_for_the_patch_that_was_asked_for(
    chooses: Callable[[Any, Any, Any], Any], condition: str, tmp_path: Path
) -> None:
    found = converted(branching(chooses), tmp_path)
    assert found.network.graph.patch == (16, 16, 16)
    assert found.reason.endswith(f"of which {condition}")


def test_a_patch_of_another_branch_is_refused(tmp_path: Path) -> None:
    module = branching(lambda d, *_: d > 40)
    with pytest.raises(CheckpointError, match=r"which D <= 40, unlike 48x16x16"):
        converted(module, tmp_path, (48, 16, 16))
    whole = convert_graph(read_exported(tmp_path / "net.pt2"), None)
    assert whole.network.graph.patch == (32, 32, 32)  # of the usual ones, the first that fits


def test_conditions_that_every_patch_meets_limit_nothing(tmp_path: Path) -> None:
    """PyTorch states that no map is one voxel thin, and that skips have the extents of their maps;
    for the deepest map of this patch it states that it is.
    """

    class UNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = torch.nn.ModuleList(
                [torch.nn.Conv3d(1 if level == 0 else 2, 2, 4, 2, 1) for level in range(4)]
            )
            self.up = torch.nn.ModuleList(
                [torch.nn.ConvTranspose3d(2, 2 if level else 1, 4, 2, 1) for level in range(4)]
            )

        def forward(self, x: Any) -> Any:
            maps = [x]
            for layer in self.down:
                maps.append(layer(torch.nn.functional.leaky_relu(maps[-1], 0.2)))
            made = maps.pop()
            for layer in reversed(self.up):
                made = layer(made) + maps.pop()
            return made

    found = converted(UNet(), tmp_path)
    assert found.reason == ""
    assert found.network.graph.patch is None
    again = convert_graph(read_exported(tmp_path / "net.pt2"), (64, 64, 64))
    assert again.reason == ""


def test_older_programs_state_intervals_and_equal_names(tmp_path: Path) -> None:
    made = Handmade()
    made.program["range_constraints"] = {"s2": {"min_val": 2, "max_val": 40}}
    path = made.written(tmp_path / "net.pt2")
    found = convert_graph(read_exported(path), (16, 16, 16))
    assert found.reason.endswith("D <= 40")

    sizes = made.graph["tensor_values"]["x"]["sizes"]
    sizes[2] = {"as_expr": {"expr_str": "Symbol('s3', integer=True)", "hint": {"as_int": 16}}}
    made.program["range_constraints"] = {"s3": {"min_val": 2, "max_val": 2**63 - 2}}
    found = convert_graph(read_exported(made.written(path)), (16, 16, 16))
    assert found.reason.endswith("D == H")

    made.program["guards_code"] = []  # a newer one, which has no guard for what its user declared
    assert convert_graph(read_exported(made.written(path)), (16, 16, 16)).reason == ""


@pytest.mark.parametrize(
    "text",
    [
        *(
            "D **",
            "D ** D ** D",
            "().__class__",
            "exit(D)",
            "D if H else W",
            "lambda: D",
            "'D' * D",
        ),
        *("(" * 3000, "D // (H - H) == 1", "max() == D"),
    ],
)
def test_a_guard_of_another_form_holds_for_the_exported_patch_only(text: str) -> None:
    guard = text.replace("D", "L['x'].size()[2]").replace("H", "L['x'].size()[3]")
    conditions = guard_conditions([guard], (16, 16, 16))
    if "D" in text:
        [condition] = conditions
        assert not condition.holds((16, 16, 32))
    else:
        assert conditions == ()


def test_guards_of_batch_and_channels_are_no_conditions() -> None:
    assert guard_conditions(["L['DWI'].size()[0] == 1", "L['DWI'].size()[1] == 2"], None) == ()
