"""Figures of the README that a benchmark keeps."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
RESULTS = ROOT / "tests" / "benchmarks" / "results"


def ours(width: int) -> dict[str, Any]:
    """One patch of 128^3 in fp16 by the engine, as it was last measured."""
    found = json.loads((RESULTS / "engine_against_pytorch.json").read_text())
    [case] = [
        each
        for each in found["cases"]
        if (each["case"]["width"], each["case"]["batch"], each["case"]["patch"][0])
        == (width, 1, 128)
    ]
    return case["cuda_cyclegan"]["fp16"]


def test_the_engine_is_as_fast_as_the_readme_says() -> None:
    narrow, wide = (
        f"{figures['median'] * 1e3:.1f} ms, {figures['reserved'] / 2**20:.0f} MiB"
        for figures in (ours(32), ours(64))
    )
    assert f"| cuda-cyclegan, fp16 | {narrow} | {wide} |" in README


def test_a_batch_is_as_fast_as_the_readme_says() -> None:
    found = json.loads((RESULTS / "batch_on_a_card.json").read_text())
    plain, packed = (found[suffix]["seconds"] for suffix in (".nii", ".nii.gz"))
    told = f"`.nii` {plain['batch']:.2f} s, `.nii.gz` {packed['batch']:.2f} s"
    assert f"{told}; the network alone {packed['compute']:.2f} s" in README


def test_a_screen_of_bench_is_told_apart_from_the_table() -> None:
    caption = README.partition("The screen, shortened, is of")[2].partition("\n\n")[0]
    [now] = re.findall(r"takes\s(\d+\.\d+) ms", caption)
    assert float(now) == round(ours(32)["median"] * 1e3, 2)
