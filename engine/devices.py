"""Choice of the device. Imports nothing heavy until a generator is opened."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from .cuda.user_cache import cache_folder
from .errors import DeviceUnavailableError
from .options import (
    BF16_CAPABILITY,
    NO_LIMITS,
    CudaLimits,
    Precision,
    Progress,
    SearchSettings,
    ignore_progress,
)
from .probe.gpus import OLDEST_CAPABILITY, CudaDevice, cuda_devices, why_no_cuda

if TYPE_CHECKING:
    from .cpu.slabs import SlabPlan
    from .cuda.open_gpu import CudaOptions
    from .cuda.patches.device_plan import DevicePlan
    from .generator import PatchGenerator, VolumeGenerator
    from .network.graph import Graph, Network
    from .network.layers import Triple
    from .whole_volume import HostBudget, VolumePlan

_PROVIDER = "onnxruntime:"
_CUDA_ITSELF = 640 << 20
"""Bytes of GPU memory for context, cuDNN and their kernels; a little over 537 MiB on an H200."""


@dataclass(frozen=True, slots=True)
class Device:
    """An available device. note: why "auto" chose it, for the user; None if it was requested.

    index: which of the CUDA devices. bus: its PCI address. limits: of the memory and tuning it may
    use. kind: CPU, CUDA or another execution provider of ONNX Runtime. provider: which one.
    default_precision, precisions: of the network's arithmetic here.
    """

    kind: Literal["cpu", "cuda", "onnxruntime"]
    default_precision: Precision
    precisions: tuple[Precision, ...]
    note: str | None = None
    index: int = 0
    limits: CudaLimits = NO_LIMITS
    provider: str = ""
    bus: str = ""

    @property
    def name(self) -> str:
        """Name by which a user selects the device."""
        match self.kind:
            case "cpu":
                return "cpu"
            case "cuda":
                return f"cuda:{self.index}"
            case "onnxruntime":
                return f"{_PROVIDER}{self.provider}"


def choose_device(requested: str, limits: CudaLimits = NO_LIMITS) -> Device:
    """Return the first of the devices that `choose_devices` finds."""
    return choose_devices(requested, limits)[0]


def choose_devices(
    requested: str, limits: CudaLimits = NO_LIMITS, gpus: Collection[CudaDevice] = ()
) -> tuple[Device, ...]:
    """Return the devices for "auto", "cpu", "cuda" (all usable GPUs), "cuda:0,1" or
    "onnxruntime:PROVIDER".

    A GPU that is named several times is returned as often, each time with its part of the memory.
    gpus: usable GPUs, if the caller has already listed them; else the driver is queried. Only
    "auto" falls back on the CPU, and it uses one GPU; another device that was requested and cannot
    be used raises DeviceUnavailableError.
    """
    if requested == "cpu":
        return (_on_cpu(limits),)
    if requested.startswith(_PROVIDER):
        return (_on_provider(requested.removeprefix(_PROVIDER)),)
    reason = None if gpus else why_no_cuda()
    if reason is None:
        return _cuda(requested, limits, gpus or cuda_devices())
    if requested == "auto":
        return (_on_cpu(limits, f"no CUDA device is used: {reason}"),)
    raise DeviceUnavailableError(
        f"Device {requested} cannot be used: {reason}; use setting device=cpu."
    )


def _on_cpu(limits: CudaLimits, note: str | None = None) -> Device:
    from .cpu.openvino_support import has_bf16

    precisions: tuple[Precision, ...] = ("fp32", "bf16") if has_bf16() else ("fp32",)
    return Device("cpu", "fp32", precisions, note, limits=limits)


def other_providers() -> tuple[Device, ...]:
    """Return further devices of ONNX Runtime besides the CPU; they may turn out not to work."""
    from .providers import installed_providers

    return tuple(_on_provider(name) for name in installed_providers() if name != "CPU")


def _on_provider(provider: str) -> Device:
    from .providers import check_installed

    check_installed(provider)
    return Device("onnxruntime", "fp32", ("fp32",), provider=provider)


def _cuda(requested: str, limits: CudaLimits, gpus: Collection[CudaDevice]) -> tuple[Device, ...]:
    usable = {gpu.index: gpu for gpu in gpus if gpu.capability >= OLDEST_CAPABILITY}
    if requested == "auto":
        first = usable[min(usable)]
        return (_on_gpu(first, limits, f"the first usable GPU, {first.name}"),)
    _, _, numbers = requested.partition(":")
    chosen = [*map(int, numbers.split(","))] if numbers else [*usable]
    for index in chosen:
        if index not in usable:
            there = ", ".join(f"cuda:{number} ({d.name})" for number, d in usable.items())
            raise DeviceUnavailableError(f"Device cuda:{index} does not exist; use {there} or cpu.")
    return tuple(
        _on_gpu(usable[index], _part_of_memory(usable[index], limits, chosen.count(index)))
        for index in chosen
    )


def _on_gpu(gpu: CudaDevice, limits: CudaLimits, note: str | None = None) -> Device:
    precisions = _precisions(gpu)
    return Device("cuda", "fp16", precisions, note, gpu.index, limits, bus=gpu.bus)


def _precisions(gpu: CudaDevice) -> tuple[Precision, ...]:
    if gpu.capability >= BF16_CAPABILITY:
        return "fp16", "bf16", "tf32", "fp32"
    return "fp16", "fp32"


def in_a_process_of_its_own(device: Device) -> Device:
    """Return a device as numbered in a process that sees no other GPU, see `isolated_device`."""
    return replace(device, index=0) if device.kind == "cuda" else device


def with_half_the_memory(device: Device) -> Device:
    """Return a device for one of two networks that are open on it concurrently.

    Devices other than GPUs have no memory limit of their own.
    """
    if device.kind != "cuda":
        return device
    [gpu] = [gpu for gpu in cuda_devices() if gpu.index == device.index]
    return replace(device, limits=_part_of_memory(gpu, device.limits, networks=2))


def _part_of_memory(
    gpu: CudaDevice, limits: CudaLimits, processes: int = 1, networks: int = 1
) -> CudaLimits:
    """Return the limits for one of so many networks in each of so many processes on a GPU.

    Each may use its share of the memory limit, or of the memory that is free now. So the order in
    which they start does not matter. Each process has a CUDA context.
    """
    parts = processes * networks
    if parts == 1:
        return limits
    free = gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes
    room = max(free - processes * _CUDA_ITSELF, 0)
    return replace(limits, vram=(room if limits.vram is None else min(room, limits.vram)) // parts)


def open_generator(
    network: "Network",
    device: Device,
    precision: Precision,
    patch: "Triple",
    progress: Progress = ignore_progress,
) -> "AbstractContextManager[PatchGenerator]":
    """Open the network, ready to run on the device within a `with` block.

    patch: extents (D, H, W) of the patches, for which a CUDA device compiles it and another
    provider of ONNX Runtime is checked. progress: callback of the search for fast plans, if there
    is one.
    """
    _check_precision(device, precision)
    if device.kind == "cuda":
        from .cuda.patches.patch_generator import open_cuda_generator

        options = cuda_options(device, precision, progress)
        return open_cuda_generator(network, options, patch, device.limits.batch)
    if device.kind == "onnxruntime":
        from .providers import open_checked_generator

        return open_checked_generator(network, device.provider, patch)
    from .cpu.openvino_support import pays

    if precision != "fp32" or pays(network.graph, patch):
        from .cpu.openvino import open_openvino_generator

        return open_openvino_generator(network, precision, device.limits.threads)
    from .cpu.session import open_cpu_generator

    return open_cpu_generator(network, device.limits.threads)


def _check_precision(device: Device, precision: Precision) -> None:
    """Raise ValueError for a precision that a device does not support."""
    if precision not in device.precisions:
        raise ValueError(f"the {device.kind} device does not compute in {precision}")


def why_not_whole_volume(graph: "Graph", device: Device) -> str | None:
    """Return why a device cannot run whole-volume inference, as a sentence; None if it can.

    Whether the memory suffices depends on the volume, see `plan_volume`.
    """
    advice = "use setting inference=patches"
    if graph.patch is not None:
        from .network.graph import times  # late, as NumPy comes with it

        return f"The network accepts only patches of {times(graph.patch)}; {advice}."
    if device.kind == "cuda":
        from .whole_volume import volume_refusal

        refusal = volume_refusal(graph)
        return refusal and (
            f"This network does not support whole-volume inference on a GPU: {refusal}; {advice}, "
            "or setting device=cpu."
        )
    if device.kind == "onnxruntime":
        return (
            f"Device {device.name} supports only patch inference; {advice}, or setting device=cpu."
        )
    return None


def open_volume_generator(
    network: "Network",
    device: Device,
    precision: Precision,
    host_budget: "HostBudget",
    progress: Progress = ignore_progress,
) -> "AbstractContextManager[VolumeGenerator]":
    """Open the network for whole-volume inference on the device within a `with` block.

    host_budget: bytes for maps on the CPU, or for those that a GPU stores in pinned memory.
    progress: as in `open_generator`. Raises DeviceUnavailableError if `why_not_whole_volume`
    returns a reason.
    """
    if reason := why_not_whole_volume(network.graph, device):
        raise DeviceUnavailableError(reason)
    _check_precision(device, precision)
    if device.kind == "cuda":
        from .cuda.volume.volume_generator import open_cuda_volume_generator

        options = cuda_options(device, precision, progress, host_budget)
        return open_cuda_volume_generator(network, options)
    from .cpu.slab_generator import open_cpu_volume_generator

    return open_cpu_volume_generator(network, host_budget(), device.limits.threads, precision)


def plan_volume(
    network: "Network",
    device: Device,
    precision: Precision,
    extents: "Triple",
    host_budget: "HostBudget",
) -> "VolumePlan | SlabPlan":
    """Return what a generator of `open_volume_generator` would need for a volume (D, H, W).

    Raises DeviceUnavailableError, PatchShapeError, and DeviceMemoryError if it does not fit.
    """
    if reason := why_not_whole_volume(network.graph, device):
        raise DeviceUnavailableError(reason)
    _check_precision(device, precision)
    if device.kind == "cuda":
        from .cuda.volume.volume_generator import planned_volume

        options = cuda_options(device, precision, host_budget=host_budget)
        return planned_volume(network, options, extents)
    from .cpu.slabs import plan_slabs

    return plan_slabs(network.graph, extents, host_budget())


def plan_device(
    network: "Network", device: Device, precision: Precision, patch: "Triple"
) -> "DevicePlan | None":
    """Return what `open_generator` would need on a GPU; None for ONNX Runtime, which has no plan.

    Raises DeviceMemoryError if it would not fit.
    """
    if device.kind != "cuda":
        return None
    from .cuda.patches.patch_generator import planned_patches

    return planned_patches(network, cuda_options(device, precision), patch, device.limits.batch)


def cuda_options(
    device: Device,
    precision: Precision,
    progress: Progress = ignore_progress,
    host_budget: "HostBudget | None" = None,
) -> "CudaOptions":
    """Return how a generator on a GPU is compiled, with the device's limits."""
    from .cuda.open_gpu import CudaOptions

    limits = device.limits
    search = SearchSettings(limits.tune, limits.tune_seconds, progress)
    options = CudaOptions(precision, device.index, limits.vram, cache_folder(), search)
    return options if host_budget is None else replace(options, host_budget=host_budget)
