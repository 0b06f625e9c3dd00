"""Calls of the product that tests wait for."""

from collections.abc import Callable
from typing import Any

import pytest

from cuda_cyclegan.pipelines.study.translator import StudyTranslator


def watch_calls(
    patch: pytest.MonkeyPatch,
    name: str,
    before: Callable[[int], object],
    where: Any = StudyTranslator,
) -> None:
    """Call `before` with the number of each call of a step, from 0."""
    real, calls = getattr(where, name), iter(range(99))

    def watched(*arguments: Any, **named: Any) -> Any:
        before(next(calls))
        return real(*arguments, **named)

    patch.setattr(where, name, watched)
