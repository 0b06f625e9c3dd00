"""A real browser without a window: Debian's Chromium, driven by Playwright."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Debian's chromium (.ci/install-judges)"
)


@contextmanager
def opened_page(width: int = 1280, height: int = 800, faults: int = 0) -> "Generator[Page]":
    """A page of a fresh browser; at the end no more may have gone wrong in it than was meant to."""
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on(
                "console",
                lambda message: wrong.append(message.text) if message.type == "error" else None,
            )
            yield page
        finally:
            browser.close()
    assert len(wrong) == faults, wrong
