"""HTML built as a tree, so that no name in it can ever become markup; parts that pages share."""

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

from ..terminal.text import printable

Child: TypeAlias = Element | str | None


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """An element; text is shown on one line with control characters escaped.

    Attribute names may end in an underscore (class_), and inner ones become dashes; those whose
    value is None are left out.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), printable(_number(value)))
    for child in children:
        add(made, child)
    return made


def add(parent: Element, child: Child) -> None:
    """Put an element or text behind all that the parent holds."""
    if child is None:
        return
    if isinstance(child, Element):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + printable(child)
    else:
        parent.text = (parent.text or "") + printable(child)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Child]],
    numbers: Collection[int] = (),
    total: Sequence[Child] = (),
    class_: str | None = None,
) -> Element:
    """A table; `numbers`: which columns stand right."""

    def line(tag: str, cells: Sequence[Child]) -> Element:
        return element(
            "tr",
            *(
                element(tag, cell, class_="number" if index in numbers else None)
                for index, cell in enumerate(cells)
            ),
        )

    return element(
        "table",
        element("thead", line("th", head)),
        element("tbody", *(line("td", row) for row in rows)),
        element("tfoot", line("td", total)) if total else None,
        class_=class_,
    )


def document(title: str, *body: Child) -> str:
    """A whole page that loads nothing and runs nothing, in the one style of all pages."""
    sheet = element("style")
    sheet.text = Path(__file__).with_name("report.css").read_text("utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; img-src data:; style-src 'unsafe-inline'",
        ),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        sheet,
    )
    page = element("html", head, element("body", *body), lang="en")
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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
