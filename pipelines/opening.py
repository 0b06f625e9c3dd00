"""How a model's network is opened for a batch: for tiles, or for volumes at once."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..engine.cuda.plan_cache import Progress, unheard
from ..engine.devices import Device, open_generator, open_volume_generator
from ..engine.generator import AnyGenerator
from ..engine.network.graph import Network
from ..engine.network.layers import Triple
from ..engine.options import Precision
from .host.memory import available_memory

_MAPS_SHARE = 4
"""Half of the free memory goes to the arrays of studies; half of the rest to maps of a network."""


def maps_memory() -> int:
    """Bytes of the host that the maps of a volume may take now."""
    return available_memory() // _MAPS_SHARE


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens a network on a device in any precision; can be sent to another process.

    patch: (D, H, W) of tiles; None for volumes at once.
    """

    network: Network
    device: Device
    patch: Triple | None

    def __call__(
        self, precision: Precision, progress: Progress = unheard
    ) -> AbstractContextManager[AnyGenerator]:
        if self.patch is None:
            return open_volume_generator(
                self.network, self.device, precision, maps_memory(), progress
            )
        return open_generator(self.network, self.device, precision, self.patch, progress)
