"""Test tiers: the default one answers in minutes, and `--slow` adds the rest.

A test of the default tier may take LIMIT seconds of processor time, its child processes included;
one that starts processes, and is marked `process`, may take PROCESS_LIMIT. Fixtures, first
imports, garbage collection and what runs `uncounted` are not part of it. Both limits grow with the
time that a fixed piece of work takes on this machine now.

A test that takes longer passes and is listed at the end: a slow or busy machine fails nobody. In
CI, which sets the variable `CI`, one that takes more than FAILS_AT times its limit fails.
"""

import builtins
import gc
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from time import process_time
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, find, settings, strategies

LIMIT = 1.0
PROCESS_LIMIT = 5.0
FAILS_AT = 2.0
"""Multiple of the limit at which a test fails: if other processes share the cores, one measurement
is no more precise. Of 11,219 tests on a busy machine two took 1.2 s, which take 0.7 s alone.
"""
FAST_EXAMPLES = 20
CALIBRATION_SECONDS = 0.0225
"""The least that the work of `calibrate` took on two quiet cores of an AMD EPYC at 2.6 GHz,
2026-11-26.
"""

BY_CHANCE = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
"""Checks of hypothesis that fail on a slow machine, or by what was drawn."""
WITH_FIXTURES = (*BY_CHANCE, HealthCheck.function_scoped_fixture)
"""Checks to suppress for a test all examples of which may share its fixtures."""

THIS_FILE = Path(__file__)

_is_slow = False
_uncounted = 0.0
_is_uncounted = False
_collection_start = 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    """Load the tier's hypothesis profile before any test module is imported.

    An example that takes longer on a loaded machine is not wrong, hence no deadline and no check
    of the time that drawing takes. CI tries the same examples each time, so that a change is judged
    by itself; elsewhere each run looks further.
    """
    global _is_slow
    _is_slow = config.getoption("--slow")
    most = settings.default.max_examples if _is_slow else FAST_EXAMPLES
    settings.register_profile(
        "tier",
        deadline=None,
        derandomize="CI" in os.environ,
        max_examples=most,
        suppress_health_check=BY_CHANCE,
    )
    settings.load_profile("tier")


def examples(count: int, fast: int = FAST_EXAMPLES) -> int:
    """Return the number of hypothesis examples: `count` with `--slow`, otherwise at most `fast`."""
    return count if _is_slow else min(count, fast)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_slow:
        return
    due: list[pytest.Item] = []
    slow: list[pytest.Item] = []
    for item in items:
        (slow if item.get_closest_marker("slow") else due).append(item)
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = due


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("hypothesis"):
        _fill_unicode_table()


@cache
def _fill_unicode_table() -> None:
    """Have hypothesis make its table of characters, 1.7 s where no earlier run left it on disk."""
    find(strategies.text(), lambda _: True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test of the default tier that takes longer than it may, or list it at the end."""
    uncounted, start = _uncounted, _processor_seconds()
    result = yield
    taken = _processor_seconds() - start - (_uncounted - uncounted)
    limit = PROCESS_LIMIT if item.get_closest_marker("process") else LIMIT
    if taken > limit and _has_limit(item):
        allowed = limit * slowness()
        if taken > allowed:
            figures = f"{taken:.2f} s of processor time; {allowed:.2f} s are allowed here"
            if "CI" in os.environ and taken > FAILS_AT * allowed:
                pytest.fail(
                    f"The test took {figures}. Make it faster, or mark it slow.", pytrace=False
                )
            item.user_properties.append((_TOO_LONG, figures))
    return result


_TOO_LONG = "took too long"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the tests that took longer than they may, wherever they ran."""
    reports = terminalreporter.stats.get("passed", ())
    found = [(each.nodeid, dict(each.user_properties).get(_TOO_LONG)) for each in reports]
    late = [f"{name}: {figures}" for name, figures in found if figures]
    if late:
        terminalreporter.section("tests over their limit of time")
        for line in late:
            terminalreporter.line(line)


def _has_limit(item: pytest.Item) -> bool:
    """Whether the test runs as in the default tier: not slow, nor with more examples."""
    return not (_is_slow and item.get_closest_marker("hypothesis")) and not any(
        item.get_closest_marker(mark) for mark in ("slow", "gpu")
    )


def slowness() -> float:
    """Return how many times slower this machine is now than the one on which limits were set; at
    least 1.
    """
    return max(1.0, calibrate() / CALIBRATION_SECONDS)


def calibrate() -> float:
    """Processor seconds of a fixed piece of work in Python, memory and files, the worst of five.

    Caches and cores that others use as well are free for moments: beside 15 busy processes on two
    cores the work took 0.96 to 3.2 times as long as on quiet ones, 1.3 times in the median, and
    what it takes at best says nothing of the test before it.
    """
    return max(_fixed_work() for _ in range(5))


def _fixed_work() -> float:
    start = process_time()
    total = 0
    for number in range(150_000):
        total += number * number % 7
    for _ in range(3):
        fresh = np.ones(4_000_000, np.float32)
        total += float(np.sqrt(fresh).sum())
    for _ in range(500):
        total += THIS_FILE.stat().st_size
    return process_time() - start


@contextmanager
def uncounted() -> Generator[None]:
    """Leave the block's processor time out of the limit: work that a cache saves the next run."""
    global _uncounted, _is_uncounted
    if _is_uncounted:
        yield
        return
    _is_uncounted = True
    start = _processor_seconds()
    try:
        yield
    finally:
        _uncounted += _processor_seconds() - start
        _is_uncounted = False


def _processor_seconds() -> float:
    """Processor seconds of this process and of the children it has waited for."""
    times = os.times()
    return process_time() + times.children_user + times.children_system


def _garbage_uncounted(phase: Literal["start", "stop"], _: dict[str, int]) -> None:
    """Leave out garbage collection, which looks through what all tests before have loaded."""
    global _uncounted, _collection_start
    if phase == "start":
        _collection_start = process_time()
    elif not _is_uncounted:
        _uncounted += process_time() - _collection_start


gc.callbacks.append(_garbage_uncounted)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among the modules and tests, which all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Spare the collector the objects of all test modules: each of its passes would read them.

    What of them is garbage stays; to find it takes half a second.
    """
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)


_import = builtins.__import__


@wraps(_import)  # by whose name it is pickled
def _import_uncounted(name: str, *rest: Any, **named: Any) -> Any:
    """Import a module, whose first import counts for no test."""
    if _is_uncounted or _is_imported(name, *rest):
        return _import(name, *rest, **named)
    with uncounted():
        return _import(name, *rest, **named)


def _is_imported(
    name: str,
    globals_: dict[str, Any] | None = None,
    _: object = None,
    names: Sequence[str] | None = (),
    level: int = 0,
) -> bool:
    """Whether an import statement of these arguments only looks up what is there."""
    if level:
        package = (globals_ or {}).get("__package__") or ""
        parent = package.rsplit(".", level - 1)[0]
        name = f"{parent}.{name}" if name else parent
    module = sys.modules.get(name)
    return module is not None and all(hasattr(module, each) for each in names or ())


builtins.__import__ = _import_uncounted
