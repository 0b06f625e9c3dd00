"""ONNX's own case of each operator, lifted to three dimensions and put between two convolutions.

Its tensor is computed from a patch by a convolution, and a convolution leads from its output to the
network's. Both have kernels of one voxel, so that ONNX's reference computes the rest in double
precision.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, NodeProto, helper
from support.onnx_lifts import Lifted, lifts
from support.onnx_official import (
    Array,
    OfficialCase,
    graph_model,
    in_onnx_runtime,
    in_reference,
    official_cases,
    shape_of,
)

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.importing.onnx_file import read_onnx
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.network.graph import Network, graph_out_of_bounds

NEAR = 1e-5
"""Relative L2."""


@dataclass(frozen=True)
class NodeCase:
    """An operator in a network.

    name: of ONNX's case, and how it is lifted. operator: type of its node. attributes: of the node.
    network: from "patch" to "translated". middle: the part between the convolutions. patch:
    extents. enter, leave: weights and biases of the convolutions; those that enter by their output.
    """

    name: str
    operator: str
    attributes: Mapping[str, Any] = field(repr=False)
    network: ModelProto = field(repr=False)
    middle: ModelProto = field(repr=False)
    patch: tuple[int, int, int]
    enter: Mapping[str, tuple[Array, Array]] = field(repr=False)
    leave: tuple[Array, Array] = field(repr=False)

    def input_patch(self) -> Any:
        """A patch to compute."""
        numbers = np.random.default_rng(3).uniform(-1, 1, (1, 1, *self.patch))
        return numbers.astype(np.float32)

    def expected(self) -> list[Array]:
        """The output by ONNX's reference in double precision and ONNX Runtime, if they can."""
        patch = self.input_patch()
        entered = {name: _convolved(patch, *one) for name, one in self.enter.items()}
        made = in_reference(self.middle, entered)
        exact = None if made is None else _convolved(made, *self.leave)
        single = in_onnx_runtime(self.network, {"patch": patch})
        return [one for one in (exact, single) if one is not None]


def _convolved(values: Array, weight: Array, bias: Array) -> Array:
    made = np.einsum("oi,nidhw->nodhw", weight[:, :, 0, 0, 0], values.astype(np.float64))
    return made + bias.astype(np.float64).reshape(1, -1, 1, 1, 1)


def node_cases(module: str = "") -> Iterator[NodeCase]:
    """All cases that can be lifted, in each way, or those of one module of ONNX."""
    seen: set[bytes] = set()
    for official in official_cases(module):
        for lifted in lifts(official):
            case = _case(official, lifted)
            if case is None:
                continue
            content = case.network.SerializeToString(deterministic=True)
            if content not in seen:
                seen.add(content)
                yield case


def _case(official: OfficialCase, lifted: Lifted) -> NodeCase | None:
    """The network around a lifted operator; None if its output is no tensor of voxels."""
    random = np.random.default_rng(7)
    channels, patch = lifted.shape[1], lifted.shape[2:]
    arrays = dict(lifted.constants)
    enter = {f"{tensor}.conv": _weights(random, channels, 1) for tensor in lifted.tensors}
    middle: list[NodeProto] = []
    for tensor, is_above in lifted.tensors.items():
        if is_above:
            squared = f"{tensor}.squared"
            middle.append(helper.make_node("Mul", [f"{tensor}.conv"] * 2, [squared]))
            middle.append(helper.make_node("Add", [squared, "least"], [tensor]))
            arrays["least"] = np.array(0.5, np.float32)
        else:
            middle.append(helper.make_node("Identity", [f"{tensor}.conv"], [tensor]))
    middle += lifted.nodes
    inputs = dict.fromkeys(enter, (1, channels, *patch))
    made = shape_of(graph_model(middle, inputs, lifted.output, arrays, official.opset), inputs)
    if made is None or len(made) != 5 or made[0] != 1 or 0 in made:
        return None
    middle += _restored(lifted.output, made[2:], patch, arrays, official.opset)
    leave = _weights(random, 1, made[1])
    used = {name for node in middle for name in node.input}
    arrays = {name: array for name, array in arrays.items() if name in used}
    whole = dict(arrays)
    nodes: list[NodeProto] = []
    for source, made_by, (weight, bias) in (
        *(("patch", name, one) for name, one in enter.items()),
        ("restored", "translated", leave),
    ):
        whole |= {f"{made_by}.weight": weight, f"{made_by}.bias": bias}
        names = [source, f"{made_by}.weight", f"{made_by}.bias"]
        nodes.append(helper.make_node("Conv", names, [made_by], made_by))
    stated = official.nodes[0].attribute if official.is_single else ()
    dims = {"patch": ("n", 1, "d", "h", "w")}
    return NodeCase(
        f"{official.name} {lifted.way}",
        official.operator,
        {one.name: helper.get_attribute_value(one) for one in stated},
        graph_model([*nodes[:-1], *middle, nodes[-1]], dims, "translated", whole, official.opset),
        graph_model(middle, inputs, "restored", arrays, official.opset),
        patch,
        enter,
        leave,
    )


def _weights(random: Any, out: int, into: int) -> tuple[Array, Array]:
    weight = random.normal(size=(out, into, 1, 1, 1)) / np.sqrt(into)
    return weight.astype(np.float32), (0.3 * random.normal(size=out)).astype(np.float32)


def _restored(
    value: str,
    extents: Sequence[int],
    patch: Sequence[int],
    arrays: dict[str, Array],
    opset: int,
) -> Iterator[NodeProto]:
    """Sample, grow and cut an output to the extents of the patch."""
    factors = [max(1, round(p / e)) for p, e in zip(patch, extents, strict=True)]
    if factors != [1, 1, 1]:
        yield _repeated(value, factors, arrays, opset)
        value = "sampled"
    missing = [p - e * f for p, e, f in zip(patch, extents, factors, strict=True)]
    for kind, made, newest_old, numbers, attributes in (
        ("Pad", "grown", 10, {"pads": [0] * 7 + [max(0, m) for m in missing]}, {"mode": "edge"}),
        (
            "Slice",
            "cut",
            9,
            {
                "starts": [0] * 3,
                "ends": [m if m < 0 else 1 << 20 for m in missing],
                "axes": [2, 3, 4],
            },
            {},
        ),
    ):
        if max(missing) > 0 if kind == "Pad" else min(missing) < 0:
            if opset <= newest_old:
                yield helper.make_node(kind, [value], [made], **attributes, **numbers)
            else:
                names = [f"{made}.{key}" for key in numbers]
                stated = [np.array(one, np.int64) for one in numbers.values()]
                arrays |= dict(zip(names, stated, strict=True))
                yield helper.make_node(kind, [value, *names], [made], **attributes)
            value = made
    yield helper.make_node("Identity", [value], ["restored"])


def _repeated(source: str, factors: list[int], arrays: dict[str, Array], opset: int) -> NodeProto:
    scales = [1.0, 1.0, *map(float, factors)]
    if opset < 9:
        return helper.make_node("Upsample", [source], ["sampled"], scales=scales)
    arrays["sampled.scales"] = np.array(scales, np.float32)
    if opset < 11:
        kind = "Upsample" if opset == 9 else "Resize"
        return helper.make_node(kind, [source, "sampled.scales"], ["sampled"])
    positions = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    names = [source, "", "sampled.scales"]
    return helper.make_node("Resize", names, ["sampled"], **positions)


@dataclass(frozen=True)
class Verdict:
    """Outcome of a case in the program.

    status: "wrong" if it computes something else, "bug" if it ends by another error than a refusal.
    text: the refusal or the error. network: of an equal case, valid for any patch if `is_open`.
    output: the program's. right: that of ONNX.
    """

    case: NodeCase
    status: Literal["equal", "refused", "wrong", "bug", "not computed"]
    text: str = ""
    network: Network | None = field(default=None, repr=False)
    output: Any = field(default=None, repr=False)
    right: Any = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the network takes patches of any extents."""
        return self.network is not None and self.network.graph.patch is None


def judged(case: NodeCase, folder: Path) -> Verdict:
    """Import a case's network, and compare it with ONNX's reference and ONNX Runtime."""
    path = folder / "case.onnx"
    path.write_bytes(case.network.SerializeToString())
    try:
        network = convert_graph(read_onnx(path), case.patch).network
        outside = [f"{field} {reason}" for field, reason in graph_out_of_bounds(network.graph)]
        with np.errstate(all="ignore"), open_cpu_generator(network, threads=1) as generator:
            output = generator(case.input_patch())
    except CheckpointError as error:
        return Verdict(case, "refused", str(error).removeprefix(f"{path}: "))
    except Exception as error:  # whatever it is, it is none of ours
        return Verdict(case, "bug", f"{type(error).__name__}: {error}")
    if outside:
        return Verdict(case, "bug", outside[0])
    if not (right := case.expected()):
        return Verdict(case, "not computed")
    errors = [distance(output, one) for one in right]
    status = "equal" if max(errors) < NEAR else "wrong"
    return Verdict(case, status, f"errors {errors}", network, output, right[0])


def distance(made: Array, right: Array) -> float:
    """Relative L2 error; of numbers that are not finite, whether they are the same."""
    with np.errstate(all="ignore"):
        if made.shape != right.shape or not np.isfinite(right).all():
            return 0.0 if np.allclose(made, right, NEAR, NEAR, equal_nan=True) else np.inf
        return float(np.linalg.norm(made - right) / max(float(np.linalg.norm(right)), 1e-30))
