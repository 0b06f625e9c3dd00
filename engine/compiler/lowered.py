"""A network lowered to steps, and the choices on which the lowering depended."""

from collections.abc import Container, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias

from ..cores import in_parallel
from ..network.layers import FloatArray, Triple
from ..options import Precision
from .gpu_properties import GpuProperties
from .steps import Step
from .tensors import NUMBER_BYTES
from .weight_layout import PackedWeight, encoded

_PACKED_TOGETHER = 8
"""Weights that are packed in parallel: the host holds no more copies of them at a time."""

_ENCODED_EARLY = 256 << 20
"""Most bytes of constants that the host holds while layers are tuned."""

USUAL_SLAB_BYTES = 112 << 20
"""Bound of the tensors of a slab for which there is enough memory."""

TransposedForm: TypeAlias = Literal["gradient", "subpixel", "cells", "phases"]
"""Form in which a transposed convolution is lowered.

gradient: as the data gradient of a convolution. subpixel: for stride 2, as a convolution to the 8
voxels of each cell of 2^3, some of whose taps are 0. cells: for stride 2 and a kernel of even
extents, as a convolution to the cells that each pair of its taps leads to; none of its taps is 0.
phases: for any stride, as a convolution to all voxels of each cell, and a pass that moves them.
"""


LayerForm: TypeAlias = TransposedForm | Literal["plain", "narrow", "custom"]
"""Form in which a convolution is lowered; those of `TransposedForm` are for transposed ones.

plain: as it is. cells: for stride 2 and even extents, as a convolution of stride 1 and half the
extents, from cells of 2^3 voxels. custom: by the custom kernel. narrow: by `convolve_narrow`, also
where that is not expected to be faster.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of the work, and the choices that do not change its result beyond rounding.

    patch: (D, H, W). batch: patches in one run. precision: of the arithmetic. slab_bytes: bound of
    the tensors between the steps of an outermost layer, which goes through the depth in slabs.
    matrix_kernels: whether custom kernels for Tensor Cores may be used; wgmma: also those for
    warpgroups, which require compute capability 9.0. forms: by layer, of convolutions that have
    an unusual one. split_fp16: whether a float program does convolutions on split fp16 where their
    input allows it (`split_fp16.scales`). in_blocks: whether the patches are blocks of one volume,
    which read their neighbours and are normalised together. without: .cu files of kernels for
    Tensor Cores that are rejected.
    """

    patch: Triple
    batch: int
    precision: Precision
    slab_bytes: int = USUAL_SLAB_BYTES
    matrix_kernels: bool = False
    wgmma: bool = False
    forms: Mapping[str, LayerForm] = field(default_factory=dict[str, LayerForm])
    split_fp16: bool = False
    in_blocks: bool = False
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UndividedSteps:
    """Steps of a program for blocks of a volume that process all blocks together.

    first, stop: numbers of the first of them, and of the first one after them. block: extents of
    the one block, which contains the volume.
    """

    first: int
    stop: int
    block: Triple


@dataclass(frozen=True, slots=True)
class Lowered:
    """Steps in order, and the constants that they name.

    gpu: the GPU whose properties decided on steps, and decide on their launches. constants: those
    that the device stores as float32. weights: those that it stores in the layout's precision.
    undivided: steps that do not run on blocks of the layout.
    """

    layout: Layout
    gpu: GpuProperties
    steps: tuple[Step, ...]
    constants: Mapping[str, FloatArray]
    weights: Mapping[str, PackedWeight]
    undivided: UndividedSteps | None = None

    def encoded_constants(self, without: Container[str] = ()) -> Iterator[tuple[str, bytes]]:
        """Yield each constant and weight by name, as the device stores it.

        Some are packed in parallel, so that few copies of the weights exist at a time. without:
        names to omit.
        """
        names = [name for name in (*self.constants, *self.weights) if name not in without]
        for first in range(0, len(names), _PACKED_TOGETHER):
            some = names[first : first + _PACKED_TOGETHER]
            yield from zip(some, in_parallel(self.encoded_constant, some), strict=True)

    def encoded_constant(self, name: str) -> bytes:
        """Return a constant or weight as the device stores it."""
        if name in self.constants:
            return encoded(self.constants[name], "fp32")
        return self.weights[name].encoded(self.layout.precision)

    def constant_bytes(self) -> Mapping[str, int]:
        """Return the bytes of each constant and weight on the device."""
        each = NUMBER_BYTES[self.layout.precision]
        return {
            **{name: 4 * array.size for name, array in self.constants.items()},
            **{name: each * weight.size for name, weight in self.weights.items()},
        }


class EarlyConstants:
    """Constants of a program that are encoded in threads while its layers are tuned."""

    def __init__(self) -> None:
        self._lowered: Lowered | None = None
        self._encoding: Future[Mapping[str, bytes]] | None = None

    def begin(self, lowered: Lowered) -> None:
        """Start to encode constants, the first ones of a program that has too many bytes of them;
        those of another program are dropped.
        """
        sizes = lowered.constant_bytes()
        ends = zip(sizes, accumulate(sizes.values()), strict=True)
        names = [name for name, end in ends if end <= _ENCODED_EARLY]

        def encode() -> Mapping[str, bytes]:
            return dict(zip(names, in_parallel(lowered.encoded_constant, names), strict=True))

        thread = ThreadPoolExecutor(1, "constants")
        self._lowered, self._encoding = lowered, thread.submit(encode)
        thread.shutdown(wait=False)

    def encoded(self, lowered: Lowered) -> Iterator[tuple[str, bytes]]:
        """Yield the names and bytes of all constants, in any order; may be called once."""
        early: Mapping[str, bytes] = {}
        if self._encoding is not None and self._lowered is lowered:
            early = self._encoding.result()
        self._lowered = self._encoding = None
        yield from early.items()
        yield from lowered.encoded_constants(without=early)
