"""Draw speed.svg and memory.svg from the stored results of tests/benchmarks.

    python docs/figures/charts.py [FOLDER]

Needs matplotlib (extra `plot`). The same results give the same files.
"""

import json
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "cuda-cyclegan", "svg.fonttype": "none", "font.size": 10})

import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "tests" / "benchmarks" / "results"
OURS, THEIRS, PALE = "#0969da", "#8c959f", "#54aeff"
GIB = 2**30


def read(name: str) -> Any:
    """Return the stored results of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def speed() -> plt.Figure:
    """Draw milliseconds of one patch next to those of PyTorch in the same run."""
    found = read("engine_against_pytorch")
    cases = [
        case
        for case in found["cases"]
        if case["case"]["batch"] == 1 and case["case"]["patch"] == [128] * 3
    ]
    figure, panels = plt.subplots(1, len(cases), figsize=(8.4, 2.5), layout="constrained")
    for panel, case in zip(panels, cases, strict=True):
        torch = case["pytorch"]
        bars = {
            "cuda-cyclegan, fp16": case["cuda_cyclegan"]["fp16"],
            "torch.compile, half": torch["compile max-autotune half channels_last_3d"],
            "PyTorch eager, half": torch["eager half"],
            "PyTorch eager, default": torch["eager default"],
        }
        times = [bar["median"] * 1e3 for bar in bars.values()]
        drawn = panel.barh(list(bars), times, color=[OURS] + [THEIRS] * 3)
        panel.bar_label(drawn, [f"{time:.1f} ms" for time in times], padding=3)
        panel.set_xlim(0, max(times) * 1.25)
        panel.set_title(f"{case['case']['width']} filters", loc="left")
        panel.invert_yaxis()
        panel.set_xticks([])
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    panels[1].set_yticklabels([])
    figure.suptitle(
        f"One patch of 128x128x128, ResNet of 9 blocks ({found['card']}, {found['date'][:10]})",
        x=0.01,
        ha="left",
    )
    return figure


def memory() -> plt.Figure:
    """Draw GPU memory of whole volumes of several sizes; patches need the same for all of them."""
    found = read("whole_volume")
    latest = {(tuple(row["extents"]), where(row)): row["device bytes"] for row in rows(found)}
    sizes = sorted({extents for extents, _ in latest}, key=prod)
    figure, panel = plt.subplots(figsize=(8.4, 3.4), layout="constrained")
    for label, colour, mark in (
        ("whole volume, all on the GPU", OURS, "o"),
        ("whole volume, full resolution recomputed", PALE, "s"),
    ):
        points = [(prod(size), latest[size, label]) for size in sizes if (size, label) in latest]
        xs, ys = zip(*points, strict=True)
        panel.plot(xs, [y / GIB for y in ys], color=colour, marker=mark, label=label)
        for x, y in points:
            panel.annotate(f"{y / GIB:.1f}", (x, y / GIB), (0, 6), textcoords="offset points")
    eager = found["torch"]["eager"]["bytes"] / GIB
    panel.plot([prod(found["extents"])], [eager], "^", color=THEIRS, label="PyTorch, one pass")
    panel.annotate(
        f"{eager:.1f}", (prod(found["extents"]), eager), (0, 6), textcoords="offset points"
    )
    patch = next(
        case["cuda_cyclegan"]["fp16"]["reserved"] / GIB
        for case in read("engine_against_pytorch")["cases"]
        if (case["case"]["width"], case["case"]["batch"], case["case"]["patch"][0]) == (32, 1, 128)
    )
    panel.axhline(patch, color="#1a7f37", linestyle="--", label="patches of 128x128x128")
    panel.set(xscale="log", yscale="log", ylabel="GPU memory, GiB", ylim=(0.1, 80))
    panel.set_xticks([prod(size) for size in sizes], ["x".join(map(str, size)) for size in sizes])
    panel.minorticks_off()
    panel.set_yticks([0.2, 1, 5, 20], ["0.2", "1", "5", "20"])
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, loc="upper left")
    panel.set_title(f"{found['network']} ({found['card']}, November 2026)", loc="left")
    return figure


def rows(found: Any) -> Iterator[dict[str, Any]]:
    """Yield the measured volumes among the results, oldest first."""
    if isinstance(found, dict):
        if "extents" in found and "device bytes" in found:
            yield found
        for inner in found.values():
            yield from rows(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from rows(inner)


def where(row: dict[str, Any]) -> str:
    """Return where the feature maps of a measured volume were."""
    return {
        "card": "whole volume, all on the GPU",
        "recomputed": "whole volume, full resolution recomputed",
    }.get(row["residence"], "")


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE
    for draw in (speed, memory):
        draw().savefig(folder / f"{draw.__name__}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
