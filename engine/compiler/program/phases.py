"""Phases of transposed convolutions: voxels that lie alike in the cells of the stride.

The outputs of one phase depend on the source by the same taps. So a plain convolution with all
phases as outputs computes a transposed one, and a pass moves their numbers to voxels.
"""

from dataclasses import dataclass
from math import prod

from ...network.graph_analysis import transposed_reach
from ...network.layers import ConvTranspose3d, Triple, triple
from ...options import Precision
from ..tensors import NUMBER_BYTES, Tensor, stored_channels
from ..weight_layout import PhaseTaps

_PRODUCTS_PER_BYTE: dict[Precision, int] = {"fp16": 80, "bf16": 80, "tf32": 40, "fp32": 6}
"""Products that an H200 computes while it moves a byte, each at the speed that its convolutions and
passes reach.
"""

_GRADIENT_OUTPUTS, _GRADIENT_SLOWNESS = 64, 1.5
"""Output channels that cuDNN's data gradient computes at least, and its time per product compared
with a plain convolution's. With these, of kernel 3 and stride 2, convolutions to sub-pixels are
cheaper up to 32 output channels and dearer from 64 on, as measured on an H200.
"""


@dataclass(frozen=True, slots=True)
class Phases:
    """Plain convolution that computes a transposed one by phases.

    stride: phases along each axis. origin: voxels of the first cell before the target. cells: that
    cover the target. taps: tap of the transposed kernel, by axis, for each phase and source voxel.
    before, after: border of the source.
    """

    stride: Triple
    origin: Triple
    cells: Triple
    taps: PhaseTaps
    before: Triple
    after: Triple

    @property
    def kernel(self) -> Triple:
        """Kernel of the plain convolution."""
        return triple(len(axis[0]) for axis in self.taps)


def phases_of(conv: ConvTranspose3d, source: Triple, target: Triple) -> Phases:
    """Return the phases of a transposed convolution between maps of these extents."""
    sizes = zip(conv.kernel, conv.stride, conv.padding, conv.dilation, source, target, strict=True)
    axes = [_axis(*along) for along in sizes]
    return Phases(
        conv.stride,
        triple(axis.origin for axis in axes),
        triple(axis.cells for axis in axes),
        (axes[0].taps, axes[1].taps, axes[2].taps),
        triple(-axis.first for axis in axes),
        triple(axis.after for axis in axes),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of `Phases`. first: offset of the first source voxel that a cell depends on."""

    origin: int
    cells: int
    first: int
    after: int
    taps: tuple[tuple[int | None, ...], ...]

    @property
    def products(self) -> int:
        """Number of products per phase."""
        return self.cells * len(self.taps[0])


def _axis(kernel: int, stride: int, padding: int, dilation: int, source: int, target: int) -> _Axis:
    """Return the axis with the fewest products: a shift of the cells by some voxels may take one
    more of them, but often one source voxel less for each.

    Voxel r of cell c is target voxel stride * c + r - origin, which takes tap t from source voxel
    c + o if dilation * t = r + padding - origin - stride * o.
    """

    def shifted(origin: int) -> _Axis:
        reach = transposed_reach(kernel, padding - origin, stride, dilation)
        first, last = min(reach[0], 0), reach[1]
        cells = max(-(-(target + origin) // stride), source - last)
        reached = {dilation * tap: tap for tap in range(kernel)}
        taps = tuple(
            tuple(reached.get(r + padding - origin - stride * o) for o in range(first, last + 1))
            for r in range(stride)
        )
        return _Axis(origin, cells, first, cells + last - source, taps)

    return min(map(shifted, range(stride)), key=lambda axis: axis.products)


def _cost(products: float, numbers: float, source: Tensor) -> float:
    """Return the products that take as long as a form of a transposed convolution.

    products: multiply-adds, padding and zeros included. numbers: those of weights and maps, besides
    the source, that are read and written.
    """
    moved = source.bytes + numbers * NUMBER_BYTES[source.precision]
    return products + _PRODUCTS_PER_BYTE[source.precision] * moved


def _cost_as_gradient(conv: ConvTranspose3d, source: Tensor, target: Triple) -> float:
    """Return the cost as the data gradient.

    The plain arithmetic of fp32 multiplies each target voxel by all taps, and most of them by 0.
    """
    outputs = stored_channels(conv.out_channels, source.precision)
    weights = prod(conv.kernel) * source.channels * outputs
    if source.precision == "fp32":
        products: float = source.batch * prod(target) * weights
    else:
        products = source.batch * prod(source.extents) * weights * _GRADIENT_SLOWNESS
        products *= max(1, _GRADIENT_OUTPUTS / outputs)
    return _cost(products, weights + source.batch * prod(target) * outputs, source)


def _cost_by_phases(conv: ConvTranspose3d, source: Tensor, target: Triple) -> float:
    """Return the cost by phases; the map of all phases is written and read in addition."""
    phases = phases_of(conv, source.extents, target)
    outputs = phase_channels(conv, source.precision)
    weights = prod(phases.kernel) * source.channels * outputs
    cells = source.batch * prod(phases.cells)
    written = source.batch * prod(target) * stored_channels(conv.out_channels, source.precision)
    return _cost(cells * weights, weights + 2 * cells * outputs + written, source)


def phase_channels(conv: ConvTranspose3d, precision: Precision) -> int:
    """Return the stored channels of the map of all phases."""
    return stored_channels(prod(conv.stride) * conv.out_channels, precision)


def phases_pay(conv: ConvTranspose3d, source: Tensor, target: Triple) -> bool:
    """Return whether a transposed convolution is cheaper by phases than as the data gradient, until
    both are timed on a GPU (`forms`).

    The outputs of the gradient are the few channels of the target, which fill a small part of what
    Tensor Cores compute; by phases there are stride^3 times as many. In return the map of all
    phases is written and read, and weights are 0 if the stride does not divide the kernel. So
    phases pay for few output channels and large strides: kernel 18 and stride 16 from 128 channels
    to 1, 4^3 to 64^3 voxels, take a ninth of the products, and 8 MiB of weights in fp16 in place of
    11 MiB with filled channels. They do not pay for many: to 16 channels the weights would be 128
    MiB, and kernel 3 and stride 2 take 2.4 times as many products, for 64 channels and more.

    Grouped convolutions stay gradients: each group would have its own phases.
    """
    if conv.groups > 1 or prod(conv.stride) == 1:
        return False
    return _cost_by_phases(conv, source, target) < _cost_as_gradient(conv, source, target)
