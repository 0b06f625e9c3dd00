"""Sphinx configuration of the documentation site, which `.ci/docs` builds from this folder.

The pages are plain Markdown, which forges show too; what only a site can show is added here.
"""

import re
from collections.abc import Iterator
from importlib.metadata import version as version_of
from typing import Any, get_args

import typer.main
from sphinx.application import Sphinx
from typer.testing import CliRunner

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app

project = "cuda-cyclegan"
version = release = version_of(project)
html_title = f"{project} {version}"
html_theme = "furo"
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["locks"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
default_role = "py:obj"

HELP_WIDTH = 78


def navigation(page: str) -> str:
    """Return a hidden table of contents for each section of the index, of the pages it links."""
    sections = (section.partition("\n") for section in re.split(r"^## ", page, flags=re.M)[1:])
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n"
        + "\n".join(re.findall(r"\]\((\S+)\.md\)", text))
        + "\n```\n"
        for caption, _, text in sections
    )


def manual_pages() -> Iterator[str]:
    """Yield the help of every command under a heading."""
    for words in commands(typer.main.get_command(app)):
        shown = CliRunner().invoke(app, [*words, "--help"], terminal_width=HELP_WIDTH)
        yield f"\n## {' '.join(words) or project}\n\n```text\n{shown.stdout.rstrip()}\n```\n"


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, those of groups too."""
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


def public_names() -> str:
    """Return directives for all public names: docstrings, and what each type alias stands for."""
    aliases = (
        f".. py:type:: {name}\n   :canonical: {' | '.join(kinds)}\n\n"
        for name in cc.__all__
        if (kinds := [kind.__name__ for kind in get_args(getattr(cc, name))])
    )
    module = ".. automodule:: cuda_cyclegan\n   :members:\n   :imported-members:\n\n"
    return f"\n```{{eval-rst}}\n{module}{''.join(aliases)}```\n"


def complete(_: Sphinx, page: str, source: list[str]) -> None:
    """Add to a page what the plain file leaves out."""
    if page == "index":
        source[0] += navigation(source[0])
    elif page == "options":
        source[0] += "".join(manual_pages())
    elif page == "api":
        source[0] += public_names()


def setup(site: Sphinx) -> None:
    """Register what completes the pages; called by Sphinx."""
    site.connect("source-read", complete)
