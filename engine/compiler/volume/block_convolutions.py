"""Convolutions whose operand holds all that a block sees, whichever kernel does them."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from ...network.layers import Triple
from ..steps import Convolve, ConvTransposeToCells
from ..tensors import Tensor, TensorView

BlockConvolution: TypeAlias = Convolve | ConvTransposeToCells


@dataclass(frozen=True, slots=True)
class Reach:
    """What a convolution reads of its operand. kernel, stride, dilation: along D, H and W."""

    kernel: Triple
    stride: Triple
    dilation: Triple

    def read_for(self, extents: Triple) -> Triple:
        """Extents of what a target of `extents` is made of."""
        sizes = zip(extents, self.stride, self.kernel, self.dilation, strict=True)
        depth, height, width = (
            (extent - 1) * step + (taps - 1) * apart + 1 for extent, step, taps, apart in sizes
        )
        return depth, height, width


def reach_of(conv: BlockConvolution) -> Reach:
    """Of cells, as they are counted."""
    if isinstance(conv, ConvTransposeToCells):
        return Reach((2, 2, 2), (1, 1, 1), (1, 1, 1))
    return Reach(conv.shape.kernel, conv.shape.stride, conv.shape.dilation)


def target_of(conv: BlockConvolution) -> Tensor:
    """What a convolution writes."""
    return conv.target.tensor if isinstance(conv, ConvTransposeToCells) else conv.target


def between(conv: BlockConvolution, source: Tensor, target: Tensor) -> BlockConvolution:
    """The same convolution from one tensor to another, of which no statistics are taken."""
    if isinstance(conv, ConvTransposeToCells):
        depth, height, width = target.extents
        cells = TensorView(target, (2 * depth, 2 * height, 2 * width), shuffled=True)
        return replace(conv, source=source, target=cells, statistics=None)
    shape = replace(conv.shape, source_extents=source.extents, target_extents=target.extents)
    return replace(conv, source=source, target=target, shape=shape)
