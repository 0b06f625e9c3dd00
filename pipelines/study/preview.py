"""Preview of a translation: middle slices of input, output and their difference as one PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from ...engine.model.intensity_maps import IntensityMap, Window
from ...engine.model.model_card import ModelCard
from ...engine.network.layers import FloatArray
from ...io.maps import MapMark
from ...io.volume import NOTICE, DoubleArray
from .geometry import Slice
from .statistics import Range

Rgb: TypeAlias = npt.NDArray[np.uint8]

OUTLIERS = 0.5
"""Percent of pixels outside a window at either end, so that one bright vessel does not darken the
rest.
"""

_LESS = np.array([64, 156, 255], np.float32)
_MORE = np.array([255, 140, 40], np.float32)


@dataclass(frozen=True, slots=True)
class Shades:
    """Window of values, shown from black to white or, if signed, from blue over black to orange.

    A signed window is symmetric about 0.
    """

    window: Range
    signed: bool = False

    def level(self, values: DoubleArray) -> DoubleArray:
        """Map the window to 0 to 1, and values outside of it to 0 or 1."""
        low, high = self.window.low, self.window.high
        return np.clip((values - low) / (high - low), 0, 1)

    def rgb(self, level: FloatArray) -> Rgb:
        """Convert levels to colours, [..., 3]."""
        level = level[..., None]
        if not self.signed:
            return np.rint(np.repeat(level, 3, axis=-1) * 255).astype(np.uint8)
        signed = level * 2 - 1
        return np.rint(np.where(signed < 0, _LESS, _MORE) * np.abs(signed)).astype(np.uint8)


def grey_shades(planes: Sequence[DoubleArray], fixed: Range | None = None) -> Shades:
    """Return a grey window: a fixed one, or the range of the planes without outliers."""
    return Shades(fixed or inner_range(planes))


def difference_shades(planes: Sequence[DoubleArray]) -> Shades:
    """Return a signed window around the range of the planes without outliers."""
    spread = inner_range(planes)
    largest = max(abs(spread.low), abs(spread.high))
    return Shades(Range(-largest, largest), signed=True)


def inner_range(planes: Sequence[DoubleArray]) -> Range:
    """Return the range of some planes without outliers; never empty."""
    every = np.concatenate([plane.ravel() for plane in planes])
    low, high = (float(end) for end in np.percentile(every, [OUTLIERS, 100 - OUTLIERS]))
    return Range(low, high) if low < high else Range(low - 0.5, low + 0.5)


_LONGEST = 300
"""Pixels of the longest edge of any slice; all others follow at the same scale."""

_LETTERS, _HEAD, _FOOT, _NARROWEST = 24, 40, 76, 220
_TEXT, _FAINT, _WARNING = (235, 235, 235), (160, 160, 160), (255, 140, 40)
_LARGE, _SMALL = 17, 14


THUMBNAIL, THUMBNAIL_WIDTH = b"cgTn", 420
"""Private PNG chunk with the first row of a preview as WebP, and the width of that, for lists."""

_IN_LISTS = 3
"""Columns of that row: input, output and their difference."""


@dataclass(frozen=True, slots=True)
class Column:
    """A title, the planes below it, and their shades."""

    title: str
    planes: Sequence[DoubleArray]
    shades: Shades


def drawn(scans: Sequence[Slice], columns: Sequence[Column], warning: str = "") -> bytes:
    """Return a PNG with a row for each direction, marked synthetic; scans: positions of the
    columns' planes.

    warning: printed above them in another colour.
    """
    scale = _LONGEST / max(max(plane.extents) for plane in scans)
    sizes = [_pixels(plane, scale) for plane in scans]
    width = max(_NARROWEST, *(across + 2 * _LETTERS for across, _ in sizes))
    head = _HEAD + (_LETTERS if warning else 0)
    height = head + sum(down + 2 * _LETTERS for _, down in sizes) + _FOOT
    picture = Image.new("RGB", (width * len(columns), height))
    for index, column in enumerate(columns):
        middle, top = index * width + width // 2, head
        _write(picture, (middle, head - _HEAD // 2), column.title, _LARGE)
        for plane, values, (across, down) in zip(scans, column.planes, sizes, strict=True):
            box = (middle - across // 2, top + _LETTERS, across, down)
            level = _resized(column.shades.level(values), box)
            picture.paste(Image.fromarray(column.shades.rgb(level)), box[:2])
            _letter(picture, plane, box)
            top += down + 2 * _LETTERS
        _legend(picture, column.shades, (middle, top))
    if warning:
        _write(picture, (picture.width // 2, _LETTERS // 2 + 2), warning, _SMALL, _WARNING)
    _write(picture, (picture.width // 2, height - 14), NOTICE, _SMALL)
    said = PngInfo()
    said.add_text("Description", NOTICE)
    right, bottom = width * min(len(columns), _IN_LISTS), head + sizes[0][1] + 2 * _LETTERS
    said.add(THUMBNAIL, _thumbnail(picture.crop((0, head, right, bottom))))
    stored = BytesIO()
    # 6 takes twice the time for a tenth less.
    picture.save(stored, "png", compress_level=3, pnginfo=said)
    return stored.getvalue()


def _thumbnail(row: Image.Image) -> bytes:
    height = max(1, round(row.height * THUMBNAIL_WIDTH / row.width))
    small = row.resize((THUMBNAIL_WIDTH, height), Image.Resampling.BOX)
    stored = BytesIO()
    small.save(stored, "WEBP", quality=70, method=2)
    return stored.getvalue()


def _pixels(plane: Slice, scale: float) -> tuple[int, int]:
    rows, columns = plane.extents
    return max(round(columns * scale), 1), max(round(rows * scale), 1)


def _resized(level: DoubleArray, box: tuple[int, int, int, int]) -> FloatArray:
    resized = Image.fromarray(level.astype(np.float32)).resize(box[2:], Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float32)


def _letter(picture: Image.Image, plane: Slice, box: tuple[int, int, int, int]) -> None:
    left, top, across, down = box
    gap = _LETTERS // 2
    places = (
        (left - gap, top + down // 2),
        (left + across + gap, top + down // 2),
        (left + across // 2, top - gap),
        (left + across // 2, top + down + gap),
    )
    for letter, place in zip(plane.edges, places, strict=True):
        _write(picture, place, letter, _SMALL, _FAINT)


def _legend(picture: Image.Image, shades: Shades, place: tuple[int, int]) -> None:
    middle, top = place
    width, height = 120, 10
    low, high = shades.window.low, shades.window.high
    ramp = np.linspace(0, 1, width, dtype=np.float32)
    bar = Image.fromarray(np.repeat(shades.rgb(ramp)[None], height, axis=0))
    left = middle - width // 2
    ImageDraw.Draw(picture).rectangle(
        (left - 1, top + 7, left + width, top + 8 + height), outline=_FAINT
    )
    picture.paste(bar, (left, top + 8))
    _write(picture, (middle, top + 32), f"{_number(low)} to {_number(high)}", _SMALL)


def _write(
    picture: Image.Image,
    middle: tuple[int, int],
    text: str,
    size: int,
    colour: tuple[int, int, int] = _TEXT,
) -> None:
    ImageDraw.Draw(picture).text(middle, text, colour, _font(size), anchor="mm")


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


_DARKEST = 1e-9
"""Upper end of the window of a map that is 0 throughout."""

_LONGEST_NAME = 16


def draw_preview(
    scans: Sequence[Sequence[Slice]],
    results: Sequence[Sequence[Slice]],
    card: ModelCard,
    maps: Sequence[tuple[MapMark, Sequence[Slice]]] = (),
    warning: str = "",
) -> bytes:
    """Return a PNG with a row for each direction and columns for input, output and difference,
    marked synthetic.

    scans, results: slices of each channel, all of one grid; with several channels, no difference is
    shown. maps: their slices, a column each. warning: printed above them in another colour.
    Proportions are the patient's own, and each column has its window of values written below. If
    the output is in the input's unit both share a window and the difference is in that unit;
    otherwise it is one of grey values, in percent.
    """
    before, after = ([[s.values for s in slices] for slices in each] for each in (scans, results))
    if len(before) == len(after) == 1:
        columns = _columns(before[0], after[0], card)
    else:
        columns = _columns_of_channels(before, after, card)
    columns += [_of_map(mark, [plane.values for plane in planes]) for mark, planes in maps]
    return drawn(scans[0], columns, warning)


def _columns(
    scans: Sequence[DoubleArray], results: Sequence[DoubleArray], card: ModelCard
) -> list[Column]:
    before = grey_shades(scans, _fixed(card.maps_in[0]))
    after = before if card.keeps_unit() else grey_shades(results, _fixed(card.maps_out[0]))
    source = Column(f"input: {_short(card.source)}", scans, before)
    result = Column(f"synthetic {_short(card.target)}", results, after)
    return [source, result, difference(source, result, is_in_unit=card.keeps_unit())]


def difference(source: Column, result: Column, *, is_in_unit: bool) -> Column:
    """Return the column of result - input: in their unit, or else of grey values in percent."""
    pairs = zip(source.planes, result.planes, strict=True)
    if is_in_unit:
        title, changes = "result - input", [after - before for before, after in pairs]
    else:
        title, below, above = "difference in grey, %", source.shades.level, result.shades.level
        changes = [100 * (above(after) - below(before)) for before, after in pairs]
    return Column(title, changes, difference_shades(changes))


def _of_map(mark: MapMark, planes: Sequence[DoubleArray]) -> Column:
    """Return the column of a map, from black at 0 to white."""
    largest = max(inner_range(planes).high, _DARKEST)
    return Column(mark.words, planes, grey_shades(planes, Range(0.0, largest)))


def _columns_of_channels(
    scans: Sequence[Sequence[DoubleArray]],
    results: Sequence[Sequence[DoubleArray]],
    card: ModelCard,
) -> list[Column]:
    inputs = [
        Column(f"input: {_short(name)}", planes, grey_shades(planes, _fixed(intensity)))
        for name, planes, intensity in zip(card.input_channels, scans, card.maps_in, strict=True)
    ]
    outputs = [
        Column(f"synthetic {_short(name)}", planes, grey_shades(planes, _fixed(intensity)))
        for name, planes, intensity in zip(
            card.output_channels, results, card.maps_out, strict=True
        )
    ]
    return [*inputs, *outputs]


def _fixed(intensity: IntensityMap) -> Range | None:
    return Range(intensity.low, intensity.high) if isinstance(intensity, Window) else None


def _short(name: str) -> str:
    """Return a name in ASCII letters, cut to the width of a column."""
    known = name.encode("ascii", "replace").decode()
    return known if len(known) <= _LONGEST_NAME else f"{known[: _LONGEST_NAME - 3]}..."
