"""Time and size of the recipes of docs/offline.md: download, installation without network.

As root on Linux, as the second half runs in an empty network namespace:
python tests/benchmarks/offline_install.py results.json cpu cuda12 cuda13
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from install_size import size

ROOT = Path(__file__).parents[2]
CLEAN = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
TRANSLATION = (
    ".venv/bin/cuda-cyclegan translate {root}/sample_data --output translated --device cpu "
    "--model {root}/sample_data/model.safetensors"
)


def recipe(variety: str) -> tuple[str, str]:
    """Return the page's commands for the machine with internet, and for the other one."""
    page = (ROOT / "docs" / "offline.md").read_text()
    there, here = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    return there.replace("cpu", variety), here.replace("cpu", variety)


def seconds(*command: str, folder: Path) -> float:
    environment = {name: value for name, value in os.environ.items() if "PIP" not in name} | CLEAN
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return round(time.perf_counter() - begin, 1)


def measured(variety: str) -> dict[str, Any]:
    online, offline = recipe(variety)
    with tempfile.TemporaryDirectory() as made:
        clone, there = Path(made, "clone"), Path(made, "there")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        there.mkdir()
        fetched = seconds("sh", "-ec", online, folder=clone)
        (clone / "wheels").rename(there / "wheels")
        alone = ("unshare", "--net", "--map-root-user", "sh", "-ec")
        installed = seconds(*alone, offline, folder=there)
        translated = seconds(*alone, TRANSLATION.format(root=clone), folder=there)
        files = list((there / "wheels").iterdir())
        return {
            "files": len(files),
            "carried_MB": round(sum(file.stat().st_size for file in files) / 1e6),
            "installed_MB": round(size(there / ".venv") / 1e6),
            "download_seconds": fetched,
            "installation_seconds": installed,
            "translation_seconds": translated,
        }


def main() -> None:
    target, *varieties = sys.argv[1:]
    rows = {variety: measured(variety) for variety in varieties}
    machine = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    Path(target).write_text(json.dumps({**machine, "recipes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
