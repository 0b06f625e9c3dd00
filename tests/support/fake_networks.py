"""Networks that tests open in place of a model's."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.generator import AnyGenerator
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Precision, Progress
from cuda_cyclegan.pipelines.run.networks import Networks

OpenFake = Callable[[Precision, Progress], AbstractContextManager[Any]]


def networks_opened_by(opened: OpenFake, *precisions: Precision) -> Networks:
    """Networks of a device with these precisions, each of which `opened` opens."""

    def open_network(
        _: Network, __: Device, ___: Triple | None, precision: Precision, progress: Progress
    ) -> AbstractContextManager[AnyGenerator]:
        return opened(precision, progress)

    return Networks(Device("cpu", "fp32", precisions or ("fp32",)), open_network=open_network)


def networks_of(generator: Any) -> Networks:
    """Networks of which each is this generator, which stays open."""
    return networks_opened_by(lambda *_: nullcontext(generator))
