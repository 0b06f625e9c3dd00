"""Values of the options of `model import`."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..pipelines.purpose import Spacing


def parsed_names(text: str | None, hint: str) -> tuple[str, ...] | None:
    """Names of channels, separated by commas, each given once."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names) or not text.isprintable():
        raise typer.BadParameter(
            f"{text!r} does not name each channel once, such as T1 or T1,FLAIR.",
            param_hint=f"'{hint}'",
        )
    return names


def parsed_axes(text: str | None) -> str | None:
    """Anatomical directions of D, H and W."""
    if text is None:
        return None
    from ..engine.card_rules import is_axes_code

    axes = text.strip().upper()
    if not is_axes_code(axes):
        raise typer.BadParameter(
            f"{text!r} is not one of each of R or L, A or P, and S or I, such as RAS.",
            param_hint="'--axes'",
        )
    return axes


def parsed_spacing(text: str | None) -> "Spacing | None":
    """Millimetres along D, H and W, or the word native."""
    if text is None:
        return None
    if text.strip().lower() == "native":
        return "native"
    try:
        depth, height, width = map(float, text.split(","))
    except ValueError:
        depth = height = width = 0.0
    if not all(0 < edge < float("inf") for edge in (depth, height, width)):
        raise typer.BadParameter(
            f"{text!r} is neither three sizes D,H,W in mm such as 1,1,1.5 nor native.",
            param_hint="'--spacing'",
        )
    return depth, height, width
