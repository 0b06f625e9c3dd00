"""The lock files of docs/locks fit what pyproject.toml asks for."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cuda_cyclegan.engine.probe.cuda_packages import TESTED_TOGETHER

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SERVICES = [one for extra in ("node", "dicomweb", "metrics", "postgres") for one in EXTRAS[extra]]
WITH_SERVICES = PROJECT["dependencies"] + SERVICES
ASKED = {
    "cpu": WITH_SERVICES,
    "cuda12": WITH_SERVICES + EXTRAS["cuda12"],
    "cuda13": WITH_SERVICES + EXTRAS["cuda13"],
}

VULNERABLE = {
    "imagecodecs": {"2025.8.2": "CVE-2025-54874"},
    "onnx": {"1.20.1": "CVE-2026-27489"},
    "pillow": {"11.3.0": "CVE-2025-54874"},
    "pydicom": {"3.0.1": "CVE-2026-32711"},
    "pynetdicom": {"3.0.3": "CVE-2026-56445"},
    "requests": {"2.32.5": "CVE-2026-25645"},
    "urllib3": {"2.6.3": "CVE-2026-44432"},
}
"""The last versions that have a vulnerability which this program can meet."""


def pins(lock: str) -> list[tuple[Requirement, int]]:
    """Each library of a lock file with its version, and how many hashes it has."""
    text = (ROOT / "docs" / "locks" / f"{lock}.txt").read_text()
    blocks = re.split(r"\n(?=[a-zA-Z])", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))
    return [
        (Requirement(block.partition(" \\")[0]), block.count("--hash=sha256:")) for block in blocks
    ]


@pytest.mark.parametrize("lock", ASKED)
def test_a_lock_pins_what_is_asked_for_with_hashes(lock: str) -> None:
    found = pins(lock)
    assert all(count > 0 for _, count in found)
    for asked in map(Requirement, ASKED[lock]):
        versions = [
            str(pin.specifier).removeprefix("==")
            for pin, _ in found
            if canonicalize_name(pin.name) == canonicalize_name(asked.name)
        ]
        assert versions, f"{asked} is missing; run docs/locks/make.sh"
        assert all(version in asked.specifier for version in versions), asked


def test_locks_take_the_cuda_libraries_that_were_tested_together() -> None:
    text = (ROOT / "docs" / "locks" / "tested.txt").read_text()
    tested = dict(row.split("==") for row in text.splitlines() if not row.startswith("#"))
    locked = {pin.name: str(pin.specifier) for lock in ASKED for pin, _ in pins(lock)}
    for name, version in tested.items():
        assert locked[name] == f"=={version}", "run docs/locks/make.sh"
    named = ("nvidia-cudnn-cu13", "nvidia-cuda-nvrtc", "nvidia-cudnn-frontend")
    versions = [".".join(tested[name].split(".")[:2]) for name in named]
    assert tuple(versions) == TESTED_TOGETHER[-1]


def test_versions_with_known_vulnerabilities_are_excluded() -> None:
    asked = {canonicalize_name(one.name): one for one in map(Requirement, WITH_SERVICES)}
    table = (ROOT / ".github" / "SECURITY.md").read_text()
    for name, versions in VULNERABLE.items():
        assert not [version for version in versions if version in asked[name].specifier], name
        assert name in table.lower()
        assert all(cve in table for cve in versions.values())


def test_the_page_tells_what_was_measured() -> None:
    results = ROOT / "tests" / "benchmarks" / "results" / "offline_install.json"
    page = (ROOT / "docs" / "offline.md").read_text()
    for lock, row in json.loads(results.read_text())["recipes"].items():
        assert f"| {lock} | {row['files']} files, {row['carried_MB']} MB |" in page
