"""Tensors that the lowering has not written yet: expressions over tensors that are in memory."""

from dataclasses import dataclass

from .graph import Pad, PadMode, Triple, Upsample
from .steps import IDENTITY, Activation, Table, Tensor, View


@dataclass(frozen=True, slots=True)
class Part:
    """activation(source * factor + summand) + residual.

    is_biased_only: the table does no more than add a convolution's bias.
    """

    source: View
    table: Table | None = None
    activation: Activation = IDENTITY
    residual: View | None = None
    is_biased_only: bool = False

    @property
    def is_bare(self) -> bool:
        """Whether the part is its source."""
        return self.table is None and self.activation == IDENTITY and self.residual is None

    @property
    def is_linear(self) -> bool:
        """Whether the part is its source, but for a bias."""
        return self.is_bare or self.is_biased_only


@dataclass(frozen=True, slots=True)
class Value:
    """A node's tensor: parts one after another as channels, then sampling, then padding.

    slots: stored position of each channel. unpadded: the node that the padding was put around.
    """

    parts: tuple[Part, ...]
    slots: tuple[int, ...]
    extents: Triple
    sampling: Upsample | None = None
    pad: Pad | None = None
    unpadded: str | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether neither sampling nor padding is left to do."""
        return self.sampling is None and self.pad is None

    @property
    def is_simple(self) -> bool:
        """Whether one expression over voxels gives the value."""
        return len(self.parts) == 1 and self.is_in_place

    @property
    def is_bare(self) -> bool:
        """Whether the value is in memory."""
        return self.is_simple and self.parts[0].is_bare

    @property
    def stored(self) -> int:
        """Stored channels."""
        return sum(part.source.channels for part in self.parts)

    @property
    def sampled_extents(self) -> Triple:
        """Extents before padding."""
        if self.pad is None:
            return self.extents
        sizes = zip(self.extents, self.pad.before, self.pad.after, strict=True)
        depth, height, width = (extent - before - after for extent, before, after in sizes)
        return depth, height, width

    @property
    def border(self) -> PadMode:
        """How the value continues past its extents."""
        return self.pad.mode if self.pad else "zero"


def in_memory(view: View, slots: tuple[int, ...]) -> Value:
    """The value that a view holds."""
    return Value((Part(view),), slots, view.extents)


def whole(tensor: Tensor) -> View:
    """All of a tensor."""
    return View(tensor, tensor.extents)


def negative(triple: Triple) -> Triple:
    """The triple with its signs turned."""
    return -triple[0], -triple[1], -triple[2]
