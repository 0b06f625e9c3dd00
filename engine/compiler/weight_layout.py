"""Weights in the layouts of the compiled program: channels last, padded, taps rearranged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..network.graph_analysis import transposed_reach
from ..network.layers import FloatArray, Triple
from ..options import Precision

WeightArray: TypeAlias = npt.NDArray[Any]
"""Numbers of any kind that are moved but not changed."""

Slots: TypeAlias = Sequence[int]
"""Stored position of each channel of a tensor."""

PhaseTaps: TypeAlias = tuple[
    Sequence[Sequence[int | None]], Sequence[Sequence[int | None]], Sequence[Sequence[int | None]]
]
"""Tap that each phase takes from each source voxel, along D, H and W; None for none."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in the order in which the device reads it, packed when its numbers are requested.

    A network is lowered for several layouts until one fits the GPU, and `plan` runs none of them.
    trained: source of all values but zeros. shape: as packed. pack: moves numbers of the trained
    shape, of any kind, into an array of the packed one.
    """

    trained: FloatArray
    shape: tuple[int, ...]
    pack: Callable[[WeightArray], WeightArray]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def numbers(self) -> FloatArray:
        """Pack the weight and return it."""
        return self._packed(self.trained)

    def encoded(self, precision: Precision) -> bytes:
        """Pack the weight as the device stores it; rounded first, as less is moved then."""
        return self._packed(_rounded(self.trained, precision)).tobytes()

    def _packed(self, numbers: WeightArray) -> WeightArray:
        packed = self.pack(numbers)
        assert packed.shape == self.shape
        return packed

    def split_fp16(self, scale: float) -> "PackedWeight":
        """Return its products with scale as fp16 pairs, of a weight that is stored as float."""

        def packed(weight: WeightArray) -> WeightArray:
            return split_fp16_pairs(self.pack(weight), scale)

        return replace(self, pack=packed)


def slot_index(slots: Slots) -> slice | list[int]:
    """Return the index of such channels: a slice if they lie side by side, which copies faster."""
    first, *_ = slots
    is_run = list(slots) == list(range(first, first + len(slots)))
    return slice(first, first + len(slots)) if is_run else list(slots)


def forward(weight: FloatArray, slots: Slots, source: int, target: int) -> PackedWeight:
    """[K, C, kD, kH, kW] -> [target, kD, kH, kW, source] with input channels at their slots."""
    shape = target, *weight.shape[2:], source

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros(shape, weight.dtype)
        filled[: weight.shape[0], ..., slot_index(slots)] = weight.transpose(0, 2, 3, 4, 1)
        return filled

    return PackedWeight(weight, shape, packed)


def transposed(weight: FloatArray, slots: Slots, source: int, target: int) -> PackedWeight:
    """[in, out, kD, kH, kW] -> [source, kD, kH, kW, target]: the forward weight of a gradient."""
    shape = source, *weight.shape[2:], target

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros(shape, weight.dtype)
        filled[slot_index(slots), ..., : weight.shape[1]] = weight.transpose(0, 2, 3, 4, 1)
        return filled

    return PackedWeight(weight, shape, packed)


def block_diagonal(weight: FloatArray, groups: int) -> FloatArray:
    """[K, C / groups, kD, kH, kW] -> [K, C, kD, kH, kW], with zeros between the groups."""
    first, each, *kernel = weight.shape
    filled = np.zeros((groups, first // groups, groups, each, *kernel), np.float32)
    own = np.arange(groups)
    filled[own, :, own] = weight.reshape(groups, first // groups, each, *kernel)
    return filled.reshape(first, groups * each, *kernel)


def taps_as_inputs(weight: FloatArray, source: int, target: int) -> PackedWeight:
    """[K, C, kD, kH, kW] -> [target, kD, 1, 1, source], input channel (c, i, j)."""
    outputs, channels, depth, height, width = weight.shape
    shape = target, depth, 1, 1, source

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros(shape, weight.dtype)
        folded = weight.transpose(0, 2, 1, 3, 4).reshape(outputs, depth, channels * height * width)
        filled[:outputs, :, 0, 0, : folded.shape[-1]] = folded
        return filled

    return PackedWeight(weight, shape, packed)


def taps_as_outputs(
    weight: FloatArray, slots: Slots, source: int, target: int, lane_w: int
) -> PackedWeight:
    """[K, C, kD, kH, kW] -> [target, kD, 1, 1, source], output channel (k, i, j of lane_w)."""
    outputs, channels, depth, height, width = weight.shape
    shape = target, depth, 1, 1, source

    def packed(weight: WeightArray) -> WeightArray:
        spread = np.zeros((outputs, height, lane_w, depth, channels), weight.dtype)
        spread[:, :, :width] = weight.transpose(0, 3, 4, 2, 1)
        rows = spread.reshape(outputs * height * lane_w, depth, channels)
        filled = np.zeros(shape, weight.dtype)
        filled[: len(rows), :, 0, 0, slot_index(slots)] = rows
        return filled

    return PackedWeight(weight, shape, packed)


def _taps_apart(weight: WeightArray) -> WeightArray:
    """Return [A, B, kD, kH, kW] with each tap's numbers adjacent: taps copy twice as fast then."""
    return np.ascontiguousarray(weight.transpose(2, 3, 4, 0, 1)).transpose(3, 4, 0, 1, 2)


def subpixels(
    weight: FloatArray, padding: Triple, slots: Slots, source: int, target: int
) -> PackedWeight:
    """[in, out, kD, kH, kW] of stride 2 -> [8 * target, k'D, k'H, k'W, source].

    The 8 groups of outputs are the voxels (rD, rH, rW) of each 2 x 2 x 2 cell, rW fastest.
    """
    kernel = weight.shape[2:]
    reach = [transposed_reach(k, p) for k, p in zip(kernel, padding, strict=True)]
    extents = [last - first + 1 for first, last in reach]
    shape = 8 * target, *extents, source

    def packed(weight: WeightArray) -> WeightArray:
        numbers = _taps_apart(weight)
        filled = np.zeros((8, target, *extents, source), weight.dtype)
        for group, parities in enumerate(product(range(2), repeat=3)):
            for offsets in product(*(range(first, last + 1) for first, last in reach)):
                taps = [r + p - 2 * o for r, p, o in zip(parities, padding, offsets, strict=True)]
                if all(0 <= tap < k for tap, k in zip(taps, kernel, strict=True)):
                    position = [o - first for o, (first, _) in zip(offsets, reach, strict=True)]
                    tap = numbers[:, :, taps[0], taps[1], taps[2]]
                    filled[group, : weight.shape[1], *position][:, slot_index(slots)] = tap.T
        return filled.reshape(shape)

    return PackedWeight(weight, shape, packed)


def cells_as_inputs(weight: FloatArray, slots: Slots, source: int, target: int) -> PackedWeight:
    """[K, C, kD, kH, kW] of stride 2, even -> [target, kD / 2, kH / 2, kW / 2, 8 * source].

    The 8 groups of inputs are the voxels of each 2 x 2 x 2 cell, as those of `subpixels`.
    """
    outputs, channels, *kernel = weight.shape
    depth, height, width = (extent // 2 for extent in kernel)
    shape = target, depth, height, width, 8 * source

    def packed(weight: WeightArray) -> WeightArray:
        pairs = weight.reshape(outputs, channels, depth, 2, height, 2, width, 2)
        filled = np.zeros((target, depth, height, width, 2, 2, 2, source), weight.dtype)
        filled[:outputs, ..., slot_index(slots)] = pairs.transpose(0, 2, 4, 6, 3, 5, 7, 1)
        return filled.reshape(shape)

    return PackedWeight(weight, shape, packed)


def cells_as_outputs(weight: FloatArray, slots: Slots, source: int, target: int) -> PackedWeight:
    """[in, out, kD, kH, kW] of stride 2, even -> [8 * target, kD / 2, kH / 2, kW / 2, source].

    Voxel r of cell c takes tap 2 j + r from input c - j. The groups of outputs as in `subpixels`.
    """
    channels, outputs, *kernel = weight.shape
    depth, height, width = (extent // 2 for extent in kernel)
    shape = 8 * target, depth, height, width, source

    def packed(weight: WeightArray) -> WeightArray:
        numbers = _taps_apart(weight)
        pairs = numbers.reshape(channels, outputs, depth, 2, height, 2, width, 2)
        nearest_last = pairs[:, :, ::-1, :, ::-1, :, ::-1]
        filled = np.zeros((2, 2, 2, target, depth, height, width, source), weight.dtype)
        filled[..., :outputs, :, :, :, slot_index(slots)] = nearest_last.transpose(
            3, 5, 7, 1, 2, 4, 6, 0
        )
        return filled.reshape(shape)

    return PackedWeight(weight, shape, packed)


def phases_as_outputs(
    weight: FloatArray, taps: PhaseTaps, slots: Slots, source: int, target: int
) -> PackedWeight:
    """[in, out, kD, kH, kW] -> [target, k'D, k'H, k'W, source] with outputs (rD, rH, rW, out).

    Those of phase (rD, rH, rW), rW fastest, take the taps of these phases.
    """
    channels, outputs, *kernel = weight.shape
    phases, extents = zip(*((len(axis), len(axis[0])) for axis in taps), strict=True)
    shape = target, *extents, source
    places = [
        np.array([[extent if tap is None else tap for tap in phase] for phase in axis])
        for extent, axis in zip(kernel, taps, strict=True)
    ]

    def packed(weight: WeightArray) -> WeightArray:
        with_zero = np.zeros((*(extent + 1 for extent in kernel), outputs, channels), weight.dtype)
        with_zero[:-1, :-1, :-1] = weight.transpose(2, 3, 4, 1, 0)
        filled = np.zeros(shape, weight.dtype)
        each = filled[: prod(phases) * outputs].reshape(-1, outputs, *extents, source)
        for group, along in enumerate(product(*places)):
            taken = with_zero[np.ix_(*along)].transpose(3, 0, 1, 2, 4)
            each[group][..., slot_index(slots)] = taken
        return filled

    return PackedWeight(weight, shape, packed)


def split_fp16(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the high and low fp16 parts of each number, as float32; their sum is 2^-23 off at
    most.
    """
    high = values.astype(np.float16).astype(np.float32)
    return high, (values - high).astype(np.float16).astype(np.float32)


def split_fp16_pairs(weight: FloatArray, scale: float) -> FloatArray:
    """[..., C] -> [..., C]: fp16 parts [C / 8, 2, 8] of the products with scale, as pairs."""
    eights = (weight * np.float32(scale)).reshape(*weight.shape[:-1], -1, 8)
    pair = np.stack(split_fp16(eights), axis=-2).astype(np.float16)
    return pair.reshape(*weight.shape[:-1], -1).view(np.float32)


def encoded(array: FloatArray, precision: Precision) -> bytes:
    """Return the numbers as the device stores them, rounded to nearest even."""
    return _rounded(array, precision).tobytes()


def _rounded(array: FloatArray, precision: Precision) -> WeightArray:
    """Return the numbers as the device stores them; bf16 as the upper half of a float's bits."""
    match precision:
        case "fp32" | "tf32":
            return array.astype(np.float32, copy=False)
        case "fp16":
            return array.astype(np.float16)
        case "bf16":
            bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
            rounded = bits + 0x7FFF + ((bits >> 16) & 1)
            return (rounded >> 16).astype(np.uint16)
