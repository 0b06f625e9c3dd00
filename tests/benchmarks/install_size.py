"""Size on disk and import time of environments that pip made, such as this program's and torch's.

Make them first, then for example:
python tests/benchmarks/install_size.py results.json \\
    "cuda-cyclegan" /tmp/product "import cuda_cyclegan.pipelines.translate" \\
    "torch, CPU" /tmp/torch "import torch"
"""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

BARE = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence.pth")
ROUNDS = 7


def size(environment: Path) -> int:
    """Bytes of what was installed, without what an empty environment holds."""
    [packages] = environment.glob("lib/python*/site-packages")
    return sum(
        file.lstat().st_size
        for entry in packages.iterdir()
        if not entry.name.startswith(BARE)
        for file in ([entry] if entry.is_file() else entry.rglob("*"))
        if file.is_file()
    )


def import_seconds(environment: Path, statement: str) -> float:
    """Best of several starts of a process, less those of one that imports nothing."""
    return best(environment, statement) - best(environment, "pass")


def best(environment: Path, statement: str) -> float:
    command = [environment / "bin" / "python", "-W", "ignore", "-c", statement]
    spent: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        spent.append(time.perf_counter() - begin)
    return min(spent)


def main() -> None:
    target, *asked = sys.argv[1:]
    rows = {
        name: {
            "MiB": round(size(Path(folder)) / 2**20),
            "statement": statement,
            "import_seconds": round(import_seconds(Path(folder), statement), 3),
        }
        for name, folder, statement in zip(asked[::3], asked[1::3], asked[2::3], strict=True)
    }
    machine = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    Path(target).write_text(json.dumps({**machine, "environments": rows}, indent=2) + "\n")
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
