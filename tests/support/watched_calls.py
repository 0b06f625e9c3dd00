"""Calls of the product that tests wait for."""

from collections.abc import Callable
from typing import Any

import pytest

from cuda_cyclegan.pipelines.execution import stages


def watch_calls(
    patch: pytest.MonkeyPatch, name: str, before: Callable[[int], object], where: Any = stages
) -> None:
    """Have `before` called with the number of each call of a stage's work, from 0."""
    real, calls = getattr(where, name), iter(range(99))

    def watched(*arguments: Any) -> Any:
        before(next(calls))
        return real(*arguments)

    patch.setattr(where, name, watched)
