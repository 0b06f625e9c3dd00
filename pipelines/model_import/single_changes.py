"""Model cards that differ in one field, to explain why a result is not the training code's."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import TypeVar, get_args

from ...engine.model import intensity_maps as maps
from ...engine.model.grid_window import GridWindow, WindowRule, WindowStep
from ...engine.model.model_card import GridRule, MapsOn, ModelCard
from ...engine.model.tiling import OWN, Tiling
from ...engine.network.layers import Triple, triple
from ...engine.options import Blend
from ...engine.patch_grid import PatchPadding

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class SingleChange:
    """Other value of one field. field: its option of the import. card: the card with that value."""

    field: str
    card: ModelCard


_MAPS: tuple[maps.IntensityMap, ...] = (
    maps.Identity(),
    maps.ZScore(1.0),
    maps.ZScore(3.0),
    maps.SampleZScore(),
    maps.Steps((maps.ZScore(1.0),), "nonzero"),
    maps.MinMax(),
    *(maps.Percentiles(0, high) for high in (99, 99.5, 99.9)),
    *(maps.Percentiles(low, 100 - low) for low in (0.5, 1, 2)),
    *(
        maps.Window(*ends)
        for ends in (
            (-1000, 1000),
            (-1000, 2000),
            (-1000, 3000),
            (-1024, 1024),
            (-1024, 2000),
            (-1024, 3071),
            (0, 1),
            (0, 255),
            (0, 1000),
            (0, 2000),
            (0, 4095),
        )
    ),
)
"""Usual maps of training codes."""

_SPACINGS = (1.0, 2.0, 1.5, 0.5, 0.8, 1.2, 3.0)
"""Usual millimetres of training grids."""

_RULES: tuple[GridRule, ...] = ("cover", "monai", "monai-scan", "torchio", "simpleitk", "nnunet")
_RANGES: tuple[maps.NetworkRange, ...] = ("-1..1", "0..1", "open")
_EDGES = (32, 48, 64, 80, 96, 112, 128, 160, 192)
_OVERLAPS = (0.0, 0.1, 0.25, 0.5, 0.6, 0.625, 0.75, 0.8)
_BLENDS: tuple[Blend, ...] = ("gaussian", "constant", "linear", "hann", "crop")
_MULTIPLES = (16, 32, 8, 64, 4)
_MARGINS = (0, 1, 2, 4, 5, 8, 10, 16, 20)
_PADDINGS: tuple[PatchPadding, ...] = (0.0, -1.0, "edge", -1000.0, -1024.0)
_USUAL_PADDINGS = 3
"""Paddings, of those above, of a window on the grid that the card lacks."""

_NEVER_PAD: tuple[WindowRule, ...] = ("at-most", "positive")

_USUAL_VOXELS: dict[WindowRule, tuple[int, ...]] = {
    "extents": _EDGES,
    "at-least": _EDGES,
    "at-most": _EDGES,
    "multiple": _MULTIPLES,
}
"""Usual numbers of the rules of a window; a margin for all others."""


def single_changes(
    card: ModelCard, *, is_whole: bool, grid: Triple | None = None
) -> Iterator[SingleChange]:
    """Yield cards with one other value, the likeliest mistakes first.

    is_whole: whether the card's inference is of whole volumes. grid: extents of the training code's
    result on the model's grid [D, H, W], if they are not the model's.
    """
    yield from _of("axes", card, (replace(card, axes=axes) for axes in _all_axes()))
    yield from _of("source", card, _other_channels(card))
    yield from _of("spacing", card, _other_spacings(card))
    if card.spacing:
        yield from _of("grid_rule", card, (replace(card, grid_rule=rule) for rule in _RULES))
    if card.grid:
        grids = (replace(card, grid=triple(grid)) for grid in permutations(card.grid))
        yield from _of("grid", card, grids)
    if card.spacing or card.grid or card.grid_window:
        yield from _of("maps_on", card, (replace(card, maps_on=on) for on in _all_maps_on(card)))
    if card.grid_window or grid:
        yield from _of("grid_window", card, _other_windows(card, grid))
    yield from _of("intensity_in", card, (replace(card, intensity_in=one) for one in _MAPS))
    yield from _of("input_range", card, (replace(card, input_range=one) for one in _RANGES))
    yield from _of("intensity_out", card, (replace(card, intensity_out=one) for one in _MAPS))
    yield from _of("output_range", card, (replace(card, output_range=one) for one in _RANGES))
    yield from _other_whole(card) if is_whole else _other_patches(card)
    if not (card.grid_window or grid):
        yield from _of("grid_window", card, _other_windows(card, grid))


def _other_whole(card: ModelCard) -> Iterator[SingleChange]:
    patches = (replace(card, inference="patches", tiling=tiling) for tiling in OWN.values())
    yield from _of("tiling", card, patches)


def _other_patches(card: ModelCard) -> Iterator[SingleChange]:
    yield from _of("tiling", card, (replace(card, tiling=one) for one in _other_tilings(card)))
    if card.tiling.code != "nnunet":
        yield from _of("patch", card, [replace(card, inference="volume")])
    patches = [*permutations(card.patch), *(3 * (edge,) for edge in _EDGES)]
    usual = (replace(card, patch=triple(one)) for one in patches if max(one) <= max(card.patch))
    yield from _of("patch", card, usual)
    paddings = (
        replace(card, small_volume_padding=one) for one in ("edge", "reflect", "minimum", 0.0)
    )
    yield from _of("small_volume_padding", card, paddings)


def _of(field: str, card: ModelCard, cards: Iterable[ModelCard]) -> Iterator[SingleChange]:
    """Yield each card once that differs from the one in use."""
    known = [card]
    for other in cards:
        if other not in known:
            known.append(other)
            yield SingleChange(field, other)


def _all_axes() -> Iterator[str]:
    for order in permutations(("RL", "AP", "SI")):
        yield from map("".join, product(*order))


_MOST_CHANNELS = 4


def _other_channels(card: ModelCard) -> Iterator[ModelCard]:
    if 1 < len(card.input_channels) <= _MOST_CHANNELS:
        for names in permutations(card.input_channels):
            yield replace(card, input_channels=names)


def _other_spacings(card: ModelCard) -> Iterator[ModelCard]:
    if card.grid:
        return
    if card.spacing:
        yield from (replace(card, spacing=triple(one)) for one in permutations(card.spacing))
        yield replace(card, spacing=None)
    yield from (replace(card, spacing=(edge, edge, edge)) for edge in _SPACINGS)


def _all_maps_on(card: ModelCard) -> Iterator[MapsOn]:
    yield from ("scan", "grid")
    if card.grid_window:
        yield "window"


def _other_windows(card: ModelCard, grid: Triple | None) -> Iterator[ModelCard]:
    """Yield cards with another window on the grid, or without one.

    grid: as of `single_changes`.
    """
    own = card.grid_window
    if own is None:
        for step in _usual_steps(card, grid):
            count = 1 if step.rule in _NEVER_PAD else _USUAL_PADDINGS
            for padding in _PADDINGS[:count]:
                yield replace(card, grid_window=GridWindow((step,), padding))
        return
    maps_on = "grid" if card.maps_on == "window" else card.maps_on
    yield replace(card, grid_window=None, maps_on=maps_on)
    for padding in _PADDINGS:
        yield replace(card, grid_window=replace(own, padding=padding))
    for fill in _fills(card):
        yield replace(card, grid_window=replace(own, fill=fill))
    for steps in _other_steps(own.steps, grid):
        yield replace(card, grid_window=replace(own, steps=steps))


def _usual_steps(card: ModelCard, grid: Triple | None) -> Iterator[WindowStep]:
    if grid:
        yield WindowStep("extents", grid)
    for multiple in _MULTIPLES:
        yield WindowStep("multiple", _even(multiple))
    for rule in ("at-least", "extents", "at-most"):
        yield WindowStep(rule, card.patch)
    for rule in ("positive", "positive-padded"):
        yield from (WindowStep(rule, _even(margin)) for margin in _MARGINS)
    yield from (WindowStep("extents", _even(edge)) for edge in _EDGES)


def _other_steps(
    own: tuple[WindowStep, ...], grid: Triple | None
) -> Iterator[tuple[WindowStep, ...]]:
    """Yield the steps of a window with one other, with one less, and in the opposite order."""
    for at, step in enumerate(own):
        before, after = own[:at], own[at + 1 :]
        if before or after:
            yield (*before, *after)
        others = [WindowStep(rule, step.voxels) for rule in get_args(WindowRule)]
        others += [WindowStep(step.rule, triple(one)) for one in permutations(step.voxels)]
        usual = _USUAL_VOXELS.get(step.rule, _MARGINS)
        others += [WindowStep(step.rule, _even(count)) for count in usual]
        others += [WindowStep("extents", grid)] if grid else []
        yield from ((*before, other, *after) for other in others)
    yield own[::-1]


def _fills(card: ModelCard) -> Iterator[float]:
    """Yield usual values of results where the grid was cropped off.

    The middle of a window is what MONAI's inverse gives if results are mapped to it afterwards.
    """
    for intensity in card.maps_out:
        if isinstance(intensity, maps.Window):
            yield intensity.low
            yield (intensity.low + intensity.high) / 2
    yield from (0.0, -1.0, -1000.0, -1024.0)


def _other_tilings(card: ModelCard) -> Iterator[Tiling]:
    own = card.tiling
    yield from (replace(own, overlap=_even(share)) for share in _OVERLAPS)
    yield from (replace(own, blend=blend) for blend in _BLENDS)
    yield from (replace(own, sigma=_even(sigma)) for sigma in (0.125, 0.25, 0.2))
    yield replace(own, border=not own.border)
    yield from (replace(own, code=code) for code in OWN)
    yield from OWN.values()


def _even(each: Number) -> tuple[Number, Number, Number]:
    return (each, each, each)
