"""Whether what this program offers works on this machine."""

from collections.abc import Iterator
from pathlib import Path

from ..engine.devices import CUDA_OBSTACLE
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
    yield ok("CUDA", f"not offered: {CUDA_OBSTACLE}")
    if not broken:
        yield from examine_devices()
