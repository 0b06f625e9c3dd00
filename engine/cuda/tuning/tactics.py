"""Tactics for a convolution: cuDNN's plans, and the custom kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ...compiler.kernels.step_launches import launches
from ...compiler.steps import Conv, ConvShape
from ...compiler.tensors import Tensor
from ...errors import CudaError, DeviceMemoryError
from ...network.graph import times
from ..cudnn import ConvolutionPlans
from ..open_gpu import OpenGpu
from .cache import CUSTOM

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Tactic:
    """A convolution that is ready to run: a built cuDNN plan, or the custom kernel without plans.

    index: of the plan among `plans`. workspace: bytes that it takes besides its tensors.
    """

    plans: ConvolutionPlans | None
    index: int
    workspace: int

    @property
    def name(self) -> str:
        """cuDNN's name of the plan, or `CUSTOM`."""
        return self.plans.name(self.index) if self.plans else CUSTOM


CUSTOM_TACTIC = Tactic(None, 0, 0)


def plans_of(
    gpu: OpenGpu, shape: ConvShape, name: str | None = None, *, is_quick: bool = False
) -> ConvolutionPlans | None:
    """Return cuDNN's plans for a convolution, or the plan of that name; None if it has none.

    is_quick: whether those of its first heuristic are enough.
    """
    if shape.split_fp16:
        return None
    return unless_refused(lambda: ConvolutionPlans(gpu.library, shape, name, is_quick=is_quick))


def distinct(plans: ConvolutionPlans | None) -> dict[str, int]:
    """Return the plans' indices by name, without those that an earlier heuristic has named."""
    first: dict[str, int] = {}
    if plans is not None:
        for index in range(plans.count):
            first.setdefault(plans.name(index), index)
    return first


def built(plans: ConvolutionPlans, index: int, workspace: int) -> Tactic | None:
    """Return a plan that is built; None if it cannot be, or needs more workspace."""
    size = unless_refused(lambda: plans.build(index))
    return Tactic(plans, index, size) if size is not None and size <= workspace else None


def named(plans: ConvolutionPlans | None, name: str, workspace: int) -> Tactic | None:
    """Return the tactic of that name if it is still offered, builds and fits the workspace."""
    if name == CUSTOM:
        return CUSTOM_TACTIC
    if plans is None or (index := distinct(plans).get(name)) is None:
        return None
    return built(plans, index, workspace)


def run_of(
    gpu: OpenGpu, shape: ConvShape, tactic: Tactic, addresses: tuple[int, int, int, int]
) -> Callable[[], None]:
    """Return what queues a run; addresses: of source, weight, target and workspace."""
    if tactic.plans is None:
        return partial(_run_custom_kernel, gpu, shape, addresses)
    return partial(tactic.plans.run, tactic.index, *addresses)


def _run_custom_kernel(
    gpu: OpenGpu, shape: ConvShape, addresses: tuple[int, int, int, int]
) -> None:
    source, target = lone_tensors(shape)
    step = Conv.of_shape("trial", shape, source, target, "weight")
    names: dict[str, int] = dict(zip(("source", "weight", "target"), addresses[:3], strict=True))
    for launch in launches(step, lambda name: names[name], gpu.kernels.gpu):
        gpu.kernels.launch(gpu.stream, launch)


def lone_tensors(shape: ConvShape) -> tuple[Tensor, Tensor]:
    """Return source and target of a convolution that is run by itself."""
    scale = 1.0 if shape.split_fp16 else None
    batch, precision = shape.batch, shape.precision
    return (
        Tensor("source", batch, shape.source_extents, shape.source_channels, precision, scale),
        Tensor("target", batch, shape.target_extents, shape.target_channels, precision),
    )


def unless_refused(attempt: Callable[[], _Result]) -> _Result | None:
    """Return the attempt's result; None if library or memory refuse it and the context lives."""
    try:
        return attempt()
    except DeviceMemoryError:
        return None
    except CudaError as error:
        if error.is_sticky:
            raise
        return None


def described(shape: ConvShape) -> str:
    """Return a convolution in words, for progress and messages."""
    kind = "transposed convolution" if shape.transposed else "convolution"
    channels = f"{shape.source_channels} to {shape.target_channels} channels"
    if shape.groups > 1:
        channels += f" in {shape.groups} groups"
    extents = f"{shape.batch} x {times(shape.source_extents)}"
    return f"{kind} {times(shape.kernel)}, {channels}, {extents}"
