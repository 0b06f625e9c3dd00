"""Counts cuDNN's plans for all convolutions of generators, on chips that are only described, and
makes each of them anew by its name.

A program of its own, as it needs a driver, if only one in host memory.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any, cast

from support.described_gpus import DESCRIBED, DescribedGpu
from support.gpu_networks import ODD_GRAPHS, random_network

from cuda_cyclegan.engine.compiler.program.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import ConvShape, planned
from cuda_cyclegan.engine.cuda import cudnn as convolutions
from cuda_cyclegan.engine.cuda.cudnn import ConvolutionPlans
from cuda_cyclegan.engine.errors import CudaError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.options import Precision

NETWORKS = {
    "ResNet": build(ResNetSpec(1, 1, 32, 1)),
    "U-Net": build(UNetSpec(1, 1, 32, 5)),
    "dilated, strided in-plane": build(ResNetSpec(1, 1, 32, 1, block_dilation=2, stride=(1, 2, 2))),
    "groups": ODD_GRAPHS["groups of whole vectors"],
    "each channel by itself": ODD_GRAPHS["each channel by itself"],
    "transposed with dilation": ODD_GRAPHS["transposed with dilation"],
}
PATCH = (64, 64, 64)
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "tf32", "fp32")


def properties_of(gpu: DescribedGpu) -> dict[str, Any]:
    """All that cuDNN wants to know of a GPU, under its own names."""
    properties, (threads, blocks) = gpu.properties, gpu.limits
    reserved = properties.shared_per_multiprocessor - properties.shared_per_block
    return {
        "deviceVer": 100 * gpu.capability[0] + 10 * gpu.capability[1],
        "driverVer": 12080,
        "deviceName": gpu.name,
        "cudaDeviceId": 0,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "multiProcessorCount": gpu.multiprocessors,
        "warpSize": 32,
        "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "maxCtasPerSM": blocks,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": threads,
        "regsPerBlock": 65536,
        "maxRegistersPerSM": 65536,
        "maxSharedMemoryPerBlock": 48 << 10,
        "maxSharedMemoryPerBlockOptin": properties.shared_per_block,
        "reservedSharedMemoryPerBlock": reserved,
        "supportCoopLaunch": 1,
        "smClockRateKHz": 1000 * gpu.clock,
        "memClockRateKHz": 1000 * gpu.memory_clock,
        "memoryBusWidth": gpu.bus,
        "l2CacheSize": properties.l2_bytes,
        "totalGlobalMem": gpu.memory << 30,
    }


class Described:
    """cuDNN's frontend, for a chip that is not there."""

    def __init__(self, frontend: Any, gpu: DescribedGpu) -> None:
        self._frontend = frontend
        self._chip = frontend.create_device_properties(json.dumps(properties_of(gpu)))

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


LIBRARY = cast("Any", SimpleNamespace(handle=None))


def plans(shape: ConvShape) -> tuple[int, int, list[str]]:
    """Return the number of plans, how many of them their names make, and why others are not made.

    The frontend has no name for some knobs.
    """
    try:
        offered = ConvolutionPlans(LIBRARY, shape)
    except CudaError:
        return 0, 0, []
    built, failed = 0, list[str]()
    for index in range(offered.count):
        try:
            built += ConvolutionPlans(LIBRARY, shape, offered.name(index)).count
        except CudaError as error:
            failed += [str(error)] if "no name for knobs" not in str(error) else []
    return offered.count, built, failed


def main() -> None:
    """Arguments: names of GPUs. Prints what `plans` finds by them, precision and network."""
    frontend = convolutions.cudnn
    found: dict[str, dict[str, dict[str, list[tuple[int, int, list[str]]]]]] = {}
    networks = {name: random_network(graph, seed=0) for name, graph in NETWORKS.items()}
    for text in sys.argv[1:]:
        gpu = DESCRIBED[text].properties
        convolutions.cudnn = Described(frontend, DESCRIBED[text])
        found[text] = {}
        for precision in PRECISIONS:
            layout = ProgramRequest(PATCH, 1, precision, gpu).fastest
            found[text][precision] = {}
            for name, network in networks.items():
                steps = lower(network, layout, gpu).steps
                shapes = dict.fromkeys(s.shape for s in planned(steps))
                listed = [plans(shape) for shape in shapes if not shape.split_fp16]
                found[text][precision][name] = listed
    print(json.dumps(found))


if __name__ == "__main__":
    main()
