"""Options of `model`, and parsers of values for `model import`, such as window:-1000,2000."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

import typer

from .values import parsed_patch, wrong_value

if TYPE_CHECKING:
    from ...engine.model.grid_window import GridWindow, WindowStep
    from ...engine.model.intensity_maps import ChannelMaps, IntensityMap, IntensityStep, Voxels
    from ...engine.model.model_card import ScanCrop
    from ...engine.model.tiling import Tiling
    from ...engine.patch_grid import PatchPadding
    from ...pipelines.model_import.card_draft import Spacing

MadeModel: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Model file to write.")
]
ReplacesOutput: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Replace an existing output.")
]
FORMS = (
    "window:LOW,HIGH, percentile:LOW,HIGH, zscore[:SPREAD], sample-zscore, standard:MEAN,SD, "
    "minmax or identity"
)
STEPS = (
    "clip:LOW,HIGH, clip-percentile:LOW,HIGH, log[:OFFSET] and gamma:GAMMA, joined by +, measured "
    "@nonzero, @positive, @above-mean or @filled"
)


def parsed_intensity(text: str | None, hint: str) -> "IntensityMap | None":
    """Return the map; raises BadParameter for the option `hint`.

    `clip:-1000,2000+zscore@nonzero` are steps and the voxels that they measure; `@nonzero,only`
    sets the other voxels to 0.
    """
    if text is None:
        return None
    from ...engine.model.intensity_maps import (
        ClipPercentiles,
        ClipValues,
        GammaCurve,
        Identity,
        Logarithm,
        Steps,
    )

    chain, at, where = text.strip().lower().partition("@")
    if chain == "identity" and not at:
        return Identity()
    over, comma, outside = where.partition(",")
    region = _VOXELS.get(over) if at else "all"
    steps = [*map(_step, _JOINED.split(chain))]
    known = tuple(step for step in steps if step is not None)
    if region is None or len(known) != len(steps) or (comma and outside != "only"):
        raise wrong_value(
            hint,
            f"{text!r} is not {FORMS}; LOW must be below HIGH, percentiles from 0 to 100 and "
            f"SPREAD above zero; nor is it steps of these and of {STEPS}.",
        )
    first, *more = known
    if more or at or isinstance(first, ClipValues | ClipPercentiles | Logarithm | GammaCurve):
        return Steps(known, region, "zero" if outside else "mapped")
    return first


_JOINED = re.compile(r"\+(?=[a-z])")
_VOXELS: "dict[str, Voxels]" = {
    "nonzero": "nonzero",
    "positive": "positive",
    "above-mean": "above_mean",
    "filled": "filled",
}


def _step(text: str) -> "IntensityStep | None":
    from ...engine.model import intensity_maps as maps

    kind, colon, rest = text.strip().partition(":")
    numbers = _numbers(rest) if colon else ()
    match kind, numbers:
        case "window", (low, high) if low < high:
            return maps.Window(low, high)
        case "percentile", (low, high) if 0 <= low < high <= 100:
            return maps.Percentiles(low, high)
        case "zscore", (spread,) if spread > 0:
            return maps.ZScore(spread)
        case "zscore", () if not colon:
            return maps.ZScore()
        case "sample-zscore", () if not colon:
            return maps.SampleZScore()
        case "standard", (mean, sd) if sd > 0:
            return maps.Standard(mean, sd)
        case "minmax", () if not colon:
            return maps.MinMax()
        case "clip", (low, high) if low < high:
            return maps.ClipValues(low, high)
        case "clip-percentile", (low, high) if 0 <= low < high <= 100:
            return maps.ClipPercentiles(low, high)
        case "log", (offset,):
            return maps.Logarithm(offset)
        case "log", () if not colon:
            return maps.Logarithm(0.0)
        case "gamma", (gamma,) if gamma > 0:
            return maps.GammaCurve(gamma)
        case _:
            return None


def parsed_maps(texts: Sequence[str] | None, hint: str) -> "ChannelMaps | None":
    """Return one map for all channels, or one for each; raises BadParameter for option `hint`."""
    maps = [known for text in texts or () if (known := parsed_intensity(text, hint)) is not None]
    if len(maps) > 1:
        return tuple(maps)
    return maps[0] if maps else None


def _numbers(text: str) -> tuple[float, ...] | None:
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        return None
    return numbers if all(abs(number) < float("inf") for number in numbers) else None


def parsed_names(text: str | None, hint: str) -> tuple[str, ...] | None:
    """Parse channel names separated by commas, without duplicates."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names) or not text.isprintable():
        raise wrong_value(
            hint, f"{text!r} does not name each channel once, such as T1 or T1,FLAIR."
        )
    return names


def parsed_axes(text: str | None) -> str | None:
    """Return the anatomical directions of D, H and W. Raises BadParameter."""
    if text is None:
        return None
    from ...engine.model.model_card import is_axes_code

    axes = text.strip().upper()
    if not is_axes_code(axes):
        raise wrong_value(
            "--axes", f"{text!r} is not one of each of R or L, A or P, and S or I, such as RAS."
        )
    return axes


def parsed_crop(text: str | None) -> "ScanCrop | None":
    """Parse voxels to crop to, value of results outside and margin. Raises BadParameter."""
    if text is None:
        return None
    from ...engine.model.model_card import ScanCrop

    voxels, _, rest = text.strip().lower().partition(":")
    stated, _, more = rest.partition(",")
    around, fills, margins = (
        _VOXELS.get(voxels),
        _numbers(stated.replace("/", ",")),
        _numbers(more or "0"),
    )
    match around, fills, margins:
        case str(), (fill, *others), (margin,) if margin >= 0 and margin.is_integer():
            return ScanCrop(around, int(margin), (fill, *others) if others else fill)
        case _:
            raise wrong_value(
                "--crop",
                f"{text!r} is not VOXELS:FILL or VOXELS:FILL,MARGIN such as nonzero:0, "
                f"positive:-1000,4 or, for a result each, nonzero:0/-30, with voxels "
                f"{', '.join(_VOXELS)}.",
            )


def parsed_grid_window(text: str | None) -> "GridWindow | None":
    """Parse RULE:VOXELS[+RULE:VOXELS][,padding=WORD][,fill=NUMBER]. Raises BadParameter."""
    if text is None:
        return None
    from ...engine.model.grid_window import GridWindow, invalid_window

    stated, *options = text.strip().lower().split(",")
    steps = [_window_step(step) for step in stated.split("+")]
    padding: PatchPadding = 0.0
    fill, is_known = 0.0, True
    for option in options:
        match option.partition("="):
            case "padding", _, "edge":
                padding = "edge"
            case "padding", _, value if (number := _numbers(value)) and len(number) == 1:
                [padding] = number
            case "fill", _, value if (number := _numbers(value)) and len(number) == 1:
                [fill] = number
            case _:
                is_known = False
    known = tuple(step for step in steps if step)
    window = GridWindow(known, padding, fill)
    if not is_known or len(known) < len(steps) or invalid_window(window):
        raise wrong_value(
            "--grid-window",
            f"{text!r} is not RULE:VOXELS such as extents:96/96/64, multiple:16 or "
            "positive:4+at-least:96, perhaps with ,padding=edge or ,padding=-1 and ,fill=-1000.",
        )
    return window


def _window_step(text: str) -> "WindowStep | None":
    """Return a step of a window, whose one number stands for all axes; None for another word."""
    from ...engine.model.grid_window import WindowRule, WindowStep

    rules: dict[str, WindowRule] = {rule: rule for rule in get_args(WindowRule)}
    word, _, stated = text.partition(":")
    numbers = _numbers(stated.replace("/", ",")) or ()
    voxels = numbers * 3 if len(numbers) == 1 else numbers
    if word not in rules or len(voxels) != 3 or not all(one.is_integer() for one in voxels):
        return None
    depth, height, width = map(int, voxels)
    return WindowStep(rules[word], (depth, height, width))


def parsed_training_patch(text: str | None) -> "tuple[tuple[int, int, int] | None, bool]":
    """Return the extents of training patches, and whether training saw whole volumes."""
    if text is not None and text.strip().lower() == "whole":
        return None, True
    return parsed_patch(text), False


def parsed_padding(text: str | None) -> "PatchPadding | None":
    """Return a padding: a word, or the network intensity around a scan. Raises BadParameter."""
    match text and text.strip().lower():
        case None:
            return None
        case "edge" | "reflect" | "minimum" as word:
            return word
        case str() as word if (numbers := _numbers(word)) and len(numbers) == 1:
            return numbers[0]
        case _:
            raise wrong_value(
                "--small-volume-padding", f"{text!r} is not edge, reflect, minimum or a number."
            )


def parsed_tiling(text: str | None) -> "Tiling | None":
    """Parse CODE[:overlap=SHARE[/SHARE/SHARE],blend=WORD,sigma=SHARE,border]; the rest is as the
    code has it. Raises BadParameter.
    """
    if text is None:
        return None
    from ...engine.model.tiling import OWN, invalid_tiling

    word, _, rest = text.strip().lower().partition(":")
    codes = {str(code): tiling for code, tiling in OWN.items()}
    found = codes.get(word)
    for part in filter(None, rest.split(",")):
        found = found and _with_part(found, part)
    if found is None or invalid_tiling(found):
        raise wrong_value(
            "--tiling",
            f"{text!r} is not {', '.join(codes)}, followed by options such as "
            ":overlap=0.5,blend=gaussian,sigma=0.125 or :overlap=0.25,border.",
        )
    return found


def _with_part(tiling: "Tiling", part: str) -> "Tiling | None":
    """Return a tiling with one of its options; None for an unknown one."""
    from ...engine.options import Blend

    blends: dict[str, Blend] = {name: name for name in get_args(Blend)}
    name, _, value = part.partition("=")
    match name, _numbers(value.replace("/", ",")) or ():
        case "overlap" | "sigma", (each,):
            return replace(tiling, **{name: (each, each, each)})
        case "overlap" | "sigma", (depth, height, width):
            return replace(tiling, **{name: (depth, height, width)})
        case "blend", () if value in blends:
            return replace(tiling, blend=blends[value])
        case "border", () if not value:
            return replace(tiling, border=True)
        case _:
            return None


def parsed_extents(text: str | None, hint: str) -> "tuple[int, int, int] | None":
    """Return the voxels along D, H and W; raises BadParameter for the option `hint`."""
    if text is None:
        return None
    match _numbers(text):
        case (depth, height, width) if all(
            edge >= 2 and edge.is_integer() for edge in (depth, height, width)
        ):
            return int(depth), int(height), int(width)
        case _:
            raise wrong_value(hint, f"{text!r} is not three extents D,H,W of at least 2 voxels.")


def parsed_spacing(text: str | None) -> "Spacing | None":
    """Return millimetres along D, H and W, or the word native. Raises BadParameter."""
    if text is None:
        return None
    if text.strip().lower() == "native":
        return "native"
    try:
        depth, height, width = map(float, text.split(","))
    except ValueError:
        depth = height = width = 0.0
    if not all(0 < edge < float("inf") for edge in (depth, height, width)):
        raise wrong_value(
            "--spacing", f"{text!r} is neither three sizes D,H,W in mm such as 1,1,1.5 nor native."
        )
    return depth, height, width
