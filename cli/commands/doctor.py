"""`cuda-cyclegan doctor`: whether this machine can do what the program offers."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...pipelines.option import Effect
from ..errors import Exit, errors_reported
from ..options.printing import AsJson, Traceback
from ..options.queue import QueueOption
from ..render.documents import json_text
from ..render.terminal import broken, columns_of, print_line
from ..render.text import counted, flagged, printable
from ..signals import stop_signals

if TYPE_CHECKING:
    from ...pipelines.doctor.findings import Finding

EXAMPLE = """\b
Examples:
  cuda-cyclegan doctor
  cuda-cyclegan doctor --folder /data/results --json
"""
SCHEMA = "cuda-cyclegan/doctor/1"
STATE_WIDTH = 9


def doctor(
    folder: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder whose disk is tested, such as one for results."),
        Effect.WRITES,
    ] = Path(),
    queue: QueueOption = None,
    as_json: AsJson = False,
    verbose: Traceback = False,
) -> None:
    """Check this machine and test each device.

    Checks packages, processor, memory, the disk of a folder, the job queue, GPUs and which programs
    use their memory, cuDNN and NVRTC. Each device then translates a tiny patch in each precision,
    and the result is compared with PyTorch's. Each line is ok, a warning (works, but could be
    better) or a failure, with advice.

    \b
    Exit status:
      0  all checks passed, possibly with warnings
      1  a check failed
    """
    with stop_signals(), errors_reported(verbose=verbose):
        from ...pipelines.doctor.doctor import examine

        findings = examine(folder, queue)
        states = _print_json(findings) if as_json else _print(findings)
        if states["failure"]:
            raise typer.Exit(Exit.SOME_FAILED)


def _print(findings: "Iterable[Finding]") -> Counter[str]:
    states: Counter[str] = Counter()
    for finding in findings:
        states[finding.state] += 1
        for line in _lines(finding, columns_of(sys.stdout)):
            print_line(line, sys.stdout)
    troubles = [counted(states[state], state) for state in ("failure", "warning") if states[state]]
    print_line(", ".join(troubles) or "All checks passed", sys.stdout)
    return states


def _lines(finding: "Finding", columns: int | None) -> Iterator[str]:
    words = [f"{finding.subject}: {printable(flagged(finding.words))}"]
    words += [f"> {printable(flagged(finding.remedy))}"] if finding.remedy else []
    width = None if columns is None else columns - STATE_WIDTH
    lines = [line for part in words for line in ([part] if width is None else broken(part, width))]
    for index, line in enumerate(lines):
        yield f"{'' if index else finding.state:<{STATE_WIDTH}}{line}"


def _print_json(findings: "Iterable[Finding]") -> Counter[str]:
    found = list(findings)
    states = Counter(finding.state for finding in found)
    shown = [
        replace(each, words=flagged(each.words), remedy=each.remedy and flagged(each.remedy))
        for each in found
    ]
    content = {"schema": SCHEMA, "works": not states["failure"], "findings": shown}
    print_line(json_text(content), sys.stdout)
    return states
