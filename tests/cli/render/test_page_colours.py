"""The colours of a page of HTML: what is written can be read in light and in dark, and on paper."""

import re
from importlib import resources

import pytest

from cuda_cyclegan.cli.render.charts import STAGE_COLOURS

TEMPLATES = resources.files("cuda_cyclegan.cli.render") / "templates"
SHEET = (TEMPLATES / "report.css").read_text("utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r":root \{(.*?)\}", SHEET)
)
WRITTEN = sorted(set(re.findall(r"(?<![a-z-])color: ([^;]+);", SHEET)))
READABLE, SEEN = 4.5, 3.0
"""Least contrasts of text and of graphics, after WCAG 2.2, 1.4.3 and 1.4.11."""


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    levels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio, from 1 to 21."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_all_text_has_contrast_to_what_it_stands_on(scheme: dict[str, str]) -> None:
    assert WRITTEN == ["var(--bad)", "var(--faint)", "var(--ink)"]
    for name in ("bad", "faint", "ink"):
        for ground in ("paper", "wash"):
            assert contrast(scheme[name], scheme[ground]) >= READABLE, (name, ground)


def test_the_dark_scheme_is_dark_and_names_each_colour_of_the_light_one() -> None:
    assert DARK.keys() == LIGHT.keys()
    assert luminance(DARK["paper"]) < luminance(DARK["ink"])
    assert luminance(LIGHT["paper"]) > luminance(LIGHT["ink"])


def test_each_stage_is_seen_on_dark() -> None:
    instead = dict(re.findall(r'\[fill="(#[0-9a-f]{6})"\] \{ fill: (#[0-9a-f]{6}); \}', SHEET))
    for stage, colour in STAGE_COLOURS.items():
        assert contrast(instead.get(colour, colour), DARK["wash"]) >= SEEN, stage


def test_a_page_is_dark_on_a_screen_alone() -> None:
    assert re.findall(r"@media ([^{]*dark[^{]*) \{", SHEET) == [
        "screen and (prefers-color-scheme: dark)"
    ]
