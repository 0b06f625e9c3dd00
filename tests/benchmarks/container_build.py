"""Build the image of the Containerfile with podman, and translate the sample in a container of it.

    python tests/benchmarks/container_build.py results.json

A base image that cannot be pulled is made of Debian's packages (as root, with mmdebstrap). The
container gets a read-only root and no network, the sample as /in and a folder for results as /out.
No GPU is used from inside.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
(BASE,) = re.findall(r"^ARG BASE=(.*)", (ROOT / "Containerfile").read_text(), re.MULTILINE)
MADE = "localhost/made-base"
"""Base image that is made here, if the pinned one cannot be pulled."""
IMAGE = "localhost/cuda-cyclegan:tried"
USER = 10001
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
"""Certificates of this machine, for pip during the build: a proxy's are in no image."""

CGROUPS = """
if [ "$(stat --file-system --format %T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount --recursive /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
fi
exec "$@"
"""
"""Shell script for a mount namespace: crun accepts no mix of the two kinds of cgroups."""

BUILD = ("--isolation=chroot", "--network=host", "--pull=never", "--layers=false")
"""Options of a build; isolation by chroot also works where no container may be started."""

CONTAINER = (
    *("unshare", "--mount", "sh", "-ec", CGROUPS, "sh"),
    *("podman", "run", "--rm", "--read-only", "--network=none", "--cgroups=disabled"),
    *("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"),  # may not be raised here
)
"""Command that runs an image."""


def make_base() -> tuple[str, str]:
    """Pull the base image, or make one, if it is not there. Returns its name, and its origin."""
    if subprocess.run(["podman", "image", "exists", BASE]).returncode == 0:
        return BASE, "found"
    if subprocess.run(["podman", "pull", "--quiet", BASE], capture_output=True).returncode == 0:
        return BASE, "pulled"
    with tempfile.NamedTemporaryFile(suffix=".tar") as root:
        command = ["mmdebstrap", "--variant=minbase", "--mode=root", "--quiet", SUITE, root.name]
        subprocess.run([*command, "http://deb.debian.org/debian"], check=True)
        podman("import", "--quiet", root.name, MADE)
    return MADE, "made of Debian's packages"


def refusal(folder: Path, base: str) -> str | None:
    """Return why this machine builds no image or starts no container at all; None if it does."""
    (folder / "Containerfile").write_text(f"FROM {base}\nRUN true\n")
    trial = "localhost/trial"
    for command in (
        ("podman", "build", *BUILD, f"--tag={trial}", str(folder)),
        (*CONTAINER, trial, "true"),
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip() or f"exit status {done.returncode}"
    podman("rmi", "--force", trial)
    return None


def build(folder: Path, base: str) -> None:
    """Build the image on a base."""
    settings = folder / "pip.conf"
    settings.write_text("[global]\ncert = /certificates\nretries = 8\ntimeout = 30\n")
    mounts = (f"--volume={settings}:/etc/pip.conf:ro", f"--volume={BUNDLE}:/certificates:ro")
    asked = ("--file=Containerfile", f"--build-arg=BASE={base}", f"--tag={IMAGE}")
    podman("build", *BUILD, *mounts, *asked, ".")


def translate(folder: Path) -> str:
    """Translate the sample in a container. Returns what the program printed."""
    results = folder / "results"
    results.mkdir()
    os.chown(results, USER, USER)
    mounts = (f"--volume={ROOT / 'sample_data'}:/in:ro", f"--volume={results}:/out")
    words = "translate /in --model /in/model.safetensors --output /out/results --device cpu"
    command = [*CONTAINER, *mounts, IMAGE, *words.split()]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    [result] = results.rglob("*.nii.gz")
    assert result.stat().st_uid == USER
    return done.stdout


def podman(*words: str) -> str:
    """Return what podman prints."""
    command = ["podman", *words]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def megabytes(image: str) -> int:
    """Return the size of an image."""
    return round(int(podman("image", "inspect", "--format={{.Size}}", image)) / 1e6)


def main() -> None:
    """Build, translate, and write how long it took and how large the images are.

    A machine on which not even an empty image can be built and run is reported, and fails nothing.
    """
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "podman": podman("--version")[15:-1],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        begin = time.perf_counter()
        base, origin = make_base()
        found["base"] = {"debian": SUITE, "origin": origin, "MB": megabytes(base)}
        found["base"]["seconds"] = round(time.perf_counter() - begin)
        if why := refusal(folder, base):
            print(f"No container can be tried on this machine: {why}")
            return
        begin = time.perf_counter()
        build(folder, base)
        found["build"] = {"MB": megabytes(IMAGE), "seconds": round(time.perf_counter() - begin)}
        begin = time.perf_counter()
        print(translate(folder))
        found["translation"] = {"seconds": round(time.perf_counter() - begin)}
        found["load"] = round(os.getloadavg()[0], 1)
    podman("rmi", "--force", IMAGE)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
