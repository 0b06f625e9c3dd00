"""Programs that find a CUDA driver in host memory, driver_in_memory.c, instead of the machine's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="there is no gcc for Linux"
)


def compile_driver(folder: Path) -> dict[str, str]:
    """Make the driver's library in a folder; the variables with which programs find it."""
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True
    )
    return {"LD_LIBRARY_PATH": str(folder), "DRIVER_VERSION": "12080"}


def output_of(folder: Path, module: str, *arguments: str) -> str:
    """Return what `python -m MODULE` prints; the driver is compiled in `folder`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=SOURCE.parents[1],
        env={**os.environ, **compile_driver(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
