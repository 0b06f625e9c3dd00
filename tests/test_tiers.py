"""Limits of time of the tests themselves."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from support import tiers


class Item:
    """A test without marks."""

    def __init__(self, name: str) -> None:
        self.nodeid = name
        self.user_properties: list[tuple[str, str]] = []

    def get_closest_marker(self, _name: str) -> None:
        return None


def call(item: Any, *, seconds: float, in_ci: bool) -> None:
    """Have a test take some processor time, where 1 s is allowed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "slowness", lambda: 1.0)
        patch.setenv("CI", "1") if in_ci else patch.delenv("CI", raising=False)
        patch.setattr(tiers, "_processor_seconds", lambda: 0.0)
        running = tiers.pytest_runtest_call(item)
        next(running)
        patch.setattr(tiers, "_processor_seconds", lambda: seconds)
        with suppress(StopIteration):
            running.send(None)


def test_a_test_over_twice_its_limit_fails_in_ci() -> None:
    call(Item("quick"), seconds=0.9, in_ci=True)
    call(Item("on a busy machine"), seconds=1.9, in_ci=True)
    with pytest.raises(pytest.fail.Exception, match=r"took 3\.00 s of processor time; 1\.00 s"):
        call(Item("late"), seconds=3.0, in_ci=True)


def test_elsewhere_it_passes_and_is_listed() -> None:
    quick, late = Item("quick"), Item("late")
    call(quick, seconds=0.9, in_ci=False)
    call(late, seconds=3.0, in_ci=False)
    lines: list[str] = []
    reporter = SimpleNamespace(
        stats={"passed": [quick, late]}, section=lines.append, line=lines.append
    )
    tiers.pytest_terminal_summary(reporter)
    assert lines == [
        "tests over their limit of time",
        "late: 3.00 s of processor time; 1.00 s are allowed here",
    ]
