"""Geometry of the plots that templates draw as inline SVG."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from statistics import median, quantiles

from ...pipelines.stopwatch import Stage
from .text import seconds

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
"""Okabe and Ito's palette, which people with any colour vision can distinguish."""

_BY_PATCH: tuple[Stage, ...] = ("copy", "infer", "blend")
_BAR_WIDTH, _BAR_HEIGHT = 220, 14
_THINNEST = 0.5
"""Width of a stage that took almost no time, so that it is visible."""
_WIDTH = 520


@dataclass(frozen=True, slots=True)
class Tick:
    """Mark on an axis. at: its position. label: text beside it."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Rectangle from its corner (x, y).

    width, height: its size. title: text that browsers show on hover. fill: colour.
    """

    x: float
    y: float
    width: float
    height: float
    title: str
    fill: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """Stages of one study in a row. parts: one per stage. width, height: size of the plot."""

    parts: Sequence[Rectangle]
    width: int = _BAR_WIDTH
    height: int = _BAR_HEIGHT


def stage_bar(stages: Mapping[Stage, float], longest: float) -> Bar:
    """Return stages in a row; longest: seconds that fill the whole width."""
    parts: list[Rectangle] = []
    left = 0.0
    for stage, spent in stages.items():
        width = _BAR_WIDTH * spent / longest if longest else 0.0
        title = f"{stage}: {seconds(spent)} s"
        parts.append(Rectangle(left, 0, width, _BAR_HEIGHT, title, STAGE_COLOURS[stage]))
        left += width
    return Bar(parts)


def timeline_bar(when: Mapping[Stage, tuple[float, float]], last: float) -> Bar:
    """Return stages when they worked; last: time at which the width ends.

    Those that take turns with each patch share the height.
    """
    parts: list[Rectangle] = []
    scale = _BAR_WIDTH / (last or 1.0)
    turns = [stage for stage in when if stage in _BY_PATCH]
    for stage, (start, stop) in when.items():
        title = f"{stage}: from {seconds(start)} to {seconds(stop)} s"
        width = max((stop - start) * scale, _THINNEST)
        height = _BAR_HEIGHT / len(turns) if stage in turns else _BAR_HEIGHT
        top = height * turns.index(stage) if stage in turns else 0
        colour = STAGE_COLOURS[stage]
        parts.append(Rectangle(start * scale, top, width, height, title, colour))
    return Bar(parts)


@dataclass(frozen=True, slots=True)
class PlotSpan:
    """A study on the time axis of a plot.

    start, stop: in seconds. value: its height. title: text that a browser shows for it.
    """

    start: float
    stop: float
    value: float
    title: str


_LEFT, _RIGHT, _FLOOR = 62, _WIDTH - 12, 154


@dataclass(frozen=True, slots=True)
class TimePlot:
    """Bars over time.

    bars: one per study. up, across: ticks of both axes. unit: of the time axis. left, right,
    floor: edges of the area. width, height: size of the plot.
    """

    bars: Sequence[Rectangle]
    up: Sequence[Tick]
    across: Sequence[Tick]
    unit: str
    left: int = _LEFT
    right: int = _RIGHT
    floor: int = _FLOOR
    width: int = _WIDTH
    height: int = 190


def over_time(spans: Sequence[PlotSpan], label: Callable[[float], str]) -> TimePlot:
    """Return one bar per study, as wide as it took and as high as its value.

    label: text of a value at its axis.
    """
    unit, length = _time_unit(max(span.stop for span in spans))
    longest = max(span.stop for span in spans) / length
    across = [tick for tick in ticks(0, longest) if tick <= longest] if longest > 0 else [0.0]
    highest = max(span.value for span in spans)
    up = ticks(0, highest) if highest > 0 else [0.0, 1.0]
    x_scale = (_RIGHT - _LEFT) / (longest or 1) / length
    y_scale = (_FLOOR - 10) / up[-1]
    bars = [
        Rectangle(
            _LEFT + span.start * x_scale,
            _FLOOR - span.value * y_scale,
            (span.stop - span.start) * x_scale,
            span.value * y_scale,
            f"{span.title}: {label(span.value)}",
        )
        for span in spans
    ]
    return TimePlot(
        bars,
        [Tick(_FLOOR - tick * y_scale, label(tick)) for tick in up],
        [Tick(_LEFT + tick * x_scale * length, f"{tick:g}") for tick in across],
        unit,
    )


def _time_unit(longest: float) -> tuple[str, float]:
    """Return a readable unit for a time, and its seconds."""
    if longest < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 3 * 3600 else ("hours", 3600.0)


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers from at most `low` to at least `high`.

    If all values are equal, the ticks lie around them.
    """
    span = high - low or abs(high) or 1.0
    power = 10.0 ** floor(log10(span / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if 4 * power * factor >= span)
    first, last = floor(low / step), ceil(high / step)
    return [at * step for at in range(first, max(last, first + 1) + 1)]


_MARGIN, _TOP, _BOTTOM = 24, 8, 46
_RADIUS = 4.0
_HIGHEST = 100.0
"""Height of a stack of dots, above which they overlap."""
_BOX = 9
"""Height of the bar for the middle half, drawn between dots and axis."""


@dataclass(frozen=True, slots=True)
class Dot:
    """Dot of a study. x, y: its centre. title: text that browsers show on hover."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values along an axis.

    dots: one per study, of this radius. half, median: of the middle half; None for few studies.
    axis: height of the axis, from left to right, with ticks. width, height: size of the plot.
    """

    dots: Sequence[Dot]
    half: Rectangle | None
    median: Tick | None
    axis: float
    ticks: Sequence[Tick]
    height: str
    width: int = _WIDTH
    left: int = _MARGIN
    right: int = _WIDTH - _MARGIN
    radius: float = _RADIUS


def distribution(named: Sequence[tuple[str, float]], text: Callable[[float], str]) -> Distribution:
    """Return names and values of studies along an axis; dots at equal positions are stacked.

    text: formats a value.
    """
    values = [value for _, value in named]
    marks = ticks(min(values), max(values))
    low, high = min(marks[0], *values), max(marks[-1], *values)
    scale = (_WIDTH - 2 * _MARGIN) / (high - low)

    def across(value: float) -> float:
        return _MARGIN + (value - low) * scale

    stacked = list(_stacked(named, across))
    bottom = _TOP + 2 * _RADIUS + max(height for _, height, _, _ in stacked)
    half, middle = _middle_half(values, text, across, bottom + 5)
    return Distribution(
        [Dot(x, bottom - _RADIUS - height, f"{name}: {text(v)}") for x, height, name, v in stacked],
        half,
        middle,
        bottom + _BOX + 10,
        [Tick(across(tick), f"{tick:g}") for tick in marks],
        f"{bottom + _BOTTOM:g}",
    )


def _stacked(
    named: Sequence[tuple[str, float]], across: Callable[[float], float]
) -> Iterator[tuple[float, float, str, float]]:
    """Yield position, height above the lowest dots, name and value of each study."""
    columns: dict[int, list[tuple[str, float]]] = {}
    for name, value in sorted(named, key=lambda pair: pair[1]):
        columns.setdefault(floor(across(value) / (2 * _RADIUS)), []).append((name, value))
    tallest = max(map(len, columns.values()))
    step = min(2 * _RADIUS, _HIGHEST / max(tallest - 1, 1))
    for column, stack in columns.items():
        for at, (name, value) in enumerate(stack):
            yield (column + 0.5) * 2 * _RADIUS, at * step, name, value


def _middle_half(
    values: Sequence[float],
    text: Callable[[float], str],
    across: Callable[[float], float],
    top: float,
) -> tuple[Rectangle | None, Tick | None]:
    """Return a bar from the first to the third quartile, and the median."""
    if len(values) < 4:
        return None, None
    first, _, third = quantiles(values, n=4, method="inclusive")
    title = f"half of the studies: {text(first)} to {text(third)}"
    left, right = across(first), across(third)
    half = Rectangle(left, top, max(right - left, 1.0), _BOX, title)
    return half, Tick(across(median(values)), f"median: {text(median(values))}")
