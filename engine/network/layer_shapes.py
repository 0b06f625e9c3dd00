"""The arithmetic of one layer: which weights it has, and which shape it makes of which."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..errors import PatchShapeError
from .layers import (
    Add,
    ChannelAffine,
    Channels,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    GroupNorm,
    InstanceNorm,
    Layer,
    Multiply,
    Pad,
    Pool,
    PRelu,
    Subtract,
    Triple,
    Upsample,
    triple,
)


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Channels and extents of one patch's tensor; the batch is left out.

    channels: how many. extents: (D, H, W).
    """

    channels: int
    extents: Triple


def times(extents: Iterable[int]) -> str:
    """Extents in words."""
    return "x".join(map(str, extents))


def inputs_of(layer: Layer) -> int:
    """How many tensors a layer reads."""
    return 2 if isinstance(layer, Add | Subtract | Multiply | Concat) else 1


def sampling_factors(layer: Layer) -> tuple[Triple, Triple]:
    """Factors by which a layer enlarges and by which it shrinks the grid."""
    match layer:
        case Conv3d(stride=factor) | Downsample(factor=factor) | Pool(stride=factor):
            return (1, 1, 1), factor
        case ConvTranspose3d(stride=factor) | Upsample(factor=factor):
            return factor, (1, 1, 1)
        case _:
            return (1, 1, 1), (1, 1, 1)


def weight_shapes(layer: Layer) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Weights that a layer names, each with the shape it must have."""
    match layer:
        case Conv3d(cin, cout, kernel, weight, bias, groups=groups):
            yield weight, (cout, cin // groups, *kernel)
            if bias is not None:
                yield bias, (cout,)
        case ConvTranspose3d(cin, cout, kernel, weight, bias, groups=groups):
            yield weight, (cin, cout // groups, *kernel)
            if bias is not None:
                yield bias, (cout,)
        case (
            InstanceNorm(channels, scale=scale, shift=shift)
            | GroupNorm(channels, scale=scale, shift=shift)
            | ChannelAffine(channels, scale, shift)
        ):
            for name in (scale, shift):
                if name is not None:
                    yield name, (channels,)
        case PRelu(channels, slope):
            yield slope, (channels,)
        case _:
            pass


def channels_made(layer: Layer, channels: list[int]) -> int:
    """Channels of what a layer makes of tensors with these."""
    match layer:
        case Conv3d(out_channels=made) | ConvTranspose3d(out_channels=made) | Channels(count=made):
            return made
        case Concat():
            return sum(channels)
        case Multiply():
            return max(channels)
        case _:
            return channels[0]


def shape_made(name: str, layer: Layer, inputs: list[TensorShape]) -> TensorShape:
    """Shape of what a layer makes of tensors of these; raises PatchShapeError, which names it."""
    first = inputs[0]
    _check_channels(name, layer, inputs)
    if inputs_of(layer) == 2 and first.extents != inputs[1].extents:
        raise PatchShapeError(
            f"Layer {name} joins {times(first.extents)} and {times(inputs[1].extents)}; "
            "use patch extents that divide evenly through the network."
        )
    extents = [_extent(layer, first.extents[axis], axis) for axis in range(3)]
    if min(extents) < 1:
        raise PatchShapeError(
            f"Layer {name} has nothing left of {times(first.extents)}; use a larger patch."
        )
    widest = _reflected(layer)
    if any(pad >= extent for pad, extent in zip(widest, first.extents, strict=True)):
        raise PatchShapeError(
            f"Layer {name} cannot reflect {max(widest)} voxels of "
            f"{times(first.extents)}; use a larger patch."
        )
    channels = channels_made(layer, [shape.channels for shape in inputs])
    return TensorShape(channels, (extents[0], extents[1], extents[2]))


def _check_channels(name: str, layer: Layer, inputs: list[TensorShape]) -> None:
    first = inputs[0].channels
    expected = _expected_channels(layer)
    if expected is not None and expected != first:
        raise PatchShapeError(f"Layer {name} takes {expected} channels, but {first} reach it.")
    match layer:
        case Channels(start, count) if start + count > first:
            raise PatchShapeError(
                f"Layer {name} takes channels {start} to {start + count - 1}, but {first} reach it."
            )
        case Multiply() if 1 in (first, inputs[1].channels):
            pass
        case Add() | Subtract() | Multiply() if inputs[1].channels != first:
            raise PatchShapeError(
                f"Layer {name} joins {first} and {inputs[1].channels} channels voxel by voxel."
            )
        case _:
            pass


def _reflected(layer: Layer) -> Triple:
    """The most voxels that a layer mirrors at either end of each axis."""
    match layer:
        case Pad("reflect", before, after):
            return triple(map(max, before, after))
        case Downsample(mode="reflect", after=after):
            return after
        case _:
            return 0, 0, 0


def _expected_channels(layer: Layer) -> int | None:
    match layer:
        case Conv3d(in_channels=channels) | ConvTranspose3d(in_channels=channels):
            return channels
        case (
            InstanceNorm(channels=channels)
            | GroupNorm(channels=channels)
            | ChannelAffine(channels=channels)
            | PRelu(channels=channels)
        ):
            return channels
        case _:
            return None


def _extent(layer: Layer, extent: int, axis: int) -> int:
    match layer:
        case Conv3d(stride=stride, padding=padding):
            return (extent + 2 * padding[axis] - layer.reach[axis]) // stride[axis] + 1
        case Pool(kernel=kernel, stride=stride, padding=padding):
            return (extent + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1
        case ConvTranspose3d(stride=stride, padding=padding, output_padding=extra):
            spread = (extent - 1) * stride[axis] - 2 * padding[axis]
            return spread + layer.reach[axis] + extra[axis]
        case Pad(before=before, after=after):
            return extent + before[axis] + after[axis]
        case Crop(before=before, after=after):
            return extent - before[axis] - after[axis]
        case Upsample(factor=factor):
            return extent * factor[axis]
        case Downsample(factor=factor):
            return -(-extent // factor[axis])
        case _:
            return extent
