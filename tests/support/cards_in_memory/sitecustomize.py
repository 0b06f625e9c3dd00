"""Module on PYTHONPATH, with a driver in memory: networks on its GPUs are opened on the CPU."""

from contextlib import AbstractContextManager
from typing import Any

from cuda_cyclegan.engine import devices
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.probe import gpus


def open_generator(network: Any, *_: object) -> AbstractContextManager[Any]:
    return open_cpu_generator(network)


gpus.why_not_these_packages = lambda _: None
devices.open_generator = open_generator
