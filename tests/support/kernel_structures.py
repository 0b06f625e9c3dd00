"""The structures that kernels take, wherever the launches that fill them in are written."""

from collections.abc import Iterator
from ctypes import Structure
from importlib import import_module
from pkgutil import walk_packages

from cuda_cyclegan.engine.compiler import launches


def _defined() -> Iterator[type[Structure]]:
    for module in walk_packages(launches.__path__, f"{launches.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Structure) and value is not Structure:
                yield value


STRUCTURES = {kind.__name__.removesuffix("Arguments"): kind for kind in _defined()}
"""By the name that the kernel's source has for it."""
