"""How a model's network is opened for a batch: for tiles, or for volumes at once."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..engine.devices import Device, open_generator, open_volume_generator
from ..engine.generator import AnyGenerator, SharedGenerator, shared_generator
from ..engine.network.graph import Network
from ..engine.network.layers import Triple
from ..engine.options import Precision, Progress, ignore_progress
from ..engine.whole_volume import HostRoom
from .host.memory import available_memory

_MAPS_SHARE, _PINNED_SHARE = 4, 2
"""Half of the free memory goes to the arrays of studies; half of the rest to maps of a network on
the CPU, which has further buffers, and all of it to maps that a card keeps in pinned memory.
"""


def maps_memory() -> int:
    """Bytes of the host that the maps of a volume may take now on the CPU."""
    return available_memory() // _MAPS_SHARE


def pinned_memory() -> int:
    """Bytes of the host that the maps of a card may take now; no system gives pinned ones back."""
    return available_memory() // _PINNED_SHARE


def room_for_maps(device: Device) -> HostRoom:
    """What maps of volumes at once may take of the host."""
    return pinned_memory if device.kind == "cuda" else maps_memory


def shared_network(
    network: Network, device: Device, patch: Triple | None, progress: Progress = ignore_progress
) -> AbstractContextManager[SharedGenerator]:
    """A network on a device for threads to share, open in one precision at a time.

    patch: as of an `Opener`. progress: told of the search for plans.
    """
    opener = Opener(network, device, patch)
    return shared_generator(lambda precision: opener(precision, progress), device.precisions)


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens a network on a device in any precision; can be sent to another process.

    patch: (D, H, W) of tiles; None for volumes at once.
    """

    network: Network
    device: Device
    patch: Triple | None

    def __call__(
        self, precision: Precision, progress: Progress = ignore_progress
    ) -> AbstractContextManager[AnyGenerator]:
        if self.patch is None:
            room = room_for_maps(self.device)
            return open_volume_generator(self.network, self.device, precision, room, progress)
        return open_generator(self.network, self.device, precision, self.patch, progress)
