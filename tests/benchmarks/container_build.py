"""Follows the Containerfile without an image: its stages in bare roots made of Debian's packages.

As root on Linux, with mmdebstrap or debootstrap installed:
python tests/benchmarks/container_build.py results.json
Each RUN is executed by chroot, and the sample is translated in the last stage: by its user, with a
read-only root, no network, and a folder each for scans and results. What a container runtime does
besides, such as handing on a card, is not tried.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
"""Of this machine: that of the root knows no certificates of a proxy."""

RUN = """
set -e
mount -t proc proc "$0/proc"
mount --bind /dev "$0/dev"
exec chroot "$0" "$@"
"""
TRANSLATE = """
set -e
root=$0 scans=$1 results=$2; shift 2
mount --bind "$root" "$root"
mount --bind "$scans" "$root/in"
mount --bind "$results" "$root/out"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -o remount,bind,ro "$root/in"
mount -o remount,bind,ro "$root"
exec chroot --userspec=10001:10001 "$root" "$@"
"""


@dataclass(slots=True)
class Stage:
    """A FROM and what follows it. environment: of ENV and ARG, as far as it was read."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    entrypoint: list[str] = field(default_factory=list[str])


def instructions() -> list[tuple[str, str]]:
    """Name and words of each, in order."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, words) for name, _, words in (line.partition(" ") for line in lines)]


def make_base(root: Path) -> None:
    if shutil.which("mmdebstrap"):
        command = ["mmdebstrap", "--variant=minbase", "--mode=root", "--quiet", SUITE, str(root)]
    else:
        command = ["debootstrap", "--variant=minbase", SUITE, str(root)]
    subprocess.run([*command, "http://deb.debian.org/debian"], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    shutil.copy(BUNDLE, root / "certificates")


def follow(base: Path, folder: Path) -> Stage:
    """All stages; the last one."""
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for number, (name, words) in enumerate(instructions()):
        match name:
            case "FROM":
                stage = Stage(folder / f"stage{number}")
                subprocess.run(["cp", "-a", str(base), str(stage.root)], check=True)
                stages[words.partition(" AS ")[2]] = stage
            case "RUN":
                settings = [f"{key}={value}" for key, value in stage.environment.items()]
                path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                command = [
                    "env",
                    "-i",
                    path,
                    "PIP_CERT=/certificates",
                    *settings,
                    "sh",
                    "-ec",
                    words,
                ]
                in_root = ["unshare", "--mount", "sh", "-c", RUN, str(stage.root), *command]
                subprocess.run(in_root, check=True, stdout=subprocess.DEVNULL)
            case "COPY":
                copy(words.split(), stage, stages)
            case "ENV" | "ARG":
                stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(words))
            case "USER":
                stage.user = words
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(words)
            case "WORKDIR" | "VOLUME" | "CMD":
                pass
            case _:
                raise ValueError(f"{name} is not followed here")
    return stage


def copy(words: list[str], stage: Stage, stages: dict[str, Stage]) -> None:
    origin, left_out = ROOT, shutil.ignore_patterns("__pycache__")  # as .containerignore says
    if words[0].startswith("--from="):
        origin, left_out = stages[words.pop(0).removeprefix("--from=")].root, None
    *sources, target = words
    place = stage.root / target.lstrip("/")
    for source in sources:
        found = origin / source.lstrip("/")
        if found.is_dir():
            shutil.copytree(found, place, symlinks=True, ignore=left_out, dirs_exist_ok=True)
        else:
            (place if target.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(found, place)


def translate(stage: Stage, results: Path) -> str:
    """What the container's command says of the sample."""
    assert stage.user == "10001:10001"
    os.chown(results, 10001, 10001)
    settings = [f"{key}={value}" for key, value in stage.environment.items()]
    words = "translate /in --model /in/model.safetensors --output /out/results --device cpu"
    command = ["env", "-i", *settings, *stage.entrypoint, *words.split()]
    alone = ["unshare", "--mount", "--net", "sh", "-c", TRANSLATE, str(stage.root)]
    places = [str(ROOT / "sample_data"), str(results)]
    done = subprocess.run(
        [*alone, *places, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    [made] = results.rglob("*.nii.gz")
    assert made.stat().st_uid == 10001
    return done.stdout


def megabytes(root: Path) -> int:
    done = subprocess.run(["du", "-sm", str(root)], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[0])


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as made:
        base, results = Path(made, "base"), Path(made, "results")
        results.mkdir()
        begin = time.perf_counter()
        make_base(base)
        found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "debian": SUITE}
        found["base"] = {"MB": megabytes(base), "seconds": round(time.perf_counter() - begin)}
        begin = time.perf_counter()
        last = follow(base, Path(made))
        found["build"] = {"MB": megabytes(last.root), "seconds": round(time.perf_counter() - begin)}
        begin = time.perf_counter()
        print(translate(last, results))
        found["translation"] = {"seconds": round(time.perf_counter() - begin)}
        found["load"] = round(os.getloadavg()[0], 1)
    target.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
