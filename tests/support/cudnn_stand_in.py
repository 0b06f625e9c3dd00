"""A stand-in for cuDNN's frontend, where it is not installed or must not be asked."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class NotSupportedError(RuntimeError):
    """Error of cuDNN's frontend if it has no plan."""


class Graph:
    """A graph that takes everything, and turns out to be supported by no engine."""

    def __getattr__(self, _: str) -> "Graph":
        return self

    def __call__(self, *_: object, **__: object) -> "Graph":
        return self

    def validate(self) -> None:
        raise NotSupportedError("CUDNN_STATUS_NOT_SUPPORTED")


def frontend() -> ModuleType:
    """cuDNN's frontend, which has no plan for anything."""
    module: Any = ModuleType("cudnn")
    module.__version__ = "0"
    module.cudnnGraphNotSupportedError = NotSupportedError
    module.data_type = module  # of which only names are asked
    module.HALF = module.BFLOAT16 = module.FLOAT = None
    module.backend_version = lambda: 0
    module.create_handle = lambda: 1
    module.set_stream = lambda *_: None
    module.destroy_handle = lambda _: None
    module.pygraph = Graph()
    return module


@contextmanager
def cudnn_where_there_is_none() -> Generator[None]:
    """Modules that import cuDNN's frontend can be imported; without it they are forgotten later."""
    is_there = find_spec("cudnn") is not None
    before = set(sys.modules)
    try:
        with pytest.MonkeyPatch.context() as patched:
            if not is_there:
                patched.setitem(sys.modules, "cudnn", frontend())
            yield
    finally:
        for name in set() if is_there else set(sys.modules) - before:
            if name.startswith("cuda_cyclegan.engine."):
                del sys.modules[name]
                package, _, module = name.rpartition(".")
                if package in sys.modules:
                    delattr(sys.modules[package], module)
