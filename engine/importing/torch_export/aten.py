"""PyTorch's operators stated in ONNX's, one rule each.

Layers, norms and reasons for a refusal are those of the operators' converter; nothing of that is
repeated here. Arguments are those of PyTorch's native_functions.yaml.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ..operators.elementwise_ops import SOFTPLUS_IS_LINEAR
from ..operators.operator_graph import Attribute
from .calls import Call, OperatorWriter, ValueName

AtenRule: TypeAlias = Callable[[OperatorWriter, Call], None]

_LAST = 2**63 - 1
_ONNX_TYPES = {6: 10, 7: 1, 8: 11, 13: 16}
"""ONNX's numbers of floating-point types by PyTorch's."""
_FLOAT32, _ONNX_INT64 = 7, 7
"""PyTorch's number of float32, and ONNX's of int64."""
_PAD_MODES = {"replicate": "edge", "circular": "wrap"}


def _same(kind: str, **attributes: Attribute) -> AtenRule:
    """Return the rule of an operator with one tensor and no arguments."""

    def rule(writer: OperatorWriter, call: Call) -> None:
        writer.result(call, kind, call.tensor("self"), **attributes)

    return rule


def _convolution(writer: OperatorWriter, call: Call) -> None:
    if call.flag("transposed") or call.kind.startswith("aten.conv_transpose"):
        _transposed_convolution(writer, call)
        return
    padding = call.argument("padding")
    attributes: dict[str, Attribute] = {
        "strides": call.along_axes("stride", 1),
        "dilations": call.along_axes("dilation", 1),
        "group": call.integer("groups", 1),
    }
    if isinstance(padding, str):
        attributes["auto_pad"] = "SAME_UPPER" if padding == "same" else "VALID"
    else:
        attributes["pads"] = call.along_axes("padding") * 2
    if any(call.integers("output_padding")):
        raise call.refusal("has output_padding without being transposed")
    writer.result(call, "Conv", *_source_and_weights(call), **attributes)


def _transposed_convolution(writer: OperatorWriter, call: Call) -> None:
    writer.result(
        call,
        "ConvTranspose",
        *_source_and_weights(call),
        strides=call.along_axes("stride", 1),
        dilations=call.along_axes("dilation", 1),
        group=call.integer("groups", 1),
        pads=call.along_axes("padding") * 2,
        output_padding=call.along_axes("output_padding"),
    )


def _source_and_weights(call: Call) -> tuple[str, str, str]:
    return call.tensor("input"), call.tensor("weight"), call.optional("bias")


def _source_and_scale(call: Call) -> tuple[str, str, str]:
    return call.tensor("input"), call.optional("weight"), call.optional("bias")


def _stored_norm(writer: OperatorWriter, call: Call, *, is_training: bool) -> None:
    writer.result(
        call,
        "BatchNormalization",
        *_source_and_scale(call),
        call.optional("running_mean"),
        call.optional("running_var"),
        epsilon=call.number("eps"),
        training_mode=int(is_training),
    )


def _batch_norm(writer: OperatorWriter, call: Call) -> None:
    _stored_norm(writer, call, is_training=call.flag("training"))


def _instance_norm(writer: OperatorWriter, call: Call) -> None:
    if not call.flag("use_input_stats"):
        _stored_norm(writer, call, is_training=False)
        return
    for unused in ("running_mean", "running_var"):
        call.argument(unused)
    names, epsilon = _source_and_scale(call), call.number("eps")
    writer.result(call, "InstanceNormalization", *names, epsilon=epsilon)


def _group_norm(writer: OperatorWriter, call: Call) -> None:
    is_native = call.kind == "aten.native_group_norm"
    for name in ("N", "C", "HxW") if is_native else ():
        call.argument(name)
    writer.result(
        call,
        "GroupNormalization",
        *_source_and_scale(call),
        num_groups=call.integer("group" if is_native else "num_groups"),
        epsilon=call.number("eps", 1e-5),
    )


def _layer_norm(writer: OperatorWriter, call: Call) -> None:
    names, axis = _source_and_scale(call), -len(call.several("normalized_shape"))
    writer.result(call, "LayerNormalization", *names, axis=axis, epsilon=call.number("eps", 1e-5))


def _leaky_relu(writer: OperatorWriter, call: Call) -> None:
    alpha = call.number("negative_slope", 0.01)
    writer.result(call, "LeakyRelu", call.tensor("self"), alpha=alpha)


def _random_leaky_relu(writer: OperatorWriter, call: Call) -> None:
    """Write the leaky ReLU of the middle slope, which a random one is outside training."""
    if call.flag("training"):
        raise call.refusal("is in training; export the network in eval mode")
    call.argument("noise")
    middle = (call.number("lower", 1 / 8) + call.number("upper", 1 / 3)) / 2
    writer.result(call, "LeakyRelu", call.tensor("self"), alpha=middle)


def _elu(writer: OperatorWriter, call: Call) -> None:
    if call.number("scale", 1) != 1 or call.number("input_scale", 1) != 1:
        raise call.refusal("has a scale, which is not supported")
    writer.result(call, "Elu", call.tensor("self"), alpha=call.number("alpha", 1.0))


def _celu(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "Celu", call.tensor("self"), alpha=call.number("alpha", 1.0))


def _gelu(writer: OperatorWriter, call: Call) -> None:
    form = call.text("approximate", "none")
    writer.result(call, "Gelu", call.tensor("self"), approximate=form)


def _softplus(writer: OperatorWriter, call: Call) -> None:
    beta = call.number("beta", 1.0)
    if beta <= 0 or call.number("threshold", 20.0) < SOFTPLUS_IS_LINEAR:
        raise call.refusal("has a beta or a threshold that is not supported")
    if beta == 1:
        writer.result(call, "Softplus", call.tensor("self"))
        return
    factor = writer.constant(call, np.array(beta, np.float32))
    grown = writer.step(call, "Mul", call.tensor("self"), factor)
    writer.result(call, "Div", writer.step(call, "Softplus", grown), factor)


def _log_sigmoid(writer: OperatorWriter, call: Call) -> None:
    turned = writer.step(call, "Neg", call.tensor("self"))
    writer.result(call, "Neg", writer.step(call, "Softplus", turned))


def _prelu(writer: OperatorWriter, call: Call) -> None:
    ones = (1,) * (writer.rank(call, call.tensor("self")) - 2)
    shape = writer.sizes(call, (-1, *ones))
    slopes = writer.step(call, "Reshape", call.tensor("weight"), shape)
    writer.result(call, "PRelu", call.tensor("self"), slopes)


def _clamp(writer: OperatorWriter, call: Call) -> None:
    names = ("min_val", "max_val") if call.kind == "aten.hardtanh" else ("min", "max")
    usual = (-1.0, 1.0) if call.kind == "aten.hardtanh" else (None, None)
    ends = [
        ""
        if end is None and call.argument(name) is None
        else writer.constant(call, np.array(call.number(name, end), np.float32))
        for name, end in zip(names, usual, strict=True)
    ]
    writer.result(call, "Clip", call.tensor("self"), *ends)


def _relu6(writer: OperatorWriter, call: Call) -> None:
    ends = [writer.constant(call, np.array(end, np.float32)) for end in (0, 6)]
    writer.result(call, "Clip", call.tensor("self"), *ends)


def _binary(kind: str) -> AtenRule:
    """Return the rule of an operator on two tensors, or a tensor and a number."""

    def rule(writer: OperatorWriter, call: Call) -> None:
        first, second = call.tensor("self"), writer.operand(call, "other")
        if call.kind == "aten.rsub":
            first, second = second, first
        if call.argument("alpha") not in (None, 1):
            second = writer.step(call, "Mul", second, writer.operand(call, "alpha"))
        writer.result(call, kind, first, second)

    return rule


def _power(writer: OperatorWriter, call: Call) -> None:
    names = writer.operand(call, "self"), writer.operand(call, "exponent")
    writer.result(call, "Pow", *names)


def _square(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "Pow", call.tensor("self"), writer.constant(call, np.array(2, np.float32)))


def _inverse_root(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "Reciprocal", writer.step(call, "Sqrt", call.tensor("self")))


def _extreme(kind: str) -> AtenRule:
    """Return the rule of the larger of two tensors, or of the largest number along an axis.

    kind: Max, or Min for the smallest. The place of the number along the axis goes unread.
    """

    def rule(writer: OperatorWriter, call: Call) -> None:
        if call.argument("other") is not None:
            _binary(kind)(writer, call)
            return
        keeps = int(call.flag("keepdim"))
        writer.result(call, f"Reduce{kind}", call.tensor("self"), keepdims=keeps, **_axes(call))

    return rule


def _filled(number: float | None) -> AtenRule:
    """Return the rule of a tensor of one number; None: the call states it."""

    def rule(writer: OperatorWriter, call: Call) -> None:
        call.argument("dtype")
        if call.kind.endswith("_like"):
            shape = writer.step(call, "Shape", call.tensor("self"))
        else:
            call.argument("self")
            shape = writer.sizes(call, call.several("size"))
        value = call.number("fill_value") if number is None else number
        writer.result(call, "ConstantOfShape", shape, value=np.array([value], np.float32))

    return rule


def _joined(writer: OperatorWriter, call: Call) -> None:
    names = [one.name for one in call.several("tensors") if isinstance(one, ValueName)]
    writer.result(call, "Concat", *names, axis=call.integer("dim", 0))


def _pad(writer: OperatorWriter, call: Call) -> None:
    amounts = call.several("pad" if call.argument("pad") is not None else "padding")
    count = len(amounts) // 2
    pads = writer.sizes(call, (*amounts[0::2], *amounts[1::2]))
    axes = writer.sizes(call, tuple(-1 - axis for axis in range(count)))
    modes = {"aten.reflection_pad": "reflect", "aten.replication_pad": "replicate"}
    mode = modes.get(call.kind[:-2]) or call.text("mode", "constant")
    value = writer.constant(call, np.array(call.number("value", 0.0), np.float32))
    mode = _PAD_MODES.get(mode, mode)
    writer.result(call, "Pad", call.tensor("self"), pads, value, axes, mode=mode)


def _pool(writer: OperatorWriter, call: Call) -> None:
    kernel = call.along_axes("kernel_size")
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": call.along_axes("stride") if call.several("stride") else kernel,
        "pads": call.along_axes("padding") * 2,
        "ceil_mode": int(call.flag("ceil_mode")),
    }
    if call.kind.startswith("aten.avg_pool"):
        attributes["count_include_pad"] = int(call.flag("count_include_pad", usual=True))
        writer.result(call, "AveragePool", call.tensor("self"), **attributes)
    else:
        attributes["dilations"] = call.along_axes("dilation", 1)
        writer.result(call, "MaxPool", call.tensor("self"), **attributes)


def _pool_to_size(writer: OperatorWriter, call: Call) -> None:
    if set(call.several("output_size")) != {1}:
        raise call.refusal("divides the patch into windows of unequal extents")
    is_mean = call.kind.startswith("aten.adaptive_avg_pool")
    writer.result(call, "GlobalAveragePool" if is_mean else "GlobalMaxPool", call.tensor("self"))


def _resize(writer: OperatorWriter, call: Call) -> None:
    source = call.optional("input") or call.tensor("self")
    sizes, factors = call.several("output_size"), call.several("scale_factors")
    each = [call.argument(f"scales_{axis}") for axis in "dhw"[-len(call.axes) :]]
    scales = [one for one in factors or each if isinstance(one, int | float)]
    attributes: dict[str, Attribute] = {"axes": call.axes}
    if call.kind in ("aten.upsample_trilinear3d", "aten.upsample_bilinear2d"):
        is_aligned = call.flag("align_corners")
        attributes["mode"] = "linear"
        attributes["coordinate_transformation_mode"] = (
            "align_corners" if is_aligned else "half_pixel"
        )
    else:
        is_middle = call.kind.startswith("aten._upsample_nearest_exact")
        attributes["mode"], attributes["nearest_mode"] = "nearest", "floor"
        attributes["coordinate_transformation_mode"] = (
            "tf_half_pixel_for_nn" if is_middle else "asymmetric"
        )
    if len(scales) == len(call.axes):
        names = writer.constant(call, np.array(scales, np.float32)), ""
    else:
        names = "", writer.sizes(call, sizes)
    writer.result(call, "Resize", source, "", *names, **attributes)


def _slice(writer: OperatorWriter, call: Call) -> None:
    source, axis = call.tensor("self"), call.integer("dim", 0)
    starts, stops = call.several("start") or (0,), call.several("end") or (_LAST,)
    steps = call.several("step") or (1,)
    parts = [writer.sizes(call, one) for one in (starts, stops, (axis,), steps)]
    writer.result(call, "Slice", source, *parts)


def _narrow(writer: OperatorWriter, call: Call) -> None:
    starts = writer.sizes(call, call.several("start"))
    stops = writer.step(call, "Add", starts, writer.sizes(call, call.several("length")))
    axes = writer.sizes(call, (call.integer("dim"),))
    writer.result(call, "Slice", call.tensor("self"), starts, stops, axes)


def _select(writer: OperatorWriter, call: Call) -> None:
    at = writer.constant(call, np.array(call.integer("index"), np.int64))
    writer.result(call, "Gather", call.tensor("self"), at, axis=call.integer("dim"))


def _split(writer: OperatorWriter, call: Call) -> None:
    source, axis, parts = call.tensor("self"), call.integer("dim", 0), len(call.outputs)
    if call.kind == "aten.split_with_sizes":
        sizes = call.integers("split_sizes")
    else:
        whole = writer.extent(call, source, axis)
        size = (
            -(-whole // max(1, call.integer("chunks")))
            if call.kind == "aten.chunk"
            else call.integer("split_size")
        )
        sizes = (*(size,) * (parts - 1), whole - size * (parts - 1))
    writer.result(call, "Split", source, writer.sizes(call, sizes), axis=axis)


def _gated(writer: OperatorWriter, call: Call) -> None:
    """Write the first half of an axis times the sigmoid of the second."""
    source, axis = call.tensor("self"), call.integer("dim", -1)
    half = writer.extent(call, source, axis) // 2
    ends = [writer.sizes(call, (at,)) for at in (0, half, 2 * half, axis)]
    first = writer.step(call, "Slice", source, ends[0], ends[1], ends[3])
    second = writer.step(call, "Slice", source, ends[1], ends[2], ends[3])
    writer.result(call, "Mul", first, writer.step(call, "Sigmoid", second))


def _reshape(writer: OperatorWriter, call: Call) -> None:
    wanted = call.several("size") or call.several("shape")
    writer.result(call, "Reshape", call.tensor("self"), writer.sizes(call, wanted))


def _flatten(writer: OperatorWriter, call: Call) -> None:
    source = call.tensor("self")
    rank = writer.rank(call, source)
    first, last = (call.integer(*at) % rank for at in (("start_dim", 0), ("end_dim", -1)))
    _reshape_axes(writer, call, first, (-1,), last + 1)


def _unflatten(writer: OperatorWriter, call: Call) -> None:
    axis = call.integer("dim") % writer.rank(call, call.tensor("self"))
    _reshape_axes(writer, call, axis, call.several("sizes"), axis + 1)


def _reshape_axes(
    writer: OperatorWriter,
    call: Call,
    first: int,
    sizes: Sequence[int | float | ValueName],
    last: int,
) -> None:
    """Write a Reshape that gives the axes from `first` to before `last` other extents."""
    source = call.tensor("self")
    before = writer.step(call, "Shape", source, start=0, end=first)
    after = writer.step(call, "Shape", source, start=last)
    shape = writer.step(call, "Concat", before, writer.sizes(call, sizes), after, axis=0)
    writer.result(call, "Reshape", source, shape)


def _permute(writer: OperatorWriter, call: Call) -> None:
    order = call.integers("dims")
    order = tuple(axis % len(order) for axis in order)
    writer.result(call, "Transpose", call.tensor("self"), perm=order)


def _transpose(writer: OperatorWriter, call: Call) -> None:
    source = call.tensor("self")
    order = list(range(writer.rank(call, source)))
    one, other = (call.integer(name) % len(order) for name in ("dim0", "dim1"))
    order[one], order[other] = order[other], order[one]
    writer.result(call, "Transpose", source, perm=tuple(order))


def _move_axes(writer: OperatorWriter, call: Call) -> None:
    source = call.tensor("self")
    rank = writer.rank(call, source)
    moved, places = (
        [axis % rank for axis in call.integers(key)] for key in ("source", "destination")
    )
    order = [axis for axis in range(rank) if axis not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        order.insert(place, axis)
    writer.result(call, "Transpose", source, perm=tuple(order))


def _squeeze(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "Squeeze", call.tensor("self"), axes=call.integers("dim"))


def _unsqueeze(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "Unsqueeze", call.tensor("self"), axes=call.integers("dim"))


def _expand(writer: OperatorWriter, call: Call) -> None:
    sizes = tuple(1 if size == -1 else size for size in call.several("size"))
    writer.result(call, "Expand", call.tensor("self"), writer.sizes(call, sizes))


def _shaped_as(kind: str) -> AtenRule:
    """Return the rule of an operator that gives a tensor the shape of another one."""

    def rule(writer: OperatorWriter, call: Call) -> None:
        shape = writer.step(call, "Shape", call.tensor("other"))
        writer.result(call, kind, call.tensor("self"), shape)

    return rule


def _repeat(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "Tile", call.tensor("self"), writer.sizes(call, call.several("repeats")))


def _dropout(writer: OperatorWriter, call: Call) -> None:
    if call.flag("train"):
        raise call.refusal("is in training; export the network in eval mode")
    writer.result(call, "Identity", call.tensor("input"))


def _cast(writer: OperatorWriter, call: Call) -> None:
    kind = call.argument("dtype")
    if kind is None:
        writer.result(call, "Identity", call.tensor("self"))
    else:
        to = _ONNX_TYPES.get(call.integer("dtype"), _ONNX_INT64)
        writer.result(call, "Cast", call.tensor("self"), to=to)


def _cast_like(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "CastLike", call.tensor("self"), call.tensor("other"))


def _softmax(kind: str) -> AtenRule:
    def rule(writer: OperatorWriter, call: Call) -> None:
        if call.argument("dtype") not in (None, _FLOAT32) or call.flag("half_to_float"):
            raise call.refusal("computes in another precision, which is not supported")
        writer.result(call, kind, call.tensor("self"), axis=call.integer("dim"))

    return rule


def _reduction(kind: str) -> AtenRule:
    """Return the rule of a sum or a mean over some axes, or all."""

    def rule(writer: OperatorWriter, call: Call) -> None:
        if call.argument("dtype") not in (None, _FLOAT32):
            raise call.refusal("computes in another precision, which is not supported")
        source, keeps = call.tensor("self"), int(call.flag("keepdim"))
        writer.result(call, kind, source, keepdims=keeps, **_axes(call))

    return rule


def _variance(writer: OperatorWriter, call: Call) -> None:
    source, axes = call.tensor("self"), call.integers("dim")
    correction = call.argument("correction")
    is_biased = correction == 0 if correction is not None else not call.flag("unbiased", usual=True)
    if not is_biased:
        raise call.refusal("divides by one voxel less, as no norm does; it is not supported")
    mean = writer.step(call, "ReduceMean", source, axes=axes, keepdims=1)
    centred = writer.step(call, "Sub", source, mean)
    squares = writer.step(call, "Mul", centred, centred)
    keeps = int(call.flag("keepdim"))
    if call.kind == "aten.var":
        writer.result(call, "ReduceMean", squares, axes=axes, keepdims=keeps)
    else:
        variance = writer.step(call, "ReduceMean", squares, axes=axes, keepdims=keeps)
        writer.result(call, "Sqrt", variance)


def _length(writer: OperatorWriter, call: Call) -> None:
    order = call.number("ord" if call.kind == "aten.linalg_vector_norm" else "p", 2.0)
    if order not in (1, 2):
        raise call.refusal(f"is of order {order:g}, which is not supported")
    keeps = int(call.flag("keepdim"))
    writer.result(call, f"ReduceL{order:g}", call.tensor("self"), keepdims=keeps, **_axes(call))


def _axes(call: Call) -> dict[str, Attribute]:
    """Return the axes of a reduction as attributes; none for all axes."""
    axes = call.integers("dim")
    return {"axes": axes} if axes else {}


def _weight_norm(writer: OperatorWriter, call: Call) -> None:
    """Write v g / |v|, the norm over all axes but one; -1, for PyTorch's dim=None, keeps none."""
    vectors, kept = call.tensor("v"), call.integer("dim", 0)
    rank = writer.rank(call, vectors)
    axes = tuple(axis for axis in range(rank) if kept == -1 or axis != kept % rank)
    length = writer.step(call, "ReduceL2", vectors, axes=axes, keepdims=1)
    ratio = writer.step(call, "Div", call.tensor("g"), length)
    writer.result(call, "Mul", vectors, ratio)


def _product(first: str, second: str) -> AtenRule:
    def rule(writer: OperatorWriter, call: Call) -> None:
        writer.result(call, "MatMul", call.tensor(first), call.tensor(second))

    return rule


def _linear(writer: OperatorWriter, call: Call) -> None:
    matrix = writer.step(call, "Transpose", call.tensor("weight"), perm=(1, 0))
    if not (bias := call.optional("bias")):
        writer.result(call, "MatMul", call.tensor("input"), matrix)
        return
    writer.result(call, "Add", writer.step(call, "MatMul", call.tensor("input"), matrix), bias)


def _refused(kind: str) -> AtenRule:
    """Return a rule for what the converter refuses with its reason."""

    def rule(writer: OperatorWriter, call: Call) -> None:
        writer.result(call, kind, *call.names_read)
        call.read_all()

    return rule


def _extent(writer: OperatorWriter, call: Call) -> None:
    source = call.tensor("self")
    axis = call.integer("dim") % writer.rank(call, source)
    writer.result(call, "Shape", source, start=axis, end=axis + 1)


def _arithmetic(kind: str) -> AtenRule:
    """Return the rule of arithmetic on extents."""

    def rule(writer: OperatorWriter, call: Call) -> None:
        writer.result(call, kind, *_numbers(writer, call))

    return rule


def _numbers(writer: OperatorWriter, call: Call) -> tuple[str, ...]:
    """Return the names of the operands of arithmetic on extents."""
    items = [one for name in ("a", "b") for one in call.several(name)]
    return tuple(
        one.name
        if isinstance(one, ValueName)
        else writer.constant(
            call, np.array([one], np.int64 if isinstance(one, int) else np.float32)
        )
        for one in items
    )


def _floor_division(writer: OperatorWriter, call: Call) -> None:
    first, second = _numbers(writer, call)
    whole = writer.step(call, "Sub", first, writer.step(call, "Mod", first, second))
    writer.result(call, "Div", whole, second)


def _true_division(writer: OperatorWriter, call: Call) -> None:
    parts = [writer.step(call, "Cast", one, to=1) for one in _numbers(writer, call)]
    writer.result(call, "Div", *parts)


def _to_float(writer: OperatorWriter, call: Call) -> None:
    writer.result(call, "Cast", *_numbers(writer, call), to=1)


def _of_each_rank(kind: str, rule: AtenRule) -> dict[str, AtenRule]:
    """Return a rule for volumes, and for slices that are a batch."""
    return {kind.format(rank): rule for rank in (2, 3)}


RULES: Mapping[str, AtenRule] = {
    "aten.convolution": _convolution,
    **_of_each_rank("aten.conv{}d", _convolution),
    **_of_each_rank("aten.conv_transpose{}d", _convolution),
    "aten.batch_norm": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.instance_norm": _instance_norm,
    **dict.fromkeys(("aten.group_norm", "aten.native_group_norm"), _group_norm),
    **dict.fromkeys(("aten.layer_norm", "aten.native_layer_norm"), _layer_norm),
    "aten.relu": _same("Relu"),
    "aten.sigmoid": _same("Sigmoid"),
    "aten.tanh": _same("Tanh"),
    "aten.erf": _same("Erf"),
    "aten.silu": _same("Swish"),
    "aten.glu": _gated,
    "aten.mish": _same("Mish"),
    "aten.selu": _same("Selu"),
    "aten.hardswish": _same("HardSwish"),
    "aten.hardsigmoid": _same("HardSigmoid", alpha=1 / 6, beta=0.5),
    "aten.neg": _same("Neg"),
    "aten.abs": _same("Abs"),
    "aten.exp": _same("Exp"),
    "aten.sqrt": _same("Sqrt"),
    "aten.reciprocal": _same("Reciprocal"),
    "aten.rsqrt": _inverse_root,
    "aten.square": _square,
    "aten.leaky_relu": _leaky_relu,
    **dict.fromkeys(("aten.rrelu", "aten.rrelu_with_noise"), _random_leaky_relu),
    "aten.elu": _elu,
    "aten.celu": _celu,
    "aten.gelu": _gelu,
    "aten.softplus": _softplus,
    "aten.log_sigmoid": _log_sigmoid,
    **dict.fromkeys(("aten.prelu", "aten._prelu_kernel"), _prelu),
    **dict.fromkeys(
        ("aten.clamp", "aten.clip", "aten.clamp_min", "aten.clamp_max", "aten.hardtanh"), _clamp
    ),
    "aten.relu6": _relu6,
    "aten.add": _binary("Add"),
    **dict.fromkeys(("aten.sub", "aten.subtract", "aten.rsub"), _binary("Sub")),
    **dict.fromkeys(("aten.mul", "aten.multiply"), _binary("Mul")),
    **dict.fromkeys(("aten.div", "aten.divide", "aten.true_divide"), _binary("Div")),
    **dict.fromkeys(("aten.zeros_like", "aten.new_zeros", "aten.zeros"), _filled(0.0)),
    **dict.fromkeys(("aten.ones_like", "aten.new_ones", "aten.ones"), _filled(1.0)),
    **dict.fromkeys(("aten.full_like", "aten.new_full", "aten.full"), _filled(None)),
    "aten.max": _extreme("Max"),
    "aten.min": _extreme("Min"),
    "aten.maximum": _binary("Max"),
    "aten.minimum": _binary("Min"),
    "aten.gt": _binary("Greater"),
    "aten.pow": _power,
    **dict.fromkeys(("aten.cat", "aten.concat", "aten.concatenate"), _joined),
    **dict.fromkeys(("aten.pad", "aten.constant_pad_nd"), _pad),
    **_of_each_rank("aten.reflection_pad{}d", _pad),
    **_of_each_rank("aten.replication_pad{}d", _pad),
    **_of_each_rank("aten.avg_pool{}d", _pool),
    **_of_each_rank("aten.max_pool{}d", _pool),
    **_of_each_rank("aten.max_pool{}d_with_indices", _pool),
    **_of_each_rank("aten.adaptive_avg_pool{}d", _pool_to_size),
    **_of_each_rank("aten.adaptive_max_pool{}d", _pool_to_size),
    **_of_each_rank("aten.upsample_nearest{}d", _resize),
    **_of_each_rank("aten._upsample_nearest_exact{}d", _resize),
    **dict.fromkeys(("aten.upsample_bilinear2d", "aten.upsample_trilinear3d"), _resize),
    "aten.slice": _slice,
    "aten.narrow": _narrow,
    "aten.select": _select,
    **dict.fromkeys(("aten.split", "aten.split_with_sizes", "aten.chunk"), _split),
    **dict.fromkeys(("aten.view", "aten.reshape", "aten._unsafe_view"), _reshape),
    "aten.flatten": _flatten,
    "aten.unflatten": _unflatten,
    "aten.permute": _permute,
    "aten.transpose": _transpose,
    "aten.squeeze": _squeeze,
    "aten.unsqueeze": _unsqueeze,
    "aten.expand": _expand,
    "aten.expand_as": _shaped_as("Expand"),
    **dict.fromkeys(("aten.view_as", "aten.reshape_as"), _shaped_as("Reshape")),
    **dict.fromkeys(("aten.movedim", "aten.moveaxis"), _move_axes),
    "aten.repeat": _repeat,
    **dict.fromkeys(("aten.dropout", "aten.feature_dropout", "aten.alpha_dropout"), _dropout),
    **dict.fromkeys(
        (
            *("aten.contiguous", "aten.clone", "aten.detach", "aten.alias"),
            *("aten.lift_fresh_copy", "aten.lift_fresh"),
        ),
        _same("Identity"),
    ),
    **dict.fromkeys(("aten.to", "aten._to_copy"), _cast),
    "aten.type_as": _cast_like,
    **dict.fromkeys(("aten.softmax", "aten._softmax"), _softmax("Softmax")),
    **dict.fromkeys(("aten.log_softmax", "aten._log_softmax"), _softmax("LogSoftmax")),
    "aten.mean": _reduction("ReduceMean"),
    "aten.sum": _reduction("ReduceSum"),
    "aten.amax": _reduction("ReduceMax"),
    "aten.amin": _reduction("ReduceMin"),
    **dict.fromkeys(("aten.var", "aten.std"), _variance),
    **dict.fromkeys(("aten.linalg_vector_norm", "aten.norm"), _length),
    "aten._weight_norm": _weight_norm,
    "aten._weight_norm_interface": _weight_norm,
    "aten.mv": _product("self", "vec"),
    "aten.dot": _product("self", "tensor"),
    "aten.vdot": _product("self", "other"),
    "aten.mm": _product("self", "mat2"),
    "aten.matmul": _product("self", "other"),
    "aten.linear": _linear,
    **dict.fromkeys(
        ("aten.bmm", "aten.einsum", "aten.scaled_dot_product_attention"), _refused("Attention")
    ),
    "aten.sym_size": _extent,
    "_operator.add": _arithmetic("Add"),
    "_operator.sub": _arithmetic("Sub"),
    "_operator.mul": _arithmetic("Mul"),
    "_operator.neg": _arithmetic("Neg"),
    "_operator.mod": _arithmetic("Mod"),
    "torch.sym_max": _arithmetic("Max"),
    "torch.sym_min": _arithmetic("Min"),
    "_operator.floordiv": _floor_division,
    "_operator.truediv": _true_division,
    "torch.sym_float": _to_float,
}
"""Rules by operators without their overloads."""

CHECKS = frozenset(
    (
        *("aten._assert_tensor_metadata", "aten._assert_scalar", "aten.sym_constrain_range"),
        *("aten.sym_constrain_range_for_size", "aten._assert_async"),
        *("_operator.eq", "_operator.ne", "_operator.ge", "_operator.gt", "_operator.le"),
        *("_operator.lt", "_operator.and_", "_operator.or_", "torch.sym_not"),
    )
)
"""Operators that only check something; what they make is not read otherwise."""

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("slice", "narrow", "select", "split", "split_with_sizes", "chunk", "tensor_split"),
        *("hsplit", "vsplit", "dsplit", "unbind", "view", "view_as", "reshape", "reshape_as"),
        *("flatten", "unflatten", "ravel", "permute", "transpose", "movedim", "moveaxis"),
        *("swapaxes", "swapdims", "t", "numpy_T", "mT", "mH", "matrix_H", "adjoint"),
        *("squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "unfold", "as_strided"),
        *("diagonal", "linalg_diagonal", "slice_inverse", "view_as_real", "view_as_complex"),
        *("real", "imag", "conj", "resolve_conj", "resolve_neg", "positive"),
        *("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
        *("contiguous", "detach", "alias", "lift_fresh", "to", "type_as", "cpu", "cuda"),
        "pin_memory",
    )
)
"""Operators whose result may be the memory of their tensor."""

_DECOMPOSED = (
    "is not supported; run_decompositions writes layers so, and without it torch.export keeps them "
    "whole"
)
REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("aten.index", "aten._native_batch_norm_legit", "aten.where", "aten.log1p"),
            *("aten.arange", "aten.addmm"),
        ),
        _DECOMPOSED,
    ),
    "higher_order.wrap_with_set_grad_enabled": "wraps layers for which the network turns gradients "
    "off or on, as gradient checkpointing does; export it inside 'with torch.no_grad():'",
    "higher_order.wrap_with_autocast": "wraps layers that the network computes under autocast; "
    "export it without, such as with autocast(enabled=False)",
    "aten.stack": "stacks tensors along a new axis, as deep supervision stacks its outputs; export "
    "the network in eval mode, with one output",
}
"""Reasons, with a way forward, for operators that no rule states."""
