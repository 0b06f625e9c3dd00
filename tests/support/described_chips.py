"""Lists cuDNN's plans for all convolutions of generators, on chips that are only described.

A program of its own, as it needs a driver, if only one in host memory.
"""

import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from support.described_cards import CARDS
from support.gpu_networks import random_network

from cuda_cyclegan.engine.compiler.card_properties import CardProperties
from cuda_cyclegan.engine.compiler.lowering.lowering import lower
from cuda_cyclegan.engine.compiler.memory.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.steps import Convolution, Convolve
from cuda_cyclegan.engine.cuda import cudnn as convolutions
from cuda_cyclegan.engine.cuda.cudnn import ConvolutionPlans
from cuda_cyclegan.engine.errors import CudaError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.options import Precision

NETWORKS = {
    "ResNet": ResNetSpec(1, 1, 32, 1),
    "U-Net": UNetSpec(1, 1, 32, 5),
    "dilated, strided in-plane": ResNetSpec(1, 1, 32, 1, block_dilation=2, stride=(1, 2, 2)),
}
PATCH = (64, 64, 64)
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "tf32", "fp32")


@dataclass(frozen=True)
class Chip:
    """What cuDNN asks of a chip that no program here is fitted to. clocks are in kHz."""

    name: str
    clock: int
    memory_clock: int
    memory_bus: int
    memory_gib: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int


CHIPS = {
    "7.5": Chip("Tesla T4", 1_590_000, 5_001_000, 256, 15, 1024, 16),
    "8.0": Chip("NVIDIA A100-SXM4-80GB", 1_410_000, 1_593_000, 5120, 80, 2048, 32),
    "8.6": Chip("NVIDIA A10", 1_695_000, 6_251_000, 384, 23, 1536, 16),
    "8.9": Chip("NVIDIA L4", 2_040_000, 6_251_000, 192, 23, 1536, 24),
    "9.0": Chip("NVIDIA H200", 1_980_000, 3_201_000, 6144, 141, 2048, 32),
    "10.0": Chip("NVIDIA B200", 1_965_000, 3_996_000, 8192, 180, 2048, 32),
    "12.0": Chip("NVIDIA RTX PRO 6000", 2_617_000, 14_001_000, 512, 96, 1536, 24),
}


def told(chip: Chip, card: CardProperties) -> dict[str, Any]:
    """All that cuDNN wants to know of a chip, under its own names."""
    return {
        "deviceVer": 100 * card.capability[0] + 10 * card.capability[1],
        "driverVer": 12080,
        "deviceName": chip.name,
        "cudaDeviceId": 0,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "multiProcessorCount": card.multiprocessors,
        "warpSize": 32,
        "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "maxCtasPerSM": chip.blocks_per_multiprocessor,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": chip.threads_per_multiprocessor,
        "regsPerBlock": 65536,
        "maxRegistersPerSM": 65536,
        "maxSharedMemoryPerBlock": 48 << 10,
        "maxSharedMemoryPerBlockOptin": card.shared_per_block,
        "reservedSharedMemoryPerBlock": card.shared_per_multiprocessor - card.shared_per_block,
        "supportCoopLaunch": 1,
        "smClockRateKHz": chip.clock,
        "memClockRateKHz": chip.memory_clock,
        "memoryBusWidth": chip.memory_bus,
        "l2CacheSize": card.l2_bytes,
        "totalGlobalMem": chip.memory_gib << 30,
    }


class Described:
    """cuDNN's frontend, for a chip that is not there."""

    def __init__(self, frontend: Any, chip: Chip, card: CardProperties) -> None:
        self._frontend = frontend
        self._chip = frontend.create_device_properties(json.dumps(told(chip, card)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontend, name)

    def pygraph(self, **settings: Any) -> Any:
        del settings["handle"]
        return Graph(self._frontend.pygraph(device_property=self._chip, **settings))


class Graph:
    """A graph that is not asked for what only a device can tell."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def check_support(self) -> None: ...


def plans(shape: Convolution) -> int:
    """How many there are."""
    try:
        return ConvolutionPlans(cast("Any", SimpleNamespace(handle=None)), shape).count
    except CudaError:
        return 0


def main() -> None:
    """Arguments: compute capabilities, such as 9.0. Prints counts by them, precision, network."""
    frontend = convolutions.cudnn
    found: dict[str, dict[str, dict[str, list[int]]]] = {}
    for text in sys.argv[1:]:
        card = CARDS[text]
        convolutions.cudnn = Described(frontend, CHIPS[text], card)
        found[text] = {}
        for precision in PRECISIONS:
            layout = next(ProgramRequest(PATCH, 1, precision, card).layouts())
            found[text][precision] = {}
            for name, spec in NETWORKS.items():
                steps = lower(random_network(build(spec), seed=0), layout, card).steps
                shapes = dict.fromkeys(s.shape for s in steps if isinstance(s, Convolve))
                counts = [plans(shape) for shape in shapes if not shape.split_fp16]
                found[text][precision][name] = counts
    print(json.dumps(found))


if __name__ == "__main__":
    main()
