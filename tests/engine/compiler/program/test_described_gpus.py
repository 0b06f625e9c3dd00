"""Programs for GPUs that are only described: what they take, and what is said where they do not
fit.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest
from support.described_gpus import DESCRIBED, DescribedGpu
from support.zero_weights import zero_network

from cuda_cyclegan.engine.compiler.program.fitting import (
    MemoryBudget,
    ProgramRequest,
    fit,
    usual_batch,
)
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.devices import _precisions
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.probe.gpus import CudaDevice

SPECS = {"ResNet": ResNetSpec(1, 1, 64, 9), "U-Net": UNetSpec(1, 1, 64, 5)}
PATCH = (128, 128, 128)
CONTEXT = 600 << 20
"""Bytes that CUDA itself takes of a GPU."""


@cache
def network_of(name: str) -> Network:
    return zero_network(build(SPECS[name]))


@dataclass(frozen=True)
class Way:
    name: str = "any"
    workspace: int = 0


def chosen(shapes: list[ConvShape], _workspace: int) -> Mapping[ConvShape, Way]:
    return dict.fromkeys(shapes, Way())


def precisions_of(gpu: DescribedGpu) -> tuple[Precision, ...]:
    """Return the precisions that `devices` shows."""
    return _precisions(CudaDevice(0, gpu.name, gpu.capability, 0, None, "CUDA 12.8"))


@pytest.mark.parametrize("gpu", DESCRIBED.values(), ids=DESCRIBED)
@pytest.mark.parametrize("name", SPECS)
def test_a_wide_generator_fits_on_every_gpu_in_every_precision_that_it_has(
    name: str, gpu: DescribedGpu
) -> None:
    network, free = network_of(name), (gpu.memory << 30) - CONTEXT
    batch = usual_batch(network.graph, PATCH, gpu.multiprocessors)
    for precision in precisions_of(gpu):
        wanted = ProgramRequest(PATCH, batch, precision, gpu.properties)
        fitted = fit(network, wanted, MemoryBudget(free), chosen)
        assert 0 < fitted.memory.bytes <= free // 2
        assert 1 <= fitted.lowered.layout.batch <= batch


FEW = "Tesla T4", "Jetson Orin Nano", "NVIDIA RTX PRO 6000"
"""An old one, the smallest and the widest."""


@pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in DESCRIBED],
)
def test_named_patch_fits_where_another_is_too_large(name: str) -> None:
    """Other programs may hold all but a little of the GPU."""
    gpu = DESCRIBED[name]
    network, room = network_of("ResNet"), MemoryBudget(512 << 20)
    wanted = ProgramRequest((160, 160, 160), 1, "fp16", gpu.properties)
    with pytest.raises(DeviceMemoryError, match="end other programs on the GPU") as raised:
        fit(network, wanted, room, chosen)
    named = re.search(r"\(setting patch=(\d+),(\d+),(\d+) fits\)", str(raised.value))
    assert named
    depth, height, width = map(int, named.groups())
    fit(network, replace(wanted, patch=(depth, height, width)), room, chosen)
