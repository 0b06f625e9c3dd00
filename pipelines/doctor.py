"""Whether what this program offers works on this machine."""

from collections.abc import Iterator
from pathlib import Path

from ..engine.cuda_probe import cuda_devices, why_no_cuda
from .findings import Finding, ok
from .installed import examine_installation
from .machine import examine_machine
from .self_test import examine_devices


def examine(folder: Path) -> Iterator[Finding]:
    """Every finding, each as soon as it is there.

    folder: where results would be written; its disk is tested with a file that vanishes.
    """
    broken = False
    for finding in examine_installation():
        broken = broken or finding.state == "failure"
        yield finding
    yield from examine_machine(folder)
    yield from _cards()
    if not broken:
        yield from examine_devices()


def _cards() -> Iterator[Finding]:
    obstacle = why_no_cuda()
    if obstacle is not None:
        yield ok("CUDA", f"not used: {obstacle}")
        return
    for device in cuda_devices():
        free = "" if device.free_bytes is None else f"{device.free_bytes / 2**30:.1f} of "
        memory = f"{free}{device.total_bytes / 2**30:.1f} GiB" + (" free" if free else "")
        yield ok(f"CUDA {device.index}", f"{device.name}, {memory}, driver {device.driver}")
