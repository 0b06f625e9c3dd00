"""Parts that pages have in common: figures at their top, plots, long tables, pictures."""

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping
from xml.etree.ElementTree import Element

from .markup import element

LONG = 100
"""Rows from which a table is closed until a reader opens it."""


def tiles(figures: Mapping[str, str], bad: Collection[str]) -> Element:
    """Figures under their names, but for empty ones. bad: names of what went wrong."""
    shown = (
        element(
            "div",
            element("dt", name),
            element("dd", words),
            class_="bad" if name in bad else None,
        )
        for name, words in figures.items()
        if words
    )
    return element("dl", *shown, class_="tiles")


def plots(named: Iterable[tuple[str, Element]]) -> Element:
    """Plots with their names, side by side as far as there is room."""
    figures = (element("figure", element("figcaption", name), plot) for name, plot in named)
    return element("div", *figures, class_="plots")


def openable(rows: Element, count: int) -> Element:
    """A table as it is, or closed if it is so long that nobody could see what stands below."""
    if count < LONG:
        return rows
    return element("details", element("summary", f"Show all {count}"), rows)


def figure(name: str, told: str, picture: bytes, *, is_large: bool) -> Element:
    """A WebP picture, which a checkbox nobody sees makes large: that needs no script, no second.

    name: of the study, which stands below. told: what the picture shows, for those who cannot see.
    """
    source = f"data:image/webp;base64,{b64encode(picture).decode()}"
    image = element("img", src=source, alt=told, loading="lazy")
    switch = element("input", type="checkbox", aria_label=f"Show {name} large")
    if is_large:
        switch.set("checked", "checked")
    return element(
        "figure", element("label", switch, image, element("span", name, class_="caption"))
    )
