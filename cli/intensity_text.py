"""Intensity maps as the command line spells them, such as window:-1000,2000."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..engine.card import IntensityMap

FORMS = "window:LOW,HIGH, percentile:LOW,HIGH, zscore[:SPREAD], minmax or identity"


def parsed_intensity(text: str | None, hint: str) -> "IntensityMap | None":
    """The map; raises BadParameter for the option `hint`."""
    if text is None:
        return None
    from ..engine.card import Identity, MinMax, Percentiles, Window, ZScore

    kind, colon, rest = text.strip().lower().partition(":")
    numbers = _numbers(rest) if colon else ()
    match kind, numbers:
        case "window", (low, high) if low < high:
            return Window(low, high)
        case "percentile", (low, high) if 0 <= low < high <= 100:
            return Percentiles(low, high)
        case "zscore", (spread,) if spread > 0:
            return ZScore(spread)
        case "zscore", () if not colon:
            return ZScore()
        case "minmax", () if not colon:
            return MinMax()
        case "identity", () if not colon:
            return Identity()
        case _:
            raise typer.BadParameter(
                f"{text!r} is not {FORMS}, with LOW below HIGH, percentiles from 0 to 100 and "
                "SPREAD above zero.",
                param_hint=f"'{hint}'",
            )


def spelled(intensity: "IntensityMap") -> str:
    """The text that parsed_intensity reads as this map."""
    from ..engine.card import MinMax, Percentiles, Window, ZScore

    match intensity:
        case Window(low, high):
            return f"window:{_plain(low)},{_plain(high)}"
        case Percentiles(low, high):
            return f"percentile:{_plain(low)},{_plain(high)}"
        case ZScore(spread):
            return f"zscore:{_plain(spread)}"
        case MinMax():
            return "minmax"
        case _:
            return "identity"


def _plain(number: float) -> str:
    return repr(number).removesuffix(".0")


def _numbers(text: str) -> tuple[float, ...] | None:
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        return None
    return numbers if all(abs(number) < float("inf") for number in numbers) else None
