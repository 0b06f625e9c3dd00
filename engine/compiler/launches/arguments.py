"""The structures that the kernels take, those at the top of each kernels/*.cu field for field.

A structure with `__slots__` refuses a misspelt field, which ctypes would take for a new attribute.
"""

from ctypes import Structure, c_double, c_float, c_int, c_longlong, c_uint, c_void_p
from typing import Any

from ..convolution import Convolution

Three = c_int * 3
ThreeUnsigned = c_uint * 3
Two = c_int * 2
Seven = c_float * 7


_GEOMETRY = (
    ("source_extents", Three),
    ("source_channels", c_int),
    ("target_extents", Three),
    ("target_channels", c_int),
    ("kernel", Three),
    ("stride", Three),
    ("before", Three),
)
"""By which every kernel that convolves knows the shape of its work."""


def convolution_geometry(shape: Convolution) -> dict[str, Any]:
    """The fields of `_GEOMETRY`."""
    return {
        "source_extents": Three(*shape.source_extents),
        "source_channels": shape.source_channels,
        "target_extents": Three(*shape.target_extents),
        "target_channels": shape.target_channels,
        "kernel": Three(*shape.kernel),
        "stride": Three(*shape.stride),
        "before": Three(*shape.before),
    }


class ActivationArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("slopes", c_void_p),
        ("slope", c_float),
        ("low", c_float),
        ("high", c_float),
        ("curve", c_int),
    )


class StridesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patch", c_longlong),
        ("plane", c_longlong),
        ("row", c_longlong),
        ("voxel", c_int),
    )


class MeasureArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("partials", c_void_p),
        ("table", c_void_p),
        ("scale", c_void_p),
        ("shift", c_void_p),
        ("counters", c_void_p),
        ("strides", StridesArguments),
        ("extents", Three),
        ("origin", Three),
        ("channels", c_int),
        ("cells", c_int),
        ("dense", c_int),
        ("chunk", c_int),
        ("epsilon", c_float),
    )


class ConcludeArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("partials", c_void_p),
        ("table", c_void_p),
        ("scale", c_void_p),
        ("shift", c_void_p),
        ("patches", c_int),
        ("channels", c_int),
        ("chunks", c_int),
        ("epsilon", c_float),
    )


class ConcludeGroupsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("partials", c_void_p),
        ("table", c_void_p),
        ("scale", c_void_p),
        ("shift", c_void_p),
        ("bias", c_void_p),
        ("patches", c_int),
        ("channels", c_int),
        ("chunks", c_int),
        ("group", c_int),
        ("epsilon", c_float),
    )


class FilterArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("taps", c_int),
        ("border", c_int),
        ("border_value", c_float),
        ("row", Seven),
    )


class WindowArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("kernel", Three),
        ("padding", Three),
        ("counts_padding", c_int),
    )


class PointwiseArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("residual", c_void_p),
        ("target", c_void_p),
        ("factor", c_void_p),
        ("summand", c_void_p),
        ("source_strides", StridesArguments),
        ("residual_strides", StridesArguments),
        ("target_strides", StridesArguments),
        ("channels", c_int),
        ("table_stride", c_int),
        ("table_channels", c_int),
        ("source_extents", Three),
        ("extents", Three),
        ("target_extents", Three),
        ("origin", Three),
        ("factors", Three),
        ("border", c_int),
        ("rows", c_int),
        ("run", c_int),
        ("shuffled", c_int),
        ("source_origin", Three),
        ("target_cell", c_int),
        ("source_unit", c_float),
        ("residual_unit", c_float),
        ("target_scale", c_float),
        ("combination", c_int),
        ("activation", ActivationArguments),
        ("after", ActivationArguments),
        ("border_value", c_float),
        ("filter", FilterArguments),
        ("window", WindowArguments),
    )


class NormaliseArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("pointwise", PointwiseArguments),
        ("partials", c_void_p),
        ("scale", c_void_p),
        ("shift", c_void_p),
        ("counters", c_void_p),
        ("voxels", c_int),
        ("groups", c_int),
        ("columns", c_int),
        ("held", c_int),
        ("epsilon", c_float),
    )


class PackArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patches", c_void_p),
        ("target", c_void_p),
        ("patch_channels", c_int),
        ("extents", Three),
        ("target_extents", Three),
        ("channels", c_int),
        ("origin", Three),
        ("taps", Two),
        ("stride", Two),
        ("border", c_int),
        ("columns", c_int),
        ("span", c_int),
        ("border_value", c_float),
    )


class ConvolvePatchesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patches", c_void_p),
        ("weights", c_void_p),
        ("target", c_void_p),
        ("partials", c_void_p),
        ("patch_channels", c_int),
        ("extents", Three),
        ("target_extents", Three),
        ("kernel", Two),
        ("origin", Three),
        ("limit", Three),
        ("border", c_int),
        ("steps", c_int),
        ("outputs", c_int),
        ("rows", c_int),
        ("planes", c_int),
    )


class ConvTransposeToCellsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("weights", c_void_p),
        ("target", c_void_p),
        ("partials", c_void_p),
        ("target_strides", StridesArguments),
        ("source_extents", Three),
        ("cells", Three),
        ("outputs", c_int),
        ("planes", c_int),
    )


class ConvolveStridedArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("weights", c_void_p),
        ("target", c_void_p),
        ("partials", c_void_p),
        ("factor", c_void_p),
        ("summand", c_void_p),
        ("table_stride", c_int),
        ("slope", c_float),
        ("source_extents", Three),
        ("extents", Three),
        ("outputs", c_int),
        ("planes", c_int),
    )


class ConvolveStridedPatchesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patches", c_void_p),
        ("weights", c_void_p),
        ("target", c_void_p),
        ("extents", Three),
        ("target_extents", Three),
        ("origin", Three),
        ("limit", Three),
        ("border", c_int),
        ("outputs", c_int),
        ("strips", c_int),
    )


class ConvolveToPatchesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("source_strides", StridesArguments),
        ("channels", c_int),
        ("extents", Three),
        ("target_extents", Three),
        ("kernel", Three),
        ("origin", Three),
        ("border", c_int),
        ("shuffled", c_int),
        ("rows", c_int),
        ("outputs", c_int),
        ("activation", ActivationArguments),
    )


class PartArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("factor", c_void_p),
        ("summand", c_void_p),
        ("strides", StridesArguments),
        ("channels", c_int),
        ("table_stride", c_int),
        ("slope", c_float),
        ("shuffled", c_int),
        ("origin", Three),
    )


class ConvolveActivatedToPatchesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("part", PartArguments),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("extents", Three),
        ("target_extents", Three),
        ("kernel", Three),
        ("origin", Three),
        ("border", c_int),
        ("rows", c_int),
        ("outputs", c_int),
        ("activation", ActivationArguments),
    )


class ConvTransposeVoxelsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("part", PartArguments),
        ("weights", c_void_p),
        ("target", c_void_p),
        ("voxels", c_longlong),
        ("outputs", c_int),
    )


class ConvTransposeToPatchesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("parts", PartArguments * 2),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("extents", Three),
        ("rows", c_int),
        ("outputs", c_int),
        ("activation", ActivationArguments),
    )


class ConvolveVoxelsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("part", PartArguments),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("voxels", c_longlong),
        ("activation", ActivationArguments),
    )


class ConvolveByPlanesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("parts", PartArguments * 2),
        ("weights", c_void_p),
        ("target", c_void_p),
        ("partials", c_void_p),
        ("target_strides", StridesArguments),
        ("extents", Three),
        ("outputs", c_int),
        ("planes", c_int),
    )


class UnpackArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("factor", c_void_p),
        ("summand", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("patch_stride", c_longlong),
        ("plane_stride", c_longlong),
        ("row_stride", c_longlong),
        ("voxel_stride", c_int),
        ("table_stride", c_int),
        ("extents", Three),
        ("count", c_int),
        ("channels", c_int),
        ("activation", ActivationArguments),
    )


class SumTapsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("bias", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("planes", c_int),
        ("extents", Three),
        ("channels", c_int),
        ("source_channels", c_int),
        ("taps", Two),
        ("lane_width", c_int),
        ("activation", ActivationArguments),
    )


class AddPatchesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patches", c_void_p),
        ("translated", c_void_p),
        ("count", c_longlong),
    )


_CONVOLVED = (
    ("source", c_void_p),
    ("weight", c_void_p),
    ("target", c_void_p),
    ("source_patch", c_longlong),
    ("target_patch", c_longlong),
    *_GEOMETRY,
    ("patches", c_int),
)


class ConvolveArguments(Structure):
    __slots__ = ()
    _fields_ = (*_CONVOLVED, ("dilation", Three), ("inputs", c_int), ("outputs", c_int))


class ConvolveDepthwiseArguments(Structure):
    __slots__ = ()
    _fields_ = (*_CONVOLVED, ("dilation", Three))


class ConvolveSplitFp16Arguments(Structure):
    __slots__ = ()
    _fields_ = (*_CONVOLVED, ("scale", c_float))


class ScalingArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("centre", c_double),
        ("radius", c_double),
        ("lowest", c_double),
        ("clips", c_int),
        ("voxel", c_int),
    )


class CutArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("ring", c_void_p),
        ("lowest", c_void_p),
        ("patch", c_void_p),
        ("extents", Three),
        ("patch_extents", Three),
        ("patch_steps", Three),
        ("origin", Three),
        ("rows", c_int),
        ("fill", c_int),
        ("scaling", ScalingArguments),
    )


class BlendArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patch", c_void_p),
        ("weights", c_void_p),
        ("mean", c_void_p),
        ("total", c_void_p),
        ("overflow", c_void_p),
        ("overflowed", c_void_p),
        ("extents", Three),
        ("patch_extents", Three),
        ("patch_steps", Three),
        ("first", Three),
        ("count", Three),
        ("place", Three),
        ("rows", c_int),
        ("channels", c_int),
    )


class StoreVoxelsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("mean", c_void_p),
        ("stored", c_void_p),
        ("overflowed", c_void_p),
        ("count", c_longlong),
        ("lowest", c_float),
        ("highest", c_float),
        ("scaling", ScalingArguments),
    )


class FillNumbersArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("target", c_void_p),
        ("count", c_longlong),
        ("inner", c_longlong),
        ("channels", c_int),
        ("kind", c_int),
        ("density", c_int),
        ("seed", c_uint),
        ("fraction", c_int),
        ("split_fp16", c_int),
    )


class FingerprintArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("words", c_void_p),
        ("count", c_longlong),
        ("are_pairs", c_int),
        ("sum", c_void_p),
    )


class PlainArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("weight", c_void_p),
        ("target", c_void_p),
        *_GEOMETRY,
        ("dilation", Three),
        ("groups", c_int),
        ("patches", c_int),
        ("used_channels", c_int),
        ("is_gradient", c_int),
        ("is_translated", c_int),
    )


class ExpectArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("weight", c_void_p),
        ("voxels", c_void_p),
        ("sums", c_void_p),
        *_GEOMETRY,
        ("dilation", Three),
        ("groups", c_int),
        ("samples", c_int),
        ("is_gradient", c_int),
        ("split_fp16", c_int),
    )


class CompareArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("target", c_void_p),
        ("voxels", c_void_p),
        ("sums", c_void_p),
        ("found", c_void_p),
        ("of_result", c_double),
        ("of_products", c_double),
        ("smallest", c_double),
        ("samples", c_int),
        ("channels", c_int),
    )


class BlocksArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("first", c_int),
        ("apart", c_int),
        ("plane", c_int),
        ("counts", Two),
        ("extents", Three),
        ("volume", Three),
        ("shares", ThreeUnsigned),
    )


class AroundArguments(Structure):
    __slots__ = ()
    _fields_ = (("extents", Three), ("first", Three))


def _with(
    plain: type[Structure], *names: str, others: tuple[tuple[str, type], ...] = ()
) -> type[Structure]:
    """A structure with blocks behind its fields, and others behind those, under the same name."""
    told = (*((name, BlocksArguments) for name in names), *others)
    return type(plain.__name__, (plain,), {"__slots__": (), "_fields_": told})


IN_BLOCKS: dict[type[Structure], type[Structure]] = {
    PackArguments: _with(PackArguments, "blocks"),
    ConvolvePatchesArguments: _with(ConvolvePatchesArguments, "blocks"),
    PointwiseArguments: _with(
        PointwiseArguments,
        "blocks",
        "source_blocks",
        others=(
            ("source_around", AroundArguments),
            ("residual_around", AroundArguments),
            ("source_copy", c_longlong),
            ("residual_copy", c_longlong),
        ),
    ),
    ConvolveStridedArguments: _with(
        ConvolveStridedArguments,
        "blocks",
        "source_blocks",
        others=(("source_around", AroundArguments),),
    ),
    MeasureArguments: _with(MeasureArguments, "blocks"),
    ConvTransposeToCellsArguments: _with(ConvTransposeToCellsArguments, "blocks"),
    ConvolveToPatchesArguments: _with(ConvolveToPatchesArguments, "blocks"),
    ConvolveActivatedToPatchesArguments: _with(
        ConvolveActivatedToPatchesArguments,
        "blocks",
        "source_blocks",
        others=(("source_around", AroundArguments),),
    ),
    SumTapsArguments: _with(SumTapsArguments, "blocks"),
    UnpackArguments: _with(UnpackArguments, "blocks"),
}
"""What a kernel takes where its patches are blocks of one volume, by what it takes otherwise."""
