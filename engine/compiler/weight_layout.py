"""Weights in the layouts of the compiled program: channels last, filled up, taps rearranged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from ..network.graph_analysis import subpixel_reach
from ..network.layers import FloatArray, Triple
from ..options import Precision

Slots: TypeAlias = Sequence[int]
"""Stored position of each channel of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class LaidWeight:
    """A weight in the order in which the device reads it, laid out when its numbers are asked for.

    A network is lowered for several layouts until one fits the card, and `plan` runs none of them.
    trained: what it is made of; all but zeros comes from there. shape: as laid out. lay_out: makes
    an array of that shape.
    """

    trained: FloatArray
    shape: tuple[int, ...]
    lay_out: Callable[[], FloatArray]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    def numbers(self) -> FloatArray:
        """The weight, laid out anew."""
        laid = self.lay_out()
        assert laid.shape == self.shape
        return laid

    def split_fp16(self, scale: float) -> "LaidWeight":
        """Its products with scale as fp16 pairs."""
        return replace(self, lay_out=lambda: split_fp16_pairs(self.numbers(), scale))


def forward(weight: FloatArray, slots: Slots, source: int, target: int) -> LaidWeight:
    """[K, C, kD, kH, kW] -> [target, kD, kH, kW, source] with input channels at their slots."""
    shape = target, *weight.shape[2:], source

    def lay_out() -> FloatArray:
        filled = np.zeros(shape, np.float32)
        filled[: weight.shape[0], ..., list(slots)] = weight.transpose(0, 2, 3, 4, 1)
        return filled

    return LaidWeight(weight, shape, lay_out)


def transposed(weight: FloatArray, slots: Slots, source: int, target: int) -> LaidWeight:
    """[in, out, kD, kH, kW] -> [source, kD, kH, kW, target]: the forward weight of a gradient."""
    shape = source, *weight.shape[2:], target

    def lay_out() -> FloatArray:
        filled = np.zeros(shape, np.float32)
        filled[list(slots), ..., : weight.shape[1]] = weight.transpose(0, 2, 3, 4, 1)
        return filled

    return LaidWeight(weight, shape, lay_out)


def block_diagonal(weight: FloatArray, groups: int) -> FloatArray:
    """[K, C / groups, kD, kH, kW] -> [K, C, kD, kH, kW], with zeros between the groups."""
    first, each, *kernel = weight.shape
    filled = np.zeros((groups, first // groups, groups, each, *kernel), np.float32)
    own = np.arange(groups)
    filled[own, :, own] = weight.reshape(groups, first // groups, each, *kernel)
    return filled.reshape(first, groups * each, *kernel)


def taps_as_inputs(weight: FloatArray, source: int, target: int) -> LaidWeight:
    """[K, C, kD, kH, kW] -> [target, kD, 1, 1, source], input channel (c, i, j)."""
    outputs, channels, depth, height, width = weight.shape
    shape = target, depth, 1, 1, source

    def lay_out() -> FloatArray:
        filled = np.zeros(shape, np.float32)
        folded = weight.transpose(0, 2, 1, 3, 4).reshape(outputs, depth, channels * height * width)
        filled[:outputs, :, 0, 0, : folded.shape[-1]] = folded
        return filled

    return LaidWeight(weight, shape, lay_out)


def matrix_operands(weight: FloatArray) -> LaidWeight:
    """[K, C, kD, kH, kW] -> [steps, K / 8, 32, 4]: second operands of an m16n8k16 product.

    The depth of the product is pairs of lines (c, i, j) of 8 taps each. Lane 4 n + t of a step
    holds for output n the taps 2 t, 2 t + 1 of the pair's first line, then of its second.
    """
    outputs, channels, depth, height, width = weight.shape
    lines = channels * depth * height
    steps = -(-lines // 2)
    shape = steps, outputs // 8, 32, 4

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs, 2 * steps, 8), np.float32)
        filled[:, :lines, :width] = weight.reshape(outputs, lines, width)
        split = filled.reshape(outputs // 8, 8, steps, 2, 4, 2)
        return split.transpose(2, 0, 1, 4, 3, 5).reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def strided_operands(weight: FloatArray) -> LaidWeight:
    """[K, 1, 4, 4, 4] -> [4, K / 8, 32, 4]: `matrix_operands` of lines that are two kernel rows."""
    return matrix_operands(weight.reshape(*weight.shape[:3], 2, 8))


def outputs_of_product(outputs: int) -> int:
    """Of the outputs of a doubling layer by warp groups, those in a product of 64 rows."""
    return 64 if outputs % 64 == 0 else 32


def outputs_of_rows(outputs: int, edge: int) -> int:
    """Of the outputs of a first layer by warp groups, those in a product; edge: of its kernel."""
    return outputs_of_product(outputs) if edge == 7 else 32


def row_operands(weight: FloatArray) -> LaidWeight:
    """[K, 1, k, k, k] -> [K / n, k, products, 4, 32, 8]: first operands of m64n*k16, in registers.

    k is 7 or 3. n, of K, is `outputs_of_rows`; the 64 rows of an operand are the outputs for one
    row of the target, or for two. Those see 8 input rows of 8 taps each, of 3^3 4 of 4. The
    operands go by the kernel plane and by 16 of these taps, two input rows or all 4. Lane 4 g + t
    of warp w holds, of rows 16 w + g and 16 w + g + 8, the taps 2 t, 2 t + 1 of the first 8, then
    of the others.
    """
    outputs, edge = weight.shape[0], weight.shape[-1]
    each, seen = outputs_of_rows(outputs, edge), edge + 1
    products = seen * seen // 16
    shape = outputs // each, edge, products, 4, 32, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs // each, 64 // each, each, edge, seen, seen), np.float32)
        for row in range(64 // each):
            own = weight.reshape(-1, each, edge, edge, edge)
            filled[:, row, :, :, row : row + edge, :edge] = own
        split = filled.reshape(-1, 4, 2, 8, edge, products, 2, 4, 2)
        return split.transpose(0, 4, 5, 1, 3, 7, 6, 2, 8).reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def turned_operands(weight: FloatArray, slots: Slots, source: int) -> LaidWeight:
    """[K, C, kD, kH <= 7, kW <= 8] -> [K, kD, source / 16, 2, 15, 8, 8]: operands of m64n*k16.

    Of each kernel plane and half of 16 channels, one piece of 8 kernel columns and 8 channels after
    the other: those of the kernel rows 0, 7, 6, ... 0, 7, ... 2, so that an operand of 8 rows may
    begin with any of them. Row 7 is 0.
    """
    outputs, _, depth, height, width = weight.shape
    shape = outputs, depth, source // 16, 2, 15, 8, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs, source, depth, 8, 8), np.float32)
        filled[:, list(slots), :, :height, :width] = weight
        turned = filled[:, :, :, -np.arange(15) % 8]
        split = turned.reshape(outputs, source // 16, 2, 8, depth, 15, 8)
        return split.transpose(0, 4, 1, 2, 5, 6, 3).reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def column_operands(weight: FloatArray, slots: Slots, source: int) -> LaidWeight:
    """[K, C, kD, kH <= 7, kW <= 8] -> [K, kD, source / 32, 4, 2, 32, 8]: operands of m16n8k16.

    The 16 rows of an operand are the kernel columns of a pair of kernel rows, its depth half of 32
    channels: in step s, lane 4 n + t holds of column n the channels 8 t + 4 s to 8 t + 4 s + 3, two
    of the first kernel row, two of the second, and again.
    """
    outputs, _, depth, height, width = weight.shape
    shape = outputs, depth, source // 32, 4, 2, 32, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs, source, depth, 8, 8), np.float32)
        filled[:, list(slots), :, :height, :width] = weight
        split = filled.reshape(outputs, source // 32, 4, 2, 2, 2, depth, 4, 2, 8)
        return split.transpose(0, 6, 1, 7, 3, 9, 2, 4, 8, 5).reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def cell_operands(weight: FloatArray, slots: Slots, source: int) -> LaidWeight:
    """[C, K, 4, 4, 4] -> [K, 2, source / 32, 2, 2, 32, 8]: operands of m16n8k16.

    Of a transposed convolution of stride 2 and padding 1, whose cells of 2^3 target voxels see 2^3
    source voxels. Along each axis tap 2 f + p leads to voxel p of a cell, from the farther (f = 1)
    of the two, which lies first, or from the nearer. The operands go by the source plane; its
    chunks of 32 channels; the source row, the nearer first; and half of the channels. The 16 rows
    of one are the cell's voxels, from the farther source voxel along W, then from the nearer: in
    step s, lane 4 n + t holds of voxel n the channels 8 t + 4 s to 8 t + 4 s + 3, two from the
    farther, two from the nearer, and again.
    """
    outputs = weight.shape[1]
    shape = outputs, 2, source // 32, 2, 2, 32, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs, source, 4, 4, 4), np.float32)
        filled[:, list(slots)] = weight.transpose(1, 0, 2, 3, 4)
        split = filled.reshape(outputs, source // 32, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2)
        farther_first = split[:, :, :, :, :, :, ::-1, :, :, :, ::-1]
        return farther_first.transpose(0, 6, 1, 8, 3, 7, 9, 11, 2, 4, 10, 5).reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def voxel_operands(weight: FloatArray, slots: Slots, source: int) -> LaidWeight:
    """[C, K, 2, 2, 2] -> [K, source / 32, 32, 8]: second operands of m16n8k16.

    Of a transposed convolution of stride 2, each of whose cells of 2^3 target voxels sees one voxel
    of the source. Lane 4 n + t holds of column n the channels 8 t to 8 t + 7 of 32, the first four
    for one product, the others for the next. Of 32 outputs, lane t of four gets columns 2 t and
    2 t + 1 of each of four operands: those are 8 that follow each other.
    """
    outputs = weight.shape[1]
    shape = outputs, source // 32, 32, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((2, 2, 2, outputs, source), np.float32)
        filled[..., list(slots)] = weight.transpose(2, 3, 4, 1, 0)
        split = filled.reshape(-1, 4, 4, 2, source // 32, 4, 8)
        return split.transpose(0, 2, 4, 1, 3, 5, 6).reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def doubling_operands(weight: FloatArray, slots: Slots, source: int) -> LaidWeight:
    """[C, K, 3, 3, 3] -> [K / n, stages, 3, 4, 64, 8]: first operands of m64n128k16.

    Of a transposed convolution of stride 2, padding 1 and output padding 1, whose cells of 2^3
    target voxels see 2^3 source voxels. n, of K, is `outputs_of_product`. The stages go by the
    cell's two planes; with n = 64, by its two rows; by the source planes that these see; by 32
    source channels; and by the source rows. The three operands of a stage lead from the first
    source voxel of a row to the first of the cell's row, to the second, and from the second to the
    second. Their 64 rows are the n outputs, with n = 32 of the cell's first row, then its second.
    """
    outputs = weight.shape[1]
    each, chunks = outputs_of_product(outputs), source // 32
    rows = (0, 1) if each == 64 else (None,)
    order = [
        (upper, below, plane, chunk, row)
        for upper, below in product(range(2), rows)
        for plane, chunk in product(range(upper + 1), range(chunks))
        for row in range(2 if below is None else below + 1)
    ]
    shape = outputs // each, len(order), 3, 4, 64, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs, source, 3, 3, 3), np.float32)
        filled[:, list(slots)] = weight.transpose(1, 0, 2, 3, 4)
        split = filled.reshape(-1, each, chunks, 4, 8, 3, 3, 3)
        laid = np.zeros((*shape[:3], 4, 64 // each, each, 8), np.float32)
        for stage, (upper, below, plane, chunk, row) in enumerate(order):
            beside = (below,) if below is not None else (0, 1)
            for place, own_row in enumerate(beside):
                for operand, (right, column) in enumerate(((0, 0), (1, 0), (1, 1))):
                    taps = [_tap(upper, plane), _tap(own_row, row), _tap(right, column)]
                    if None not in taps:
                        tap = split[:, :, chunk, :, :, taps[0], taps[1], taps[2]]
                        laid[:, stage, operand, :, place] = tap.transpose(0, 2, 1, 3)
        return laid.reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def halving_operands(weight: FloatArray, slots: Slots, source: int) -> LaidWeight:
    """[K, C, 3, 3, 3] -> [K / 64, source / 16, 3, 9, 2, 64, 8]: first operands of m64n128k16.

    Of each 64 outputs and 16 source channels, those of the taps, by the kernel's planes.
    """
    outputs, chunks = weight.shape[0], source // 16
    shape = outputs // 64, chunks, 3, 9, 2, 64, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs, source, 3, 3, 3), np.float32)
        filled[:, list(slots)] = weight
        split = filled.reshape(-1, 64, chunks, 2, 8, 3, 9)
        return np.ascontiguousarray(split.transpose(0, 2, 5, 6, 3, 1, 4))

    return LaidWeight(weight, shape, lay_out)


def plane_operands(weight: FloatArray, slots: Slots, source: int) -> LaidWeight:
    """[K, C, 3, 3, 3] -> [K / 32, source / 32, 3, 3, 4, 96, 8]: second operands of m64n96k16.

    Of 32 outputs and 32 channels, for each tap along H and W: the channels, and for them the
    outputs by the last tap along D, by the middle one, then by the first. Lane t of four gets
    columns 2 t and 2 t + 1 of each 8: those are 8 outputs that follow each other.
    """
    outputs = weight.shape[0]
    shape = outputs // 32, source // 32, 3, 3, 4, 96, 8

    def lay_out() -> FloatArray:
        filled = np.zeros((outputs, source, 3, 3, 3), np.float32)
        filled[:, list(slots)] = weight[:, :, ::-1]
        split = filled.reshape(-1, 4, 4, 2, source // 32, 4, 8, 3, 3, 3)
        return split.transpose(0, 4, 8, 9, 5, 7, 2, 1, 3, 6).reshape(shape)

    return LaidWeight(weight, shape, lay_out)


OPERANDS_BY_PLANES = {1: plane_operands, 2: halving_operands}
"""By the stride of a convolution that walks through planes."""


def _tap(parity: int, offset: int) -> int | None:
    """Of 3, with padding 1, that leads from the source's voxel i + offset to 2 i + parity."""
    tap = parity + 1 - 2 * offset
    return tap if tap >= 0 else None


def taps_as_outputs(
    weight: FloatArray, slots: Slots, source: int, target: int, lane_w: int
) -> LaidWeight:
    """[K, C, kD, kH, kW] -> [target, kD, 1, 1, source], output channel (k, i, j of lane_w)."""
    outputs, channels, depth, height, width = weight.shape
    shape = target, depth, 1, 1, source

    def lay_out() -> FloatArray:
        spread = np.zeros((outputs, height, lane_w, depth, channels), np.float32)
        spread[:, :, :width] = weight.transpose(0, 3, 4, 2, 1)
        rows = spread.reshape(outputs * height * lane_w, depth, channels)
        filled = np.zeros(shape, np.float32)
        filled[: len(rows), :, 0, 0, list(slots)] = rows
        return filled

    return LaidWeight(weight, shape, lay_out)


def subpixels(
    weight: FloatArray, padding: Triple, slots: Slots, source: int, target: int
) -> LaidWeight:
    """[in, out, kD, kH, kW] of stride 2 -> [8 * target, k'D, k'H, k'W, source].

    The 8 groups of outputs are the voxels (rD, rH, rW) of each 2 x 2 x 2 cell, rW fastest.
    """
    kernel = weight.shape[2:]
    reach = [subpixel_reach(k, p) for k, p in zip(kernel, padding, strict=True)]
    extents = [last - first + 1 for first, last in reach]
    shape = 8 * target, *extents, source

    def lay_out() -> FloatArray:
        filled = np.zeros((8, target, *extents, source), np.float32)
        for group, parities in enumerate(product(range(2), repeat=3)):
            for offsets in product(*(range(first, last + 1) for first, last in reach)):
                taps = [r + p - 2 * o for r, p, o in zip(parities, padding, offsets, strict=True)]
                if all(0 <= tap < k for tap, k in zip(taps, kernel, strict=True)):
                    place = [o - first for o, (first, _) in zip(offsets, reach, strict=True)]
                    tap = weight[:, :, taps[0], taps[1], taps[2]]
                    filled[group, : weight.shape[1], *place, list(slots)] = tap
        return filled.reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def cells_as_inputs(weight: FloatArray, slots: Slots, source: int, target: int) -> LaidWeight:
    """[K, C, kD, kH, kW] of stride 2, even -> [target, kD / 2, kH / 2, kW / 2, 8 * source].

    The 8 groups of inputs are the voxels of each 2 x 2 x 2 cell, as those of `subpixels`.
    """
    outputs, channels, *kernel = weight.shape
    depth, height, width = (extent // 2 for extent in kernel)
    shape = target, depth, height, width, 8 * source

    def lay_out() -> FloatArray:
        pairs = weight.reshape(outputs, channels, depth, 2, height, 2, width, 2)
        filled = np.zeros((target, depth, height, width, 2, 2, 2, source), np.float32)
        filled[:outputs, ..., list(slots)] = pairs.transpose(0, 2, 4, 6, 3, 5, 7, 1)
        return filled.reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def cells_as_outputs(weight: FloatArray, slots: Slots, source: int, target: int) -> LaidWeight:
    """[in, out, kD, kH, kW] of stride 2, even -> [8 * target, kD / 2, kH / 2, kW / 2, source].

    Voxel r of cell c takes tap 2 j + r from input c - j. The groups of outputs as in `subpixels`.
    """
    channels, outputs, *kernel = weight.shape
    depth, height, width = (extent // 2 for extent in kernel)
    shape = 8 * target, depth, height, width, source

    def lay_out() -> FloatArray:
        pairs = weight.reshape(channels, outputs, depth, 2, height, 2, width, 2)
        nearest_last = pairs[:, :, ::-1, :, ::-1, :, ::-1]
        filled = np.zeros((2, 2, 2, target, depth, height, width, source), np.float32)
        filled[..., :outputs, :, :, :, list(slots)] = nearest_last.transpose(3, 5, 7, 1, 2, 4, 6, 0)
        return filled.reshape(shape)

    return LaidWeight(weight, shape, lay_out)


def split_fp16(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """High and low fp16 part of each number, as float32; their sum is 2^-23 off at most."""
    high = values.astype(np.float16).astype(np.float32)
    return high, (values - high).astype(np.float16).astype(np.float32)


def split_fp16_pairs(weight: FloatArray, scale: float) -> FloatArray:
    """[..., C] -> [..., C]: fp16 parts [C / 8, 2, 8] of the products with scale, as pairs."""
    eights = (weight * np.float32(scale)).reshape(*weight.shape[:-1], -1, 8)
    pair = np.stack(split_fp16(eights), axis=-2).astype(np.float16)
    return pair.reshape(*weight.shape[:-1], -1).view(np.float32)


def encoded(array: FloatArray, precision: Precision) -> bytes:
    """The numbers as the device stores them, rounded to nearest even."""
    match precision:
        case "fp32" | "tf32":
            return np.ascontiguousarray(array, np.float32).tobytes()
        case "fp16":
            return array.astype(np.float16).tobytes()
        case "bf16":
            bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
            rounded = bits + 0x7FFF + ((bits >> 16) & 1)
            return (rounded >> 16).astype(np.uint16).tobytes()
