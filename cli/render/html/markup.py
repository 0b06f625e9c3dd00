"""HTML built as a tree, so that no name in it can ever become markup."""

from collections.abc import Collection, Iterable, Sequence
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
