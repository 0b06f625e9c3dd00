"""Convolutions for each of the custom kernels, and functions that build more of them for tests.

SAMPLES is the list to add to. Tests look each sample up in the table, compare its output with
NumPy, measure its dynamic shared memory, and compare those of Tensor Cores with plain kernels. The
samples are small, because they run lane by lane on the CPU, but some block goes to the end of its
shared memory.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cuda_cyclegan.engine.compiler.kernels.table import kernel_of
from cuda_cyclegan.engine.compiler.steps import (
    ActivatedView,
    Conv,
    ConvShape,
    Geometry,
    PatchArray,
    Statistics,
    Step,
)
from cuda_cyclegan.engine.compiler.tensors import AffineTable, Tensor, TensorView
from cuda_cyclegan.engine.network.layers import FloatArray, PadMode, Triple, triple
from cuda_cyclegan.engine.options import Precision


def computed_by(steps: Iterable[Step], *kernels: str) -> list[Conv]:
    """The convolutions that some kernels alone compute, by their files."""
    return [step for step in steps if isinstance(step, Conv) and step.kernel in kernels]


def packed(conv: Conv, weight: FloatArray) -> FloatArray:
    """A weight [K, C, kD, kH, kW], of a transposed convolution [C, K, ...], for its kernel."""
    pack = kernel_of(conv).pack
    assert pack is not None
    return pack(weight, range(conv.channels), conv.channels).numbers()


def view(name: str, extents: Triple, channels: int, batch: int = 1) -> ActivatedView:
    """All of a tensor, as it is."""
    return ActivatedView(Tensor(name, batch, extents, channels, "fp16").whole)


def measured(output: TensorView) -> Statistics:
    """Statistics with what is learned."""
    table = AffineTable("table", output.tensor.batch, output.channels)
    return Statistics(output, table, 1e-5, "scale", "shift")


def with_statistics(conv: Conv) -> Conv:
    """The convolution, whose kernel measures what it makes."""
    assert isinstance(conv.output, TensorView)
    return replace(conv, statistics=measured(conv.output))


def first_layer(
    kernel: str,
    taps: Triple,
    target: Tensor,
    extents: Triple,
    origin: Triple,
    mode: PadMode = "zero",
    *,
    channels: int = 1,
    stride: Triple = (1, 1, 1),
) -> Conv:
    """Return a first layer from patches of these extents."""
    before = -origin[0], -origin[1], -origin[2]
    geometry = Geometry(taps, stride, before, mode=mode)
    return Conv("first", kernel, geometry, PatchArray(channels, extents), target.whole, "weight")


def last_layer(
    kernel: str,
    taps: Triple,
    part: ActivatedView,
    extents: Triple,
    origin: Triple = (-3, -3, -3),
    mode: PadMode = "replicate",
    channels: int = 1,
) -> Conv:
    """Return a last layer to translated patches of these extents."""
    before = -origin[0], -origin[1], -origin[2]
    geometry = Geometry(taps, before=before, after=before, mode=mode)
    return Conv("last", kernel, geometry, (part,), PatchArray(channels, extents), "weight")


def by_planes(
    parts: tuple[ActivatedView, ...], target: Tensor, stride: int = 1, *, is_flat: bool = False
) -> Conv:
    """Return a convolution of kernel 3^3 or 1 x 3 x 3 and padding 1."""
    border = 0 if is_flat else 1, 1, 1
    kernel = "convolve_by_planes" if stride == 1 else "convolve_strided"
    taps = 1 if is_flat else 3, 3, 3
    geometry = Geometry(taps, (stride, stride, stride), border, border)
    return Conv("conv", kernel, geometry, parts, target.whole, "weight")


def five_planes(parts: tuple[ActivatedView, ...], target: Tensor) -> Conv:
    """Return a convolution of kernel 5^3 and padding 2."""
    geometry = Geometry((5, 5, 5), before=(2, 2, 2), after=(2, 2, 2))
    return Conv("conv", "convolve_five_planes", geometry, parts, target.whole, "weight")


def doubling(source: ActivatedView, target: TensorView) -> Conv:
    """A transposed convolution to cells, with a kernel of 3^3."""
    one = (1, 1, 1)
    geometry = Geometry((3, 3, 3), (2, 2, 2), one, one, transposed=True)
    return Conv("up", "conv_transpose_to_cells", geometry, (source,), target, "weight")


def last_transposed(parts: tuple[ActivatedView, ...], channels: int = 1) -> Conv:
    """A last layer that doubles its source, of kernel 4^3."""
    one, (depth, height, width) = (1, 1, 1), parts[0].source.extents
    output = PatchArray(channels, (2 * depth, 2 * height, 2 * width))
    geometry = Geometry((4, 4, 4), (2, 2, 2), one, one, transposed=True)
    return Conv("last", "conv_transpose_to_patches", geometry, parts, output, "weight")


def last_of_voxels(part: ActivatedView, channels: int) -> Conv:
    """A last layer of kernel 1^3."""
    output = PatchArray(channels, part.source.extents)
    return Conv("last", "convolve_voxels", Geometry((1, 1, 1)), (part,), output, "weight")


def narrow(
    parts: tuple[ActivatedView, ...],
    output: TensorView | PatchArray,
    taps: Triple = (3, 3, 3),
    dilation: Triple = (1, 1, 1),
) -> Conv:
    """Return a convolution to few channels that keeps the extents."""
    border = triple((k - 1) * step // 2 for k, step in zip(taps, dilation, strict=True))
    geometry = Geometry(taps, before=border, after=border, dilation=dilation)
    return Conv("narrow", "convolve_narrow", geometry, parts, output, "weight")


def cells(name: str, counts: Triple, channels: int, batch: int = 1) -> TensorView:
    """All voxels of a tensor of so many cells."""
    tensor = Tensor(name, batch, counts, 8 * channels, "fp16")
    depth, height, width = counts
    return TensorView(tensor, (2 * depth, 2 * height, 2 * width), shuffled=True)


def planned(shape: ConvShape, scale: float | None = None) -> Conv:
    """Return a convolution between whole tensors, for which cuDNN has no plan."""
    ends = (shape.source_extents, shape.source_channels, shape.target_extents)
    source = Tensor("source", shape.batch, ends[0], ends[1], shape.precision, scale)
    target = Tensor("target", shape.batch, ends[2], shape.target_channels, shape.precision)
    return Conv.of_shape("conv", shape, source, target, "weight")


def depthwise(
    channels: int,
    kernel: Triple,
    extents: Triple = (5, 9, 11),
    stride: Triple = (1, 1, 1),
    dilation: Triple = (1, 1, 1),
    *,
    batch: int = 1,
    transposed: bool = False,
    precision: Precision = "fp16",
) -> Conv:
    """Return a convolution of each channel by itself, with half of the kernel as its border.

    extents: of the larger tensor.
    """
    reach = triple((k - 1) * step for k, step in zip(kernel, dilation, strict=True))
    before = triple(each // 2 for each in reach)
    after = triple(each - half for each, half in zip(reach, before, strict=True))
    strided = triple((extent - 1) // step + 1 for extent, step in zip(extents, stride, strict=True))
    source, target = (strided, extents) if transposed else (extents, strided)
    shape = ConvShape(
        batch,
        source,
        channels,
        target,
        channels,
        kernel,
        stride,
        before,
        after,
        precision,
        transposed,
        dilation=dilation,
        groups=channels,
    )
    return planned(shape)


def _measuring_first(kernel: str, edge: int, extents: Triple) -> Conv:
    target, origin = Tensor("target", 1, extents, 32, "fp16"), (-(edge // 2),) * 3
    return with_statistics(first_layer(kernel, (edge,) * 3, target, extents, origin))


def _strided_first() -> Conv:
    target, origin = Tensor("target", 1, (1, 2, 10), 32, "fp16"), (-1, -1, -1)
    kernel, two = "convolve_strided_patches", (2, 2, 2)
    return first_layer(kernel, (4, 4, 4), target, (2, 3, 20), origin, "replicate", stride=two)


def _last(kernel: str, channels: int, extents: Triple, mode: PadMode = "replicate") -> Conv:
    part = view("source", extents, channels)
    if kernel.endswith("_wgmma"):
        part = replace(part, table=AffineTable("first.table", 1, channels))
    return last_layer(kernel, (7, 7, 7), part, extents, mode=mode)


def _by_planes(*channels: int) -> Conv:
    extents = 4, 17, 33
    parts = tuple(view(f"part {number}", extents, count) for number, count in enumerate(channels))
    return with_statistics(by_planes(parts, Tensor("target", 1, extents, 32, "fp16")))


def _five_planes(*channels: int, extents: Triple) -> Conv:
    parts = tuple(view(f"part {number}", extents, count) for number, count in enumerate(channels))
    return five_planes(parts, Tensor("target", 1, extents, 32, "fp16"))


def _halving() -> Conv:
    target = Tensor("target", 1, (2, 17, 9), 64, "fp16")
    return with_statistics(by_planes((view("source", (3, 33, 17), 32),), target, stride=2))


def _doubling(channels: int) -> Conv:
    counts = 2, 5, 17
    source = view("source", counts, channels)
    return with_statistics(doubling(source, cells("target", counts, 32)))


def _planned(precision: Precision, outputs: int, groups: int = 1, *, split: bool = False) -> Conv:
    extents, one = (3, 8, 9), (1, 1, 1)
    shape = ConvShape(
        1, extents, 64, extents, outputs, (3, 3, 3), one, one, one, precision, groups=groups
    )
    shape = replace(shape, split_fp16=split)
    return planned(shape, 1.0 if split else None)


def _narrow(*channels: int, outputs: int, dilation: Triple = (1, 1, 1)) -> Conv:
    extents = 9, 19, 37 if outputs <= 16 else 20
    parts = tuple(view(f"part {number}", extents, count) for number, count in enumerate(channels))
    target = Tensor("target", 1, extents, outputs, "fp16")
    return narrow(parts, target.whole, dilation=dilation)


def _narrow_of_many(batch: int = 1) -> Conv:
    """Return one of five vectors, three steps, whose sum is split among blocks."""
    extents = 3, 5, 18
    parts = tuple(view(f"part {number}", extents, 8, batch) for number in range(5))
    target = Tensor("target", batch, extents, 16, "fp16")
    return narrow(parts, target.whole, dilation=(1, 2, 1))


def _deep_narrow(taps: Triple, dilation: Triple, channels: int, outputs: int) -> Conv:
    extents = 5, 13, 18
    target = Tensor("target", 1, extents, outputs, "fp16")
    return narrow((view("source", extents, channels),), target.whole, taps, dilation)


def _narrow_to_joined() -> Conv:
    """Return one that writes channels of a joined map, whose sum is split among blocks."""
    extents = 3, 5, 18
    joined = Tensor("target", 1, extents, 40, "fp16")
    return narrow((view("source", extents, 40),), TensorView(joined, extents, lanes=(8, 24)))


def _narrow_to_patches() -> Conv:
    extents = 5, 9, 18
    parts = view("first", extents, 8), view("second", extents, 32)
    return narrow(parts, PatchArray(3, extents), (1, 3, 1))


SAMPLES: Mapping[str, tuple[Conv, ...]] = {
    "conv_transpose_to_cells": (_doubling(64), _doubling(128)),
    "conv_transpose_to_patches": (last_transposed((view("source", (2, 4, 26), 32),)),),
    "convolve": (_planned("fp16", 32), _planned("fp32", 128)),
    "convolve_by_planes": (_by_planes(32), _by_planes(32, 32)),
    "convolve_depthwise": (
        depthwise(64, (3, 3, 3)),
        depthwise(8, (5, 5, 5), batch=2),
        depthwise(24, (7, 7, 7), (4, 9, 18)),
        depthwise(40, (1, 3, 3)),
        depthwise(40, (3, 3, 1), batch=2),
        depthwise(4, (3, 1, 7), precision="fp32"),
        depthwise(8, (3, 3, 6), (2, 5, 9)),
        depthwise(64, (3, 3, 3), stride=(2, 2, 2)),
        depthwise(24, (3, 4, 3), dilation=(2, 1, 3)),
        depthwise(40, (3, 3, 3), stride=(2, 2, 2), transposed=True),
        depthwise(16, (1, 4, 4), (2, 12, 22), (1, 2, 2), batch=2, transposed=True),
        depthwise(8, (4, 3, 5), stride=(3, 2, 4), dilation=(2, 4, 3), transposed=True),
        depthwise(16, (9, 18, 5), stride=(8, 4, 2), transposed=True),
    ),
    "convolve_five_planes": (
        _five_planes(32, extents=(7, 15, 27)),
        _five_planes(32, 32, extents=(2, 7, 63)),
    ),
    "convolve_narrow": (
        _narrow(16, outputs=16, dilation=(2, 3, 1)),
        _narrow(8, 8, 8, outputs=8, dilation=(10, 1, 4)),
        _narrow_of_many(batch=2),
        _narrow_to_joined(),
        _narrow_to_patches(),
        _narrow(40, outputs=24),
        _deep_narrow((5, 5, 5), (1, 2, 1), 8, 8),
        _deep_narrow((5, 3, 5), (2, 1, 2), 24, 16),
    ),
    "convolve_patches": (_measuring_first("convolve_patches", 5, (12, 9, 130)),),
    "convolve_patches_wgmma": (
        _measuring_first("convolve_patches_wgmma", 3, (9, 9, 70)),
        _measuring_first("convolve_patches_wgmma", 7, (9, 9, 70)),
    ),
    "convolve_split_fp16": tuple(_planned("fp32", n, split=True) for n in (32, 64, 128)),
    "convolve_strided": (_halving(),),
    "convolve_strided_patches": (_strided_first(),),
    "convolve_to_patches": (_last("convolve_to_patches", 32, (4, 9, 70)),),
    "convolve_to_patches_wgmma": (
        _last("convolve_to_patches_wgmma", 32, (6, 4, 70)),
        _last("convolve_to_patches_wgmma", 64, (6, 4, 70)),
    ),
    "convolve_voxels": (last_of_voxels(view("source", (3, 5, 7), 32), 2),),
}
"""Samples by the kernel's file."""
