"""Tests that find the faults of planted_faults.json, planted one by one in a copy of the tree.

    python tests/benchmarks/planted_faults.py [--only NAME ...] [--results FILE]

Tests run until one fails: first the default ones of the module and of the nearest folder, for all
faults; then, for what those missed, the default ones of the top-level folder and all others; last
the slow ones of the nearest folder. A run that hangs counts as a failure; a test that also fails
without the fault proves nothing ("unclear"). The copy is a clone of HEAD with its own environment,
which borrows the packages of the running interpreter. Rows are stored one by one: a run that was
stopped goes on where it was.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

FAULTS = Path(__file__).with_suffix(".json")
RESULTS = Path(__file__).parent / "results" / "planted_faults.json"
ROOT = Path(__file__).parents[2]

Tier: TypeAlias = Literal["default", "slow"]
PATIENCE: dict[Tier, float] = {"default": 1800.0, "slow": 5400.0}
"""Seconds after which a run of tests counts as one that hangs."""
OF_TIER: dict[Tier, list[str]] = {"default": [], "slow": ["--slow", "-m", "slow or hypothesis"]}
State: TypeAlias = Literal["default", "slow", "missed nearby", "missed", "nobody", "unclear"]
"""State of a fault: which tests found it, or have missed it so far."""
PASSES: dict[State | None, State] = {
    None: "missed nearby",
    "missed nearby": "missed",
    "missed": "nobody",
}
"""State after the next tests have missed a fault too, by its state before."""
PASSED, INTERRUPTED, NO_TESTS = 0, 2, 5
"""Exit statuses of pytest; it is interrupted by errors of collection."""
_PROBLEM = re.compile(
    r"^(?:FAILED|ERROR) (tests/[^\s\[]*(?:\[.*?\](?= - |$))?)(?: - (.*))?$", re.MULTILINE
)
"""A line of pytest's summary: a test, and the last words of its failure."""
_TOO_SLOW = " s of processor time; "
"""Part of the failure of a test that passed, but took longer than its tier allows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake to plant. before: text that occurs once in the file. fault: what goes wrong."""

    name: str
    area: str
    file: str
    before: str
    after: str
    fault: str


@dataclass(frozen=True, slots=True)
class Row:
    """State of a fault. seconds: of the last tests. test: the one that failed first."""

    found_by: State
    seconds: float
    test: str = ""


class Copy:
    """A clone of the repository in a folder, whose tests import the clone."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "repository"
        environment = self._root / ".venv"
        self._python = environment / "bin" / "python"
        _call("git", "clone", "--quiet", "--shared", ROOT, self._root)
        _call(sys.executable, "-m", "venv", "--without-pip", environment)
        [packages] = environment.glob("lib/python*/site-packages")
        borrowed = [Path(path) for path in sys.path if Path(path).name == "site-packages"]
        (packages / "zz_borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
        # CUDA's libraries are looked for beside the environment's own packages.
        for libraries in [path / "nvidia" for path in borrowed if (path / "nvidia").is_dir()][:1]:
            (packages / "nvidia").symlink_to(libraries.resolve())
        install = ("install", "--quiet", "--no-deps", "--no-build-isolation", "-e", self._root)
        _call(sys.executable, "-m", "pip", "--python", self._python, *install)

    def tried(self, fault: Fault, known: State | None) -> Row:
        """Plant a fault, run the next tests until one fails, and take the fault out again.

        known: what the tests before have said of it.
        """
        path, begin = self._root / fault.file, time.monotonic()
        whole = path.read_text("utf-8")
        if whole.count(fault.before) != 1:
            raise SystemExit(f"{fault.name}: its text occurs {whole.count(fault.before)} times")
        tier: Tier = "slow" if known == "missed" else "default"
        path.write_text(whole.replace(fault.before, fault.after), "utf-8")
        try:
            for arguments in self._runs(Path(fault.file), known):
                if failed := self._failed(tier, arguments):
                    seconds = round(time.monotonic() - begin, 1)
                    path.write_text(whole, "utf-8")
                    is_own = "::" not in failed or not self._failed(tier, [failed])
                    return Row(tier if is_own else "unclear", seconds, failed)
        finally:
            path.write_text(whole, "utf-8")
        return Row(PASSES[known], round(time.monotonic() - begin, 1))

    def _runs(self, file: Path, known: State | None) -> Iterator[list[str]]:
        """Arguments of pytest, one run after the other; no test is in two runs of a tier."""
        folders = ("tests" / parent for parent in file.parents)
        nearest = next(str(folder) for folder in folders if (self._root / folder).is_dir())
        if known == "missed":
            yield [nearest]
            return
        nearby = [f"{nearest}/test_{file.stem}.py", nearest]
        places = [*nearby, f"tests/{file.parts[0]}", "tests"]
        for number, place in enumerate(places):
            is_due = (place in nearby) == (known is None) and place not in places[:number]
            if is_due and (self._root / place).exists():
                yield [place, *(f"--ignore={each}" for each in places[:number])]

    def _failed(self, tier: Tier, arguments: list[str]) -> str:
        """The first test that fails, or words for what failed besides; nothing if all pass."""
        status, output = self._pytest(tier, arguments)
        if status is None:
            return f"hung in {arguments[0]}"
        if status in (PASSED, NO_TESTS):
            return ""
        if status > INTERRUPTED:
            raise SystemExit(f"pytest could not run {arguments}:\n{output[-4000:]}")
        problems = [(found[1], found[2] or "") for found in _PROBLEM.finditer(output)]
        if failed := next((test for test, words in problems if _TOO_SLOW not in words), None):
            return failed
        if problems:  # such a test passed, and stopped the others
            return self._failed(tier, [*arguments, *(f"--deselect={test}" for test, _ in problems)])
        return f"ended with status {status} in {arguments[0]}"

    def _pytest(self, tier: Tier, arguments: list[str]) -> tuple[int | None, str]:
        """Exit status of a run of tests, None if it hangs, and its output."""
        processes = "0" if ".py" in arguments[0] else "auto"
        command = [self._python, "-m", "pytest", "-q", "-x", "-n", processes, *OF_TIER[tier]]
        # The same examples of hypothesis each time, and no support modules of another tree.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with subprocess.Popen(
            [*command, *arguments],
            cwd=self._root,
            env={**kept, "CI": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=PATIENCE[tier])
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    return None, ""
                raise
        return process.returncode, output


def _call(*words: object) -> str:
    """Return what a command prints. Raises CalledProcessError."""
    return subprocess.check_output([*map(str, words)], cwd=ROOT, text=True).strip()


def stored(results: Path) -> dict[str, Row]:
    """Rows of an earlier run by the names of their faults."""
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {"faults": {}}
    rows: dict[str, Any] = known["faults"]
    return {name: Row(**row) for name, row in rows.items()}


def store(results: Path, rows: dict[str, Row]) -> None:
    """Write the result file."""
    content: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "commit": _call("git", "rev-parse", "HEAD"),
        "faults": {name: asdict(row) for name, row in rows.items()},
    }
    results.write_text(json.dumps(content, indent=2) + "\n")


def table(faults: list[Fault], rows: dict[str, Row]) -> Iterator[str]:
    """A line for each fault, and how much of what tests find the default ones find."""
    known = [(fault, rows[fault.name]) for fault in faults if fault.name in rows]
    for fault, row in known:
        words = f"{fault.name:34} {fault.area:22} {row.found_by:8} {row.seconds:7.1f} s  {row.test}"
        yield words.rstrip()
    count = {tier: sum(row.found_by == tier for _, row in known) for tier in OF_TIER}
    if found := sum(count.values()):
        share = f"{count['default'] / found:.0%}"
        yield f"The default tests find {count['default']} of the {found} faults found: {share}"
    yield f"{len(known) - found} of {len(known)} were found by nobody or are unclear"


def main() -> None:
    faults = [Fault(**fields) for fields in json.loads(FAULTS.read_text())]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [fault.name for fault in faults]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help="try these again")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    asked = parser.parse_args()
    rows = stored(asked.results)
    for name in asked.only or []:
        rows.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as folder:
        copy = Copy(Path(folder))
        for known in PASSES:
            for fault in faults:
                earlier = rows[fault.name].found_by if fault.name in rows else None
                if earlier != known or fault.name not in (asked.only or names):
                    continue
                rows[fault.name] = row = copy.tried(fault, known)
                store(asked.results, rows)
                print(f"{fault.name}: {row.found_by}, {row.seconds:.0f} s {row.test}", flush=True)
    print(*table(faults, rows), sep="\n")


if __name__ == "__main__":
    main()
