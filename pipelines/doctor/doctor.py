"""Checks whether the features of this program work on this machine."""

from collections.abc import Iterator
from pathlib import Path

from ...engine.probe.gpus import OLDEST_CAPABILITY, cuda_devices, why_no_cuda
from .cuda_libraries import examine_cuda_libraries, examine_parts
from .findings import Finding
from .gpus import examine_gpus
from .installation import examine_installation
from .machine import examine_machine
from .queue import examine_queue
from .self_test import examine_devices


def examine(folder: Path, queue: str | None) -> Iterator[Finding]:
    """Yield every finding as soon as it is available.

    folder: folder for results; its disk is tested with a temporary file.
    queue: its address, or None for this user's own.
    """
    broken = False
    for finding in examine_installation():
        broken = broken or finding.state == "failure"
        yield finding
    yield from examine_machine(folder)
    if broken:
        return
    yield from examine_queue(queue)
    yield from examine_gpus()
    usable = why_no_cuda() is None
    if usable:
        gpus = [gpu.capability for gpu in cuda_devices()]
        yield from examine_cuda_libraries([one for one in gpus if one >= OLDEST_CAPABILITY])
    yield from examine_devices()
    if usable:
        yield from examine_parts()
