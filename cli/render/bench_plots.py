"""A benchmark as a picture."""

from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from ...engine.benchmark.measurement import Ceilings, Measured
from ...io.files.documents import write_document
from ...pipelines.bench.layers import LayerGroup, grouped
from ...pipelines.bench.measurement import Bench
from .bench import heading, milliseconds
from .text import printable, quantity

_BLUE, _GREY, _ORANGE, _INK = "#0072b2", "#999999", "#d55e00", "#333333"
_MOST_LAYERS = 14
_NUMBERED = _MOST_LAYERS - 1
_SMALLEST, _LARGEST = 30, 400
_WIDTH, _ROOF_HEIGHT, _ROW_HEIGHT = 10.0, 5.0, 0.3


def draw(bench: Bench, measured: Measured, target: Path) -> None:
    """Write a .png or .svg. Raises WriteError."""
    figure_type: Any = import_module("matplotlib.figure").Figure  # untyped in part
    groups = grouped(measured.layers)
    shown = _shortened(groups)
    chart_height = 1.2 + _ROW_HEIGHT * len(shown)
    figure = figure_type(figsize=(_WIDTH, _ROOF_HEIGHT + chart_height), layout="constrained")
    figure.suptitle(f"{heading(bench)}\n{printable(measured.device)}", fontsize=10)
    roof, chart = figure.subplots(2, 1, height_ratios=(_ROOF_HEIGHT, chart_height))
    if measured.ceilings:
        _roofline(roof, groups, measured, measured.ceilings)
    else:
        roof.set_axis_off()
        roof.text(0.5, 0.5, "too little memory to measure this device's peaks", ha="center")
    _chart(chart, shown)
    drawn = BytesIO()
    figure.savefig(drawn, format=target.suffix[1:].lower(), dpi=150)
    write_document(target, drawn.getvalue())


def _roofline(
    axes: Any, groups: Sequence[LayerGroup], measured: Measured, ceilings: Ceilings
) -> None:
    """Draw attainable FLOP/s over FLOP per byte (Williams, Waterman and Patterson 2009)."""
    known = [(g, g.intensity, g.flop_rate) for g in groups]
    points = [(n, g, i, r) for n, (g, i, r) in enumerate(known, start=1) if i and r]
    ridge = ceilings.flops / ceilings.bandwidth
    whole = measured.flops / measured.latency.median
    left = min([ridge / 4, *(intensity / 2 for _, _, intensity, _ in points)])
    right = max([ridge * 4, *(intensity * 2 for _, _, intensity, _ in points)])
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    axes.set_ylim(min([whole, *(rate for *_, rate in points)]) / 2, 1.6 * ceilings.flops)
    axes.plot([left, ridge, right], [left * ceilings.bandwidth, *[ceilings.flops] * 2], color=_INK)
    flops = f"{quantity(ceilings.flops, 'FLOP/s')} in a matrix product"
    _note(axes, flops, (right, ceilings.flops), (-4, 4), ha="right")
    copy = f"{quantity(ceilings.bandwidth, 'B/s')} in a copy"
    _note(axes, copy, (ridge, ceilings.flops), (-12, 4), ha="right")
    axes.axhline(whole, color=_ORANGE, linestyle="--", linewidth=1)
    name = f"the whole network: {quantity(whole, 'FLOP/s')}"
    _note(axes, name, (right, whole), (-4, 4), ha="right", color=_ORANGE)
    for number, group, intensity, rate in points:
        size = _SMALLEST + _LARGEST * group.seconds / groups[0].seconds
        axes.scatter(intensity, rate, s=size, color=_BLUE, alpha=0.6, linewidths=0, zorder=3)
        if number <= _NUMBERED:
            beside = size**0.5 / 2 + 2
            _note(axes, str(number), (intensity, rate), (beside, 0), va="center")
    ticker: Any = import_module("matplotlib.ticker")
    for axis, form in ((axes.xaxis, "{x:g}"), (axes.yaxis, _flop_rate)):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(form)
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("FLOP per byte that must be moved")
    axes.set_title("Convolutions under the roofline of this device; area shows time", fontsize=10)
    axes.grid(which="major", alpha=0.3)


def _flop_rate(value: float, _position: int) -> str:
    return quantity(value, "FLOP/s")


def _note(
    axes: Any, text: str, point: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    look = {"fontsize": 9, "color": _INK, **style}
    axes.annotate(text, point, offset, textcoords="offset points", **look)


def _chart(axes: Any, groups: Sequence[LayerGroup]) -> None:
    total = sum(group.seconds for group in groups)
    names = [f"{printable(group.name)}   {n}" for n, group in enumerate(groups, start=1)]
    colours = [_BLUE if group.flops else _GREY for group in groups]
    bars = axes.barh(names, [group.seconds * 1e3 for group in groups], color=colours)
    labels = [f"{milliseconds(g.seconds)} ms, {g.seconds / total:.1%}" for g in groups]
    axes.bar_label(bars, labels, padding=4, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18, y=0.01)
    axes.tick_params("y", labelsize=8)
    axes.set_xlabel("ms per run, each layer timed alone")
    axes.set_title("Layers: convolutions blue, others grey", fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _shortened(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return the longest layers, and all others as one."""
    if len(groups) <= _MOST_LAYERS:
        return list(groups)
    rest = groups[_MOST_LAYERS - 1 :]
    others = LayerGroup(
        layers=tuple(layer for group in rest for layer in group.layers),
        operation="others",
        plan=None,
        seconds=sum(group.seconds for group in rest),
        flops=0,
        bytes=None,
    )
    return [*groups[: _MOST_LAYERS - 1], others]
