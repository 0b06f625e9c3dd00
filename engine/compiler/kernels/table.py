"""The table of kernels: all .cu files, of which the first that fits a convolution computes it."""

from collections.abc import Iterable, Iterator, Mapping

from ..gpu_properties import GpuProperties
from ..lowered import Layout
from ..steps import Conv, ConvShape, Step
from . import (
    convolutions,
    first_layer,
    inner_layers,
    last_layer,
    narrow_layers,
    packing,
    pointwise,
    statistics,
)
from .spec import ConvKernel, KernelSpec

_CONVOLUTIONS = (
    *first_layer.KERNELS,
    *last_layer.KERNELS,
    *narrow_layers.KERNELS,
    *inner_layers.KERNELS,
    *convolutions.KERNELS,
)
_OTHERS = (
    *packing.KERNELS,
    *pointwise.KERNELS,
    *statistics.KERNELS,
    KernelSpec("check"),
    KernelSpec("sliding_window"),
)
KERNELS: Mapping[str, KernelSpec] = {spec.source: spec for spec in (*_CONVOLUTIONS, *_OTHERS)}
"""All kernels, by the names of their .cu files."""

_BY_SOURCE = {spec.source: spec for spec in _CONVOLUTIONS}

TENSOR_CORE_KERNELS = frozenset(spec.source for spec in KERNELS.values() if spec.needs_tensor_cores)
"""Names of the kernels that use Tensor Cores, on GPUs where they compute correctly."""


def custom_kernel(shape: ConvShape) -> ConvKernel:
    """Return the kernel that computes a convolution of this shape where no plan of cuDNN does."""
    found = (spec for spec in _CONVOLUTIONS if spec.replaces_plan and spec.replaces_plan(shape))
    return next(found)


def kernel_of(conv: Conv) -> ConvKernel:
    """Return the custom kernel that computes a convolution."""
    return _BY_SOURCE[conv.kernel] if conv.kernel else custom_kernel(conv.shape)


def fitting_kernel(conv: Conv, layout: Layout, gpu: GpuProperties) -> ConvKernel | None:
    """Return the first kernel that computes a whole convolution, None if cuDNN does."""
    for spec in _CONVOLUTIONS:
        if spec.fits and spec.is_allowed(layout) and spec.fits(conv, gpu, layout.in_blocks):
            return spec
    return None


def checked(steps: Iterable[Step]) -> Iterator[Conv]:
    """Yield convolutions that are compared with plain kernels on each GPU before they are used."""
    for step in steps:
        if isinstance(step, Conv) and kernel_of(step).needs_tensor_cores:
            yield step
