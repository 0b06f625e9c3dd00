"""NVIDIA GPUs: whether each is used, its free memory, and the processes that use the rest."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...engine.probe.gpus import (
    OLDEST_CAPABILITY,
    CudaDevice,
    cuda_devices,
    driver_fault,
    why_no_cuda,
)
from ..host.processes import owner_of, program_of
from .findings import Finding, ok, warning

_ENOUGH_BYTES = 2 << 30
"""Sufficient free memory of a GPU: a CUDA context takes 0.5 GiB, and a program for patches of 128^3
up to 0.5 GiB more.
"""
_MOST_HOLDERS = 5
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Holder:
    """Process that uses memory of a GPU; bytes: None if the driver does not report it.

    process: its number. name: name of the program.
    """

    process: int
    name: str
    bytes: int | None

    def __str__(self) -> str:
        size = "" if self.bytes is None else f" {self.bytes / _GIB:.1f} GiB"
        owner = owner_of(self.process)
        of_user = "" if owner is None else f" of {owner}"
        return f"{self.name} (process {self.process}{of_user}){size}"


def examine_gpus() -> Iterator[Finding]:
    """Yield one line per GPU, and one on why none is used."""
    gpus = cuda_devices()
    reason = why_no_cuda()
    if fault := driver_fault():
        what, remedy = fault
        yield warning("CUDA", f"not used: {what}", remedy)
    elif reason is not None:
        what, _, remedy = reason.partition(": ")
        if gpus:
            yield warning("CUDA", f"not used: {what}", remedy or "use a newer GPU, or the CPU")
        else:
            yield ok("CUDA", f"not used: {reason}")
    for gpu in gpus:
        yield judged_gpu(gpu, holders(gpu.bus))


def judged_gpu(gpu: CudaDevice, held_by: Sequence[Holder]) -> Finding:
    """Return the line of one GPU."""
    subject = f"CUDA {gpu.index}"
    words = (
        f"{gpu.name}, compute capability {'.'.join(map(str, gpu.capability))}, driver "
        f"{gpu.driver}, {_memory(gpu, held_by)}"
    )
    if gpu.capability < OLDEST_CAPABILITY:
        words = f"{words}; not used, as its compute capability is below 7.5"
        return warning(subject, words, "use another GPU, or the CPU")
    if gpu.free_bytes is not None and gpu.free_bytes < _ENOUGH_BYTES:
        remedy = (
            "stop the programs that use it, choose another GPU with setting device=cuda:N, or wait"
        )
        return warning(subject, words, remedy)
    return ok(subject, words)


def _memory(gpu: CudaDevice, held_by: Sequence[Holder]) -> str:
    total = f"{gpu.total_bytes / _GIB:.1f} GiB"
    if gpu.is_integrated:
        return f"{total} shared with the CPU"
    if gpu.free_bytes is None:
        return total
    words = f"{gpu.free_bytes / _GIB:.1f} of {total} free"
    if held_by:
        holders = [str(holder) for holder in held_by[:_MOST_HOLDERS]]
        holders += [f"{len(held_by) - _MOST_HOLDERS} more"] if len(held_by) > _MOST_HOLDERS else []
        return f"{words}, held by {', '.join(holders)}"
    if gpu.total_bytes - gpu.free_bytes > _GIB:
        return f"{words}, held by processes that are not shown here, as in a container"
    return words


def holders(bus: str) -> list[Holder]:
    """Return the processes on the GPU at a PCI address, largest first; none if unknown."""
    try:
        import pynvml as _pynvml
    except ImportError:
        return []
    pynvml: Any = _pynvml  # the package ships no types
    found: dict[int, Holder] = {}
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        for ask in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in ask(gpu):
                name = program_of(process.pid)
                found[process.pid] = Holder(process.pid, name, process.usedGpuMemory)
    return sorted(found.values(), key=lambda holder: -(holder.bytes or 0))
