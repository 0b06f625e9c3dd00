"""Slabs of a piece as models whose weights are inputs, so that equal pieces share one."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ..network.layers import FloatArray
from .onnx_model import model_of
from .onnx_operators import Converter
from .slab_pieces import SlabPiece


@dataclass(frozen=True, slots=True)
class SlabModel:
    """A slab's model; maps are [1, D, H, W, C], of fixed extents.

    onnx: equal for slabs that differ only in weights and in names. weights: arrays of the inputs
    that are weights. rows, scales, shifts: names of the inputs of each source:
    its rows, and the [C] that normalise them.
    """

    onnx: ModelProto
    weights: dict[str, FloatArray]
    rows: dict[str, str]
    scales: dict[str, str]
    shifts: dict[str, str]


def slab_model(
    slab: SlabPiece,
    shapes: Mapping[str, Sequence[int]],
    normalised: Collection[str],
    weights: Mapping[str, FloatArray],
    *,
    for_openvino: bool,
) -> SlabModel:
    """Return the model of a slab.

    shapes: of the rows of each source. normalised: sources that are scaled and shifted first.
    for_openvino: whether operators are those that are fast in OpenVINO, else in ONNX Runtime.
    """
    converter = Converter(
        weights,
        {},
        by_columns=True,
        by_phases=for_openvino,
        channels_last=True,
        wide_outputs=for_openvino,
    )
    operators = [made for source in normalised for made in _normalisation(source)]
    operators += [made for node in slab.nodes for made in converter.operators(node)]
    names = _Names()
    for operator in operators:
        operator.name = ""
        operator.input[:] = [names[name] for name in operator.input]
        operator.output[:] = [names[name] for name in operator.output]
    rows = {one: names[_rows(one) if one in normalised else one] for one in shapes}
    scales, shifts = ({one: names[name(one)] for one in normalised} for name in (_scale, _shift))
    arrays = {
        names[key]: array
        for key, array in converter.constants.items()
        if key in converter.of_weights
    }
    inputs = [_value(rows[source], shape) for source, shape in shapes.items()]
    inputs += [_value(one[key], shapes[key][-1:]) for one in (scales, shifts) for key in one]
    inputs += [_value(name, array.shape) for name, array in arrays.items()]
    constants = [
        numpy_helper.from_array(array, names[key])
        for key, array in converter.constants.items()
        if key not in converter.of_weights
    ]
    output = _value(names[slab.output], [None] * 5)
    model = model_of("slab", operators, inputs, output, constants)
    return SlabModel(model, arrays, rows, scales, shifts)


class _Names(dict[str, str]):
    """Short names of tensors, in the order in which they are first used."""

    def __missing__(self, name: str) -> str:
        self[name] = f"t{len(self)}" if name else ""  # "" is an input that an operator lacks
        return self[name]


def _normalisation(source: str) -> Iterator[NodeProto]:
    scaled = f"{source}.scaled"
    yield helper.make_node("Mul", [_rows(source), _scale(source)], [scaled])
    yield helper.make_node("Add", [scaled, _shift(source)], [source])


def _rows(source: str) -> str:
    return f"{source}.rows"


def _scale(source: str) -> str:
    return f"{source}.factor"


def _shift(source: str) -> str:
    return f"{source}.summand"


def _value(name: str, shape: Sequence[int | None]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
