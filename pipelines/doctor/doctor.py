"""Checks whether the features of this program work on this machine."""

from collections.abc import Iterator
from pathlib import Path

from ...engine.probe.gpus import OLDEST_CAPABILITY, cuda_devices, why_no_cuda
from .cuda_libraries import examine_cuda_libraries, examine_parts
from .findings import Finding, warning
from .gpus import examine_gpus
from .installation import examine_installation
from .machine import examine_machine
from .queue import examine_queue
from .self_test import examine_devices

_OF_QUEUE = {"msgspec", "platformdirs"}
_OF_DEVICES = {"ONNX Runtime", "OpenVINO", "msgspec", "numpy", "onnx", "onnxruntime", "safetensors"}
"""Subjects of the installation without which the queue and the devices cannot be examined."""


def examine(folder: Path, queue: str | None) -> Iterator[Finding]:
    """Yield every finding as soon as it is available.

    folder: folder for results; its disk is tested with a temporary file.
    queue: its address, or None for this user's own.
    """
    broken = set[str]()
    for finding in examine_installation():
        if finding.state == "failure":
            broken.add(finding.subject)
        yield finding
    yield from examine_machine(folder)
    yield from _unless(broken & _OF_QUEUE, "Queue", examine_queue(queue))
    yield from examine_gpus()
    yield from _unless(broken & _OF_DEVICES, "Self-test", _tested_devices())


def _unless(broken: set[str], subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings, or one that names the broken subjects that they need."""
    if broken:
        words = f"skipped, as it needs what failed above: {', '.join(sorted(broken))}"
        yield warning(subject, words, "repair that first, then run doctor again")
    else:
        yield from findings


def _tested_devices() -> Iterator[Finding]:
    """Examine the CUDA libraries, if a GPU is usable, and let each device compute."""
    usable = why_no_cuda() is None
    if usable:
        gpus = [gpu.capability for gpu in cuda_devices()]
        yield from examine_cuda_libraries([one for one in gpus if one >= OLDEST_CAPABILITY])
    yield from examine_devices()
    if usable:
        yield from examine_parts()
