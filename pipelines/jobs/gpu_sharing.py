"""Other programs on a GPU, to which a worker may yield."""

import os
from collections.abc import Iterable
from typing import Any

import pynvml as _pynvml

from ...engine.probe.gpus import visible_name
from ..errors import QueueError
from .events import YieldLimits

pynvml: Any = _pynvml  # the package ships no types


class OtherPrograms:
    """Other processes on one GPU.

    device: in CUDA's numbering, `cuda:N`. The driver must show this process under its own id, which
    it does not in a container without the host's ids.
    """

    def __init__(self, device: str, yield_limits: YieldLimits) -> None:
        self._limits = yield_limits
        try:
            pynvml.nvmlInit()
            self._gpu = _gpu(device)
        except pynvml.NVMLError as error:
            raise QueueError(
                f"The load of other programs on {device} is unknown ({error}); omit setting "
                "yield-to-others."
            ) from error
        self._last_sample = 0

    def hindrance(self) -> str | None:
        """Return why no job should start now, or None."""
        try:
            memory, load = self._memory(), self._load()
        except pynvml.NVMLError as error:
            return f"the GPU does not respond ({error})"
        if memory > self._limits.memory:
            return f"other programs use {memory / 2**20:.0f} MiB of GPU memory"
        if load > self._limits.load:
            return f"other programs keep the GPU busy {load} % of the time"
        return None

    def _memory(self) -> int:
        held: dict[int, int] = {}
        for ask in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            held |= {process.pid: process.usedGpuMemory or 0 for process in ask(self._gpu)}
        return sum(memory for process, memory in held.items() if process != os.getpid())

    def _load(self) -> int:
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._gpu, self._last_sample)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_NotSupported):
            return 0  # no new sample, or a part of a GPU, for which only memory counts
        self._last_sample = max((sample.timeStamp for sample in samples), default=self._last_sample)
        return _sum_of_newest(sample for sample in samples if sample.pid not in (0, os.getpid()))


def _sum_of_newest(samples: Iterable[Any]) -> int:
    newest = {sample.pid: sample for sample in sorted(samples, key=lambda one: one.timeStamp)}
    return sum(sample.smUtil for sample in newest.values())


def _gpu(device: str) -> Any:
    """Return the driver's handle; CUDA_VISIBLE_DEVICES renumbers GPUs for CUDA only."""
    name = visible_name(int(device.partition(":")[2] or 0))
    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name.encode())
