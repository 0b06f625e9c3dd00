"""A real browser without a window: Debian's Chromium, driven by Playwright."""

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest
from support.waiting import ENOUGH, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Debian's chromium (.ci/install-judges)"
)


LOCAL = ("http://127.0.0.1:", "file:", "data:", "blob:", "about:")


@contextmanager
def opened_page(
    width: int = 1280,
    height: int = 800,
    faults: int | None = 0,
    scheme: Literal["light", "dark"] = "light",
) -> "Generator[Page]":
    """A page of a fresh browser; at the end no more may have gone wrong in it than was meant to.

    A request to another host counts as such a fault. faults: how many are meant; None for any.
    """
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=ENOUGH * 1000
        )
        try:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page.set_default_timeout(ENOUGH * 1000)
            page.on(
                "request",
                lambda asked: None if asked.url.startswith(LOCAL) else wrong.append(asked.url),
            )
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on(
                "console",
                lambda message: wrong.append(message.text) if message.type == "error" else None,
            )
            yield page
            if faults:  # the browser may report them after what they lead to
                eventually(lambda: page.evaluate("true") and len(wrong) >= faults)
        finally:
            browser.close()
    assert faults is None or len(wrong) == faults, wrong


def wait_until(page: "Page", expression: str) -> None:
    """Wait until an expression is true in the page.

    Playwright's `wait_for_function` evaluates its text within the page from the second time on,
    which the page's content security policy forbids; a call from outside is exempt.
    """
    eventually(
        lambda: page.evaluate(expression),
        evidence=lambda: f"{expression}\nannounced: {announced(page)}\n{words_of(page)}",
    )


def words_of(page: "Page") -> str:
    """Return what is shown, in one line."""
    return " ".join(page.inner_text("body").split())[:2000]


def announced(page: "Page") -> str:
    """The last message of a page to screen readers."""
    return page.evaluate("document.getElementById('announcement')?.textContent")


def wait_for_announcement(page: "Page", text: str) -> None:
    """Wait until this is announced: of a mark once it is stored, and all before it are."""
    wait_until(page, f"document.getElementById('announcement').textContent === {json.dumps(text)}")
