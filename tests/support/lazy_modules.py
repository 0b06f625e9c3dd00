"""Libraries that take seconds to import, imported when a test first uses them.

PyTorch at the head of a test module would be imported by whoever only collects the tests.
"""

from types import ModuleType
from typing import Any

import pytest


class LazyModule:
    """Stand-in for a module until one of its attributes is read; then a test without it is skipped.

    The type is Any to a checker, as that of what pytest.importorskip returns.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            if attribute.startswith("_"):  # pytest and its plugins look for marks in every object
                raise AttributeError(attribute)
            self._module = pytest.importorskip(self._name)
        return getattr(self._module, attribute)


torch: Any = LazyModule("torch")
nn: Any = LazyModule("torch.nn")
torch_generators: Any = LazyModule("support.torch_generators")
torch_variants: Any = LazyModule("support.torch_variants")
inferers: Any = LazyModule("monai.inferers.utils")
