"""Descriptions of .cu files for the compiler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...network.layers import FloatArray
from ...options import Precision
from ..gpu_properties import WGMMA_CAPABILITY, GpuProperties
from ..lowered import LayerForm, Layout
from ..steps import Conv, ConvShape
from ..tensors import ELEMENTS
from ..weight_layout import PackedWeight, Slots
from .launch import Addresses, Launch

HALF: tuple[Precision, ...] = ("fp16", "bf16")
"""Precisions of the kernels for Tensor Cores."""

Fits: TypeAlias = Callable[[Conv, GpuProperties, bool], bool]
"""Test whether a kernel computes a convolution on a GPU; the last: in blocks of a volume."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A .cu file.

    source: its name. instances: C++ names of its kernels with their template arguments; empty if
    the kernels are not templates, which are then declared `extern "C" __global__`. precisions:
    those that it has kernels for. needs_wgmma: whether it has them for compute capability 9.0 only.
    in_blocks: whether patches may be blocks of a volume, for which it is compiled with -DIN_BLOCKS,
    and finds neighbours and the volume's borders through blocks.cuh.
    """

    source: str
    instances: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = tuple(ELEMENTS)
    needs_wgmma: bool = False
    in_blocks: bool = False

    @property
    def needs_tensor_cores(self) -> bool:
        """Whether it uses Tensor Cores and is therefore compared with plain kernels on each GPU."""
        return self.precisions == HALF

    def instances_for(
        self, precision: Precision, capability: tuple[int, int]
    ) -> tuple[str | None, ...]:
        """Return the C++ names of all instances that a GPU may launch; None if the file has no
        templates and is launched as a whole.
        """
        is_on_chip = not self.needs_wgmma or capability == WGMMA_CAPABILITY
        if precision not in self.precisions or not is_on_chip:
            return ()
        return self.instances or (None,)

    def is_allowed(self, layout: Layout) -> bool:
        """Return whether a program of this layout may use the kernel."""
        if layout.precision not in self.precisions or (layout.in_blocks and not self.in_blocks):
            return False
        if not self.needs_tensor_cores:
            return True
        has_units = layout.wgmma if self.needs_wgmma else layout.matrix_kernels
        return has_units and self.source not in layout.without


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvKernel(KernelSpec):
    """A .cu file of a convolution.

    launch: returns its grid, shared memory and arguments, whose `struct` and tile are read from the
    .cu file; the last parameter: address of the partial sums of its blocks, None without any. These
    are the moments of statistics, or sums of splits: of so many bytes (`partials`), which a second
    launch adds (`add`).

    A kernel has either `fits` and `pack`, or `replaces_plan`. fits: whether the kernel computes a
    whole layer, with prologue and epilogue; its inputs are what it would read, and its weight is
    not there yet. It is used wherever it fits, unless one of its `forms` was faster (where
    `convolve_narrow` pays is guessed until it has been timed, too). replaces_plan:
    whether it computes a bare convolution between tensors as a plan of cuDNN does, of this shape;
    it is used if no plan works, if it is faster where the tuner times it, and for a depthwise
    convolution before any plan. Its weight is packed as for cuDNN.

    pack: the layout of its weight, from a weight [K, C, kD, kH, kW] (of a transposed one [C, K,
    ...]), the stored position of each channel C, and how many are stored. has_float_weight: whether
    that stays float32. measures: whether it may compute statistics of its output. finds_blocks:
    whether it reads neighbours of a block of a volume where these are stored. rows: rows of the
    output in one product; a row's place among them decides how its sums round. joins: whether it
    may write some channels of a wider tensor, a joined map. forms: how cuDNN may compute the layer
    instead, by which it is replaced where it is slower. pays: whether it pays in blocks of a
    volume, where no times are taken; the last of the forms replaces it there.
    """

    launch: Callable[[Conv, Addresses, GpuProperties, int | None], Launch]
    partials: Callable[[Conv, GpuProperties], int] = lambda _conv, _gpu: 0
    add: Callable[[Conv, Addresses, GpuProperties, int], Launch] | None = None
    fits: Fits | None = None
    replaces_plan: Callable[[ConvShape], bool] | None = None
    pack: Callable[[FloatArray, Slots, int], PackedWeight] | None = None
    has_float_weight: bool = False
    measures: bool = False
    finds_blocks: bool = False
    rows: Callable[[Conv], int] = lambda _: 1
    joins: bool = False
    forms: tuple[LayerForm, ...] = ()
    pays: Callable[[Conv], bool] = lambda _: True
