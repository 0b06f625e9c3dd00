"""A model that is read while the program still loads its libraries."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model_file import Model


def early_model(path: Path) -> "Callable[[], Model]":
    """Begin to read a model file in a thread; what waits for it, and raises what `load_model` does.

    To read and to hash the weights takes a tenth of a second, and little of Python's.
    """
    beside = ThreadPoolExecutor(1, "model")
    reading = beside.submit(_loaded, path)
    beside.shutdown(wait=False)
    return reading.result


def _loaded(path: Path) -> "Model":
    from .model_file import load_model

    return load_model(path)
