"""Plots as inline SVG."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.etree.ElementTree import Element

from ....pipelines.stopwatch import Stage
from ..terminal.text import seconds
from .markup import element

STAGE_COLOURS: Mapping[Stage, str] = {
    "receive": "#999999",
    "read": "#56b4e9",
    "prepare": "#009e73",
    "infer": "#0072b2",
    "copy": "#f0e442",
    "blend": "#cc79a7",
    "finish": "#e69f00",
    "write": "#d55e00",
    "send": "#000000",
}
"""Okabe and Ito's palette, which people with any colour vision can tell apart."""

_BY_TILE: tuple[Stage, ...] = ("copy", "infer", "blend")
_BAR_WIDTH, _BAR_HEIGHT = 220, 14
_THINNEST = 0.5
"""Width of a stage that took no time to speak of, so that it is seen."""
_WIDTH, _HEIGHT = 520, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 36


@dataclass(frozen=True, slots=True)
class PlotSpan:
    """A study on the time axis of a plot: from when to when, its value, and what it is.

    start, stop: in seconds. title: what a browser shows for it.
    """

    start: float
    stop: float
    value: float
    title: str


def stage_bar(stages: Mapping[Stage, float], longest: float) -> Element:
    """Stages in a row; `longest`: seconds that fill the whole width."""
    bar, left = _bar(), 0.0
    for stage, spent in stages.items():
        across = _BAR_WIDTH * spent / longest if longest else 0.0
        title, colour = f"{stage}: {seconds(spent)} s", STAGE_COLOURS[stage]
        bar.append(_rectangle((left, 0), (across, _BAR_HEIGHT), title, fill=colour))
        left += across
    return bar


def timeline_bar(when: Mapping[Stage, tuple[float, float]], last: float) -> Element:
    """Stages from when to when they worked; `last`: the time at which the width ends.

    Those that take turns with each tile share the height.
    """
    bar, scale = _bar(), _BAR_WIDTH / (last or 1.0)
    turns = [stage for stage in when if stage in _BY_TILE]
    for stage, (start, stop) in when.items():
        title = f"{stage}: from {seconds(start)} to {seconds(stop)} s"
        across = max((stop - start) * scale, _THINNEST)
        height = _BAR_HEIGHT / len(turns) if stage in turns else _BAR_HEIGHT
        top = height * turns.index(stage) if stage in turns else 0
        size = across, height
        bar.append(_rectangle((start * scale, top), size, title, fill=STAGE_COLOURS[stage]))
    return bar


def _bar() -> Element:
    shape = f"0 0 {_BAR_WIDTH} {_BAR_HEIGHT}"
    return element("svg", class_="bar", viewBox=shape, preserveAspectRatio="none", role="img")


def legend() -> Element:
    """Which colour is which stage."""
    return element(
        "ul",
        *(
            element(
                "li",
                element(
                    "svg", element("rect", width=10, height=10, fill=colour), viewBox="0 0 10 10"
                ),
                stage,
            )
            for stage, colour in STAGE_COLOURS.items()
        ),
        class_="legend",
    )


def over_time(spans: Sequence[PlotSpan], label: Callable[[float], str]) -> Element:
    """A plot of one bar a study, as wide as it took and as high as its value.

    label: how a value reads at its axis.
    """
    unit, length = _time_unit(max(span.stop for span in spans))
    longest = max(span.stop for span in spans) / length
    across = [tick for tick in ticks(0, longest) if tick <= longest] if longest > 0 else [0.0]
    highest = max(span.value for span in spans)
    up = ticks(0, highest) if highest > 0 else [0.0, 1.0]
    right, floor_y = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x_scale = (right - _LEFT) / (longest or 1) / length
    y_scale = (floor_y - _TOP) / up[-1]
    plot = element("svg", class_="plot", viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img")
    for tick in up:
        y = floor_y - tick * y_scale
        plot.append(element("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        plot.append(element("text", label(tick), x=_LEFT - 6, y=y + 4, text_anchor="end"))
    for span in spans:
        height = span.value * y_scale
        plot.append(
            _rectangle(
                (_LEFT + span.start * x_scale, floor_y - height),
                ((span.stop - span.start) * x_scale, height),
                f"{span.title}: {label(span.value)}",
                class_="study",
            )
        )
    for tick in across:
        x = _LEFT + tick * x_scale * length
        plot.append(element("line", x1=x, x2=x, y1=floor_y, y2=floor_y + 4, class_="tick"))
        plot.append(element("text", f"{tick:g}", x=x, y=floor_y + 16, text_anchor="middle"))
    middle = (_LEFT + right) / 2
    plot.append(element("text", unit, x=middle, y=_HEIGHT - 4, text_anchor="middle"))
    return plot


def _rectangle(
    corner: tuple[float, float], size: tuple[float, float], title: str, **attributes: object
) -> Element:
    """A rectangle with a title that browsers show where the mouse rests."""
    return element(
        "rect",
        element("title", title),
        x=corner[0],
        y=corner[1],
        width=size[0],
        height=size[1],
        **attributes,
    )


def _time_unit(longest: float) -> tuple[str, float]:
    """A unit in which the time reads well, and its seconds."""
    if longest < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 3 * 3600 else ("hours", 3600.0)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from the last that is not above the lowest to the first not below the highest.

    Where all values are one, the ticks stand around it.
    """
    span = high - low or abs(high) or 1.0
    power = 10.0 ** floor(log10(span / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if 4 * power * factor >= span)
    first, last = floor(low / step), ceil(high / step)
    return [at * step for at in range(first, max(last, first + 1) + 1)]
