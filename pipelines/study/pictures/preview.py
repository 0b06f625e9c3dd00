"""A picture of a translation: middle slices of input and output, and their difference."""

from collections.abc import Sequence

from ....engine.model.model_card import IntensityMap, ModelCard, Window
from ....io.maps import MapMark
from ....io.volume import DoubleArray
from ..voxels.statistics import Range
from .drawing import Column, difference_shades, drawn, grey_shades, inner_range
from .slices import Slice

_DARKEST = 1e-9
"""Upper end of the window of a map that is 0 throughout."""

_LONGEST_NAME = 16


def draw_preview(
    given: Sequence[Sequence[Slice]],
    made: Sequence[Sequence[Slice]],
    card: ModelCard,
    maps: Sequence[tuple[MapMark, Sequence[Slice]]] = (),
    warning: str = "",
) -> bytes:
    """A PNG with a row a direction and columns for input, output and difference, marked synthetic.

    given, made: slices of each channel, all of one grid; where there are several, none is the one
    to tell a difference from. maps: slices of it, a column each. warning: stands above them in
    another colour. Proportions are the patient's own, and each column has its window of values
    written below. Where the output is in the input's unit both share a window and the difference is
    in that unit; elsewhere it is one of grey values, in percent.
    """
    before, after = ([[s.values for s in slices] for slices in each] for each in (given, made))
    if len(before) == len(after) == 1:
        columns = _columns(before[0], after[0], card)
    else:
        columns = _columns_of_channels(before, after, card)
    columns += [_of_map(mark, [plane.values for plane in planes]) for mark, planes in maps]
    return drawn(given[0], columns, warning)


def _columns(
    given: Sequence[DoubleArray], made: Sequence[DoubleArray], card: ModelCard
) -> list[Column]:
    before = grey_shades(given, _fixed(card.maps_in[0]))
    if card.keeps_unit():
        after, title = before, "output - input"
        changes = [b - a for a, b in zip(given, made, strict=True)]
    else:
        after, title = grey_shades(made, _fixed(card.maps_out[0])), "difference in grey, %"
        changes = [
            100 * (after.level(b) - before.level(a)) for a, b in zip(given, made, strict=True)
        ]
    return [
        Column(f"input: {_short(card.source)}", given, before),
        Column(f"synthetic {_short(card.target)}", made, after),
        Column(title, changes, difference_shades(changes)),
    ]


def _of_map(mark: MapMark, planes: Sequence[DoubleArray]) -> Column:
    """From 0, where all is as it should be, to white."""
    largest = max(inner_range(planes).high, _DARKEST)
    return Column(mark.words, planes, grey_shades(planes, Range(0.0, largest)))


def _columns_of_channels(
    given: Sequence[Sequence[DoubleArray]], made: Sequence[Sequence[DoubleArray]], card: ModelCard
) -> list[Column]:
    inputs = [
        Column(f"input: {_short(name)}", planes, grey_shades(planes, _fixed(intensity)))
        for name, planes, intensity in zip(card.input_channels, given, card.maps_in, strict=True)
    ]
    outputs = [
        Column(f"synthetic {_short(name)}", planes, grey_shades(planes, _fixed(intensity)))
        for name, planes, intensity in zip(card.output_channels, made, card.maps_out, strict=True)
    ]
    return [*inputs, *outputs]


def _fixed(intensity: IntensityMap) -> Range | None:
    return Range(intensity.low, intensity.high) if isinstance(intensity, Window) else None


def _short(name: str) -> str:
    """A name with the letters that the font has, and no longer than there is room."""
    known = name.encode("ascii", "replace").decode()
    return known if len(known) <= _LONGEST_NAME else f"{known[: _LONGEST_NAME - 3]}..."
