"""Evidence that a failed test shows besides its assertion: the last command's output, and a
process's.
"""

import subprocess
from collections.abc import Generator
from functools import wraps
from typing import Any

import pytest
from typer.testing import CliRunner, Result

LONGEST = 8000
"""Characters of an output that are shown, the last ones."""

_last: list[str] = []
_invoke = CliRunner.invoke


@wraps(_invoke)
def _remembered(*arguments: Any, **named: Any) -> Result:
    result = _invoke(*arguments, **named)
    _last[:] = [f"exit status {result.exit_code}\n{_end(result.output)}"]
    return result


CliRunner.invoke = _remembered


def pytest_runtest_setup() -> None:
    _last.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add the outputs to the report of a failure."""
    report = yield
    if report.failed:
        report.sections += [*(("last command", text) for text in _last), *_of_process(call)]
    return report


def _of_process(call: pytest.CallInfo[None]) -> list[tuple[str, str]]:
    """Outputs of a process whose end is the failure; its error shows neither."""
    error = call.excinfo.value if call.excinfo else None
    if not isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
        return []
    outputs = {"stdout of the process": error.stdout, "stderr of the process": error.stderr}
    return [(name, _end(content)) for name, content in outputs.items() if content]


def _end(output: str | bytes) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    return text[-LONGEST:]
