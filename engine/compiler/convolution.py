"""The shape of a convolution."""

from dataclasses import dataclass
from math import prod

from ..network.layers import Triple
from ..options import Precision


@dataclass(frozen=True, slots=True)
class Convolution:
    """Shape of one convolution; everything that the choice of its tactic depends on.

    transposed: source and target change places, as in the gradient with respect to the input.
    before, after: zero padding of the forward convolution, on each side of each axis. split_fp16:
    source and weight are stored as fp16 pairs; such a convolution is neither transposed nor dilated
    and has no groups. groups: into which the channels fall, either of one channel or of whole
    vectors of both source and target. batch: patches. source_extents, target_extents, kernel,
    stride, dilation: along D, H and W. source_channels, target_channels: as stored, padded to whole
    vectors. precision: of source and weight.
    """

    batch: int
    source_extents: Triple
    source_channels: int
    target_extents: Triple
    target_channels: int
    kernel: Triple
    stride: Triple
    before: Triple
    after: Triple
    precision: Precision
    transposed: bool = False
    split_fp16: bool = False
    dilation: Triple = (1, 1, 1)
    groups: int = 1

    @property
    def summed_channels(self) -> int:
        """Source channels summed for each target channel."""
        return self.source_channels // self.groups

    @property
    def weights(self) -> int:
        """Number of elements of the weight."""
        return prod(self.kernel) * self.summed_channels * self.target_channels

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved by itself."""
        return 1 < self.groups == self.source_channels == self.target_channels
