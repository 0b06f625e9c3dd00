"""A record of what the program says and makes, to compare with after a change of its structure.

    PYTHONPATH=tests python tests/benchmarks/recorded_behaviour.py record FILE.json [--only TEXT]
    PYTHONPATH=tests python tests/benchmarks/recorded_behaviour.py compare FILE.json [--only TEXT]

Every command is run as a user runs it, on scans and models from fixed seeds: 9 voxel types in 4
directions and 7 formats, DICOM, damaged files, wrong options. Kept are exit statuses, what is
printed, JSON, and hashes of all files that came about; times, sizes of memory and random names are
left out. Stands on the command line only, so it survives any change below it. Two records compare
on one machine and one set of libraries only. Takes two minutes, or five on two busy cores.
"""

import argparse
import difflib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

from support.recorded_commands import Command, commands
from support.recorded_text import Stilled, rough

PROGRAM = Path(sysconfig.get_path("scripts")) / "cuda-cyclegan"
[_ENTRY] = entry_points(group="console_scripts", name="cuda-cyclegan")
ENTRY: Callable[[], None] = _ENTRY.load()
LIBRARIES = (
    *("imagecodecs", "isal.igzip", "nibabel", "numpy", "onnx", "onnxruntime", "PIL.Image"),
    *("pydicom", "rich", "SimpleITK", "typer"),
)
"""Modules that the program imports on demand, and that a fork has already."""

Case: TypeAlias = dict[str, Any]
SHOWN_LINES = 40
_STORED = 1_700_000_000


class Recorder:
    """Recorder that runs commands in a new folder that is home and everything else to them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._printed: dict[str, str] = {}
        self._stilled = Stilled(root)
        inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        folders = {f"XDG_{kind}_HOME": str(root / kind) for kind in ("CACHE", "CONFIG", "STATE")}
        self._environment = {
            **inherited,
            **folders,
            "HOME": str(root / "home"),
            "TZ": "UTC",
            "COLUMNS": "100",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": "",
        }

    def run(self, command: Command) -> Case:
        """Run a command and return its outcome."""
        folder = self._root / command.folder
        folder.mkdir(parents=True, exist_ok=True)
        arguments = [self._filled(argument) for argument in command.arguments]
        if command.prepare:
            command.prepare(self._root)
        in_process = {"worker", "bench", "doctor"}.isdisjoint(arguments)
        start = self._forked if in_process else self._started
        streams = self._root / "stdout", self._root / "stderr"
        status = start(arguments, folder, *streams)
        said, complained = (path.read_text(errors="surrogateescape") for path in streams)
        self._printed[command.name.replace(" ", "-")] = said.strip()
        computes = "plan" in arguments or "--dry-run" in arguments
        is_still = arguments[:1] == ["report"]
        return {
            "command": " ".join(command.arguments),
            "status": status,
            "stdout": self._text(said, keeps_memory=computes, is_still=is_still),
            "stderr": self._stilled.text(complained),
            "files": {name: text for made in command.made for name, text in self._files(made)},
        }

    def _started(self, arguments: list[str], folder: Path, stdout: Path, stderr: Path) -> int:
        """The exit status of the installed program."""
        with stdout.open("wb") as said, stderr.open("wb") as complained:
            return subprocess.run(
                [PROGRAM, *arguments],
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
                check=False,
            ).returncode

    def _forked(self, arguments: list[str], folder: Path, stdout: Path, stderr: Path) -> int:
        """The same in a fork of this process, which saves the time of all imports."""
        child = os.fork()
        if child == 0:
            for number, path in ((0, Path(os.devnull)), (1, stdout), (2, stderr)):
                flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if number else 0)
                os.dup2(os.open(path, flags, 0o666), number)
            os.environ.clear()
            os.environ.update(self._environment)
            time.tzset()
            os.chdir(folder)
            sys.argv = [str(PROGRAM), *arguments]
            os._exit(_left(ENTRY))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _filled(self, argument: str) -> str:
        """An argument with the run's folder, and with what an earlier command printed."""
        for name, printed in self._printed.items():
            argument = argument.replace(f"<{name}>", printed)
        return argument.replace("<root>", str(self._root))

    def _text(self, said: str, **kept: bool) -> str:
        try:
            return json.dumps(self._stilled.json(json.loads(said)), indent=1)
        except ValueError:
            shown = self._stilled.text(said, **kept)
            return rough(shown) if "GFLOP/s" in said else shown

    def _files(self, made: str) -> Iterator[tuple[str, str]]:
        place = self._root / made
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file():
                yield str(path.relative_to(self._root)), self._stilled.file(path)
        if not place.exists():
            yield made, "not there"


def _left(program: Callable[[], None]) -> int:
    """Run a program to its end; its exit status."""
    try:
        program()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def recorded(only: str) -> dict[str, Case]:
    """All cases by name, or those whose name holds a text, which then must need no other."""
    cases: dict[str, Case] = {}
    with tempfile.TemporaryDirectory() as root:
        place = Path(root).resolve()
        _write_inputs(place / "inputs")
        for library in LIBRARIES:
            import_module(library)
        for name in ("models", "onnx", "pages", "reports", "still", "traces"):
            (place / name).mkdir()
        recorder = Recorder(place)
        for command in commands():
            if only in command.name or command.is_needed:
                begin = time.perf_counter()
                cases[command.name] = recorder.run(command)
                seconds = time.perf_counter() - begin
                print(f"{seconds:6.2f} s  {command.name}", file=sys.stderr, flush=True)
    return cases


def _write_inputs(folder: Path) -> None:
    """Write the scans in another process, as one that has computed must not be forked; all have
    one modification time, which DICOM results state.
    """
    subprocess.run([sys.executable, "-m", "support.recorded_inputs", str(folder)], check=True)
    for path in folder.rglob("*"):
        os.utime(path, (_STORED, _STORED))


def differences(before: dict[str, Case], now: dict[str, Case]) -> Iterator[str]:
    """One text a difference: the case, what changed, and the old and new lines."""
    for name in [*before, *(name for name in now if name not in before)]:
        if name not in now or name not in before:
            yield f"{name}: {'gone' if name in before else 'new'}"
            continue
        old, new = _parts(before[name]), _parts(now[name])
        for part in dict.fromkeys([*old, *new]):
            if old.get(part) != new.get(part):
                yield f"{name}: {part}\n{_changed(old.get(part), new.get(part))}"


def _parts(case: Case) -> dict[str, str]:
    said = {part: str(case[part]) for part in ("command", "status", "stdout", "stderr")}
    return said | {f"file {name}": text for name, text in case["files"].items()}


def _changed(old: str | None, new: str | None) -> str:
    lines = [
        line
        for line in difflib.unified_diff(
            (old or "").splitlines(), (new or "").splitlines(), lineterm="", n=1
        )
        if not line.startswith(("---", "+++"))
    ]
    left = len(lines) - SHOWN_LINES
    return "\n".join(["    " + line for line in lines[:SHOWN_LINES]] + ["    ..."] * (left > 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    asked = parser.parse_args()
    before = json.loads(asked.file.read_text()) if asked.action == "compare" else {}
    cases = recorded(asked.only)
    if asked.action == "record":
        asked.file.write_text(json.dumps(cases, indent=1) + "\n")
        print(f"{len(cases)} cases, {sum(len(case['files']) for case in cases.values())} files")
        return 0
    found = list(
        differences(
            {name: before[name] for name in before if name in cases or not asked.only}, cases
        )
    )
    print("\n\n".join([*found, f"{len(cases)} cases compared, {len(found)} differences"]))
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
