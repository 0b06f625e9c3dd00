"""How a figure spreads over the studies, as inline SVG: a dot a study, and the middle half."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor
from statistics import median, quantiles
from xml.etree.ElementTree import Element

from .charts import ticks
from .markup import element

_WIDTH, _MARGIN, _TOP, _BOTTOM = 520, 24, 8, 46
_RADIUS = 4.0
_HIGHEST = 100.0
"""Of a stack; where more dots come together they overlap."""

_BOX = 9
"""Height of the bar of the middle half, which stands between dots and axis."""


def distribution(named: Sequence[tuple[str, float]], told: Callable[[float], str]) -> Element:
    """Names and values of studies along an axis; dots of equal places stand on each other.

    told: a value in words.
    """
    values = [value for _, value in named]
    marks = ticks(min(values), max(values))
    low, high = min(marks[0], *values), max(marks[-1], *values)
    scale = (_WIDTH - 2 * _MARGIN) / (high - low)

    def across(value: float) -> float:
        return _MARGIN + (value - low) * scale

    dots = list(_stacked(named, across))
    floor_y = _TOP + 2 * _RADIUS + max(dot.height for dot in dots)
    box = f"0 0 {_WIDTH} {floor_y + _BOTTOM:g}"
    plot = element("svg", class_="plot", viewBox=box, role="img")
    for dot in dots:
        title = element("title", f"{dot.name}: {told(dot.value)}")
        y = floor_y - _RADIUS - dot.height
        plot.append(element("circle", title, cx=dot.x, cy=y, r=_RADIUS, class_="study"))
    for part in _box(values, told, across, floor_y + 5):
        plot.append(part)
    axis = floor_y + _BOX + 10
    plot.append(element("line", x1=_MARGIN, x2=_WIDTH - _MARGIN, y1=axis, y2=axis, class_="grid"))
    for tick in marks:
        x = across(tick)
        plot.append(element("line", x1=x, x2=x, y1=axis, y2=axis + 4, class_="tick"))
        plot.append(element("text", f"{tick:g}", x=x, y=axis + 17, text_anchor="middle"))
    return plot


@dataclass(frozen=True, slots=True)
class _Dot:
    """A study. x: of its place. height: above the lowest dots."""

    x: float
    height: float
    name: str
    value: float


def _stacked(
    named: Sequence[tuple[str, float]], across: Callable[[float], float]
) -> Iterator[_Dot]:
    columns: dict[int, list[tuple[str, float]]] = {}
    for name, value in sorted(named, key=lambda pair: pair[1]):
        columns.setdefault(floor(across(value) / (2 * _RADIUS)), []).append((name, value))
    tallest = max(map(len, columns.values()))
    step = min(2 * _RADIUS, _HIGHEST / max(tallest - 1, 1))
    for column, stack in columns.items():
        for at, (name, value) in enumerate(stack):
            yield _Dot((column + 0.5) * 2 * _RADIUS, at * step, name, value)


def _box(
    values: Sequence[float],
    told: Callable[[float], str],
    across: Callable[[float], float],
    top: float,
) -> Iterator[Element]:
    """A bar from the first to the third quartile, with the median across it."""
    if len(values) < 4:
        return
    first, _, third = quantiles(values, n=4, method="inclusive")
    half = f"half of the studies: {told(first)} to {told(third)}"
    left, right, middle = across(first), across(third), across(median(values))
    size = {"x": left, "y": top, "width": max(right - left, 1.0), "height": _BOX}
    yield element("rect", element("title", half), **size, class_="half")
    title = element("title", f"median: {told(median(values))}")
    yield element(
        "line", title, x1=middle, x2=middle, y1=top - 2, y2=top + _BOX + 2, class_="median"
    )
