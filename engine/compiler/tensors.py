"""Operands of steps: tensors and tables on the GPU, and their element types."""

from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from ..network.layers import ZEROS, Triple
from ..options import Precision

VECTOR_BYTES = 16
NUMBER_BYTES: dict[Precision, int] = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}
ELEMENTS: dict[Precision, str] = {"fp16": "FP16", "bf16": "BF16", "tf32": "FLOAT", "fp32": "FLOAT"}
"""Element types of tensors by precision, in the kernels' names; all that a kernel depends on."""

PATCHES = "patches"
"""Name of the program's input: float32 [N, C, D, H, W]."""

TRANSLATED = "translated"
"""Name of the program's output: float32 [N, C, D, H, W]."""

COUNTERS = "counters"
"""Name of the constant with which blocks that compute statistics detect when all have finished.

It is an unsigned 0 for each channel, at most as many as a batch has channels.
"""


def stored_channels(channels: int, precision: Precision) -> int:
    """Return the channels rounded up to whole vectors."""
    lanes = VECTOR_BYTES // NUMBER_BYTES[precision]
    return -(-channels // lanes) * lanes


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as stored in memory: [batch, *extents, channels], halo and filling included.

    name: by which memory is planned. extents: (D, H, W). precision: of its numbers. scale: if set,
    the tensor is float and split fp16: each number is stored as two fp16 parts of its product with
    this power of two, of 8 channels first the high parts, then the low ones. excess: of a volume's
    map, voxels past the grid of its blocks, below 0 if it ends before; not in `repr`, by which what
    was measured is found again.
    """

    name: str
    batch: int
    extents: Triple
    channels: int
    precision: Precision
    scale: float | None = None
    excess: Triple = field(default=ZEROS, repr=False)

    @property
    def bytes(self) -> int:
        return self.batch * prod(self.extents) * self.channels * NUMBER_BYTES[self.precision]

    @property
    def whole(self) -> "TensorView":
        """View of the whole tensor."""
        return TensorView(self, self.extents)


@dataclass(frozen=True, slots=True)
class TensorView:
    """The part of a tensor that a step reads or writes.

    extents: (D, H, W) of the view. origin: position of its first voxel; not 0 where the tensor has
    a halo. shuffled: whether the tensor is space-to-depth: it holds cells of 2 x 2 x 2 voxels as 8
    groups of channels. Extents, which are even then, and origin count the voxels. lanes: first and
    end of the channels, None for all; passes over voxels read or write some, and kernels that may
    join write some. They are not in `repr`, by which what was measured of convolutions is found
    again.
    """

    tensor: Tensor
    extents: Triple
    origin: Triple = (0, 0, 0)
    shuffled: bool = False
    lanes: tuple[int, int] | None = field(default=None, repr=False)

    @property
    def channels(self) -> int:
        """Stored channels of the view."""
        if self.lanes is not None:
            first, end = self.lanes
            return end - first
        return self.tensor.channels // 8 if self.shuffled else self.tensor.channels

    @property
    def is_whole(self) -> bool:
        """Whether the view is the tensor exactly as it is stored in memory."""
        is_dense = not self.shuffled and self.lanes is None
        return is_dense and self.extents == self.tensor.extents


@dataclass(frozen=True, slots=True)
class AffineTable:
    """Factor and summand of each channel, float32 [2, patches, channels]; patches 1 serves all.

    name: by which memory is planned.
    """

    name: str
    patches: int
    channels: int

    @property
    def bytes(self) -> int:
        return 2 * self.patches * self.channels * 4


@dataclass(frozen=True, slots=True)
class Region:
    """Patches [first, first + count) of a batch, and the depth at which a slab of them starts.

    plane: that depth.
    """

    first: int
    count: int
    plane: int = 0


Operand: TypeAlias = Tensor | AffineTable
"""Output of a step that other steps read."""
