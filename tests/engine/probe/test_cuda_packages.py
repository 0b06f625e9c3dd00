"""Versions of cuDNN that compute wrongly are known, and kept away."""

import tomllib
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cuda_cyclegan.engine.probe.cuda_packages import KNOWN_FAULTS, RIGHT_SINCE, known_fault


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (90700, None),
        (90800, "9.8.0 gives wrong results in 3D convolutions of fp16 and bf16"),
        (91002, "9.10.2 gives wrong results"),
        (91002, "of tf32"),
        (91400, "9.14.0 gives wrong results"),
        (91501, "9.15.1 has a kernel for 3D convolutions of tf32 that is wrong"),
        (91600, None),
        (91900, None),
        (92300, None),
        (92301, "9.23.1 has a kernel for convolutions whose results differ from run to run"),
        (92302, "differ from run to run"),
        (92400, None),
    ],
)
def test_objections_known_against_a_version(number, words):
    found = known_fault(number)
    assert (found is None) == (words is None)
    assert words is None or words in found


def test_the_extras_ask_for_versions_without_known_faults():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for extra in ("cuda12", "cuda13"):
        asked = map(Requirement, project["optional-dependencies"][extra])
        [wanted] = [one for one in asked if one.name == f"nvidia-cudnn-cu{extra[-2:]}"]
        for major, minor, patch in product([9], range(30), range(3)):
            is_wrong = known_fault(major * 10_000 + minor * 100 + patch) is not None
            is_taken = wanted.specifier.contains(f"{major}.{minor}.{patch}.42")
            assert is_taken == ((major, minor) >= RIGHT_SINCE and not is_wrong)


def test_each_fault_has_a_source():
    assert all("PyTorch's" in fault.source for fault in KNOWN_FAULTS)
