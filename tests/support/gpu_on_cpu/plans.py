"""A stand-in for cuDNN's plans of a convolution, each of which may have a fault."""

from collections.abc import Callable
from typing import Any

from support.gpu_on_cpu.memory import array_at
from support.gpu_on_cpu.numpy_kernels import NUMBER, convolve

from cuda_cyclegan.engine.compiler.kernel_source import structure
from cuda_cyclegan.engine.compiler.kernels.convolutions import convolution_geometry
from cuda_cyclegan.engine.compiler.steps import ConvShape

Fault = Callable[[Any], None]
"""Function that spoils a right result [N, D, H, W, K]."""


class Plans:
    """Plans that cuDNN offers on that GPU: a right result, then the fault of the plan's name."""

    def __init__(self, shape: ConvShape, faults: dict[str, Fault | None]) -> None:
        self._shape = shape
        self._faults = list(faults.items())
        self.count = len(faults)
        self.runs = 0

    def name(self, index: int) -> str:
        return self._faults[index][0]

    def build(self, _index: int) -> int:
        return 0

    def run(self, index: int, source: int, weight: int, target: int, _workspace: int) -> None:
        self.runs += 1
        shape = self._shape
        convolve(
            structure("convolve.cu", "Convolve")(
                source=source,
                weight=weight,
                target=target,
                **convolution_geometry(shape),
                patches=shape.batch,
                inputs=shape.summed_channels,
                outputs=shape.target_channels // shape.groups,
            )
        )
        fault = self._faults[index][1]
        if fault:
            fault(
                array_at(target, NUMBER, shape.batch, *shape.target_extents, shape.target_channels)
            )
