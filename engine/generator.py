"""What computes patches, a sliding window, or a volume at once: protocols of all devices."""

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from .network.graph import Graph
from .network.layers import FloatArray, Triple
from .scaling import Stored
from .sliding_window import PatchWindow, Timing


class Generator(Protocol):
    """A generator ready to run on some device."""

    @property
    def graph(self) -> Graph:
        """What it computes."""
        ...

    @property
    def device(self) -> str:
        """The device in words, for reports."""
        ...

    def __call__(self, patches: FloatArray) -> FloatArray:
        """Translate patches float32 [N, C, D, H, W] of network intensity, typically [-1, 1].

        Returns [N, C', D, H, W]. Raises PrecisionOverflowError if a result is not finite.
        """
        ...


@runtime_checkable
class WindowStreaming(Protocol):
    """A generator that cuts and blends on its own device, too."""

    def run_window(
        self,
        source: Stored,
        window: PatchWindow,
        target: Stored,
        on_tiles: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`; on_tiles: told how many more tiles are done.

        Both are of VOXEL_TYPES. Raises DeviceMemoryError, before any tile is done, if the device
        has no room for it, and PrecisionOverflowError if a result is not finite.
        """
        ...


@runtime_checkable
class VolumeGenerator(Protocol):
    """A generator that runs the network once over a volume of any extents, without tiles."""

    @property
    def graph(self) -> Graph:
        """What it computes."""
        ...

    @property
    def device(self) -> str:
        """The device in words, for reports."""
        ...

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target` [C', D, H, W].

        The network sees the volume continued behind its last voxels, by repeating them, to a
        multiple of the network's stride; what it makes of them is left out. on_share: told the
        share of the work that is done. Raises PatchShapeError, DeviceMemoryError before anything
        is computed, and PrecisionOverflowError if a result is not finite.
        """
        ...


@runtime_checkable
class ReadyBeforehand(Protocol):
    """A generator of volumes that takes memory for one while its voxels are still read."""

    def make_ready(self, extents: Triple) -> None:
        """Take what a volume (D, H, W) needs. Raises what `translate_volume` would raise of it."""
        ...


AnyGenerator: TypeAlias = Generator | VolumeGenerator
"""Of patches, or of whole volumes."""
