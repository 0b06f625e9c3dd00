"""Sphinx configuration of the documentation site, which `.ci/docs` builds from this folder.

The pages are plain Markdown, which forges show too; what only a site can show is added here.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import metadata
from pathlib import Path
from typing import get_args

import click
import typer.main
from sphinx.application import Sphinx

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app

project = "cuda-cyclegan"
about = metadata(project)
version = release = about["Version"]
author = "The cuda-cyclegan maintainers"
copyright = f"{author}, Apache-2.0. Results are synthetic and not for diagnosis."  # noqa: A001
repository = dict(url.split(", ") for url in about.get_all("Project-URL") or []).get("Repository")
html_theme_options = {
    "source_repository": repository or "",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_title = f"{project} {version}"
html_theme = "furo"
html_search_scorer = str(Path(__file__).with_name("search_order.js"))
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["locks"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
default_role = "py:obj"
smartquotes = False  # which would make a dash of the hyphens of an option

HELP_WIDTH = 78
root = typer.main.get_command(app)


def navigation(page: str) -> str:
    """Return a hidden table of contents for each section of the index, of the pages it links."""
    sections = (section.partition("\n") for section in re.split(r"^## ", page, flags=re.M)[1:])
    return "".join(contents(text, f":caption: {caption}\n") for caption, _, text in sections)


def contents(text: str, options: str = "") -> str:
    """Return a hidden table of contents of the pages that a text links."""
    pages = "\n".join(re.findall(r"\]\((\S+)\.md\)", text))
    return f"\n```{{toctree}}\n:hidden:\n{options}\n{pages}\n```\n"


def manual_pages(command: str) -> Iterator[str]:
    """Yield the reference of a command and those below it: text, and each option with a link."""
    parent = click.Context(root, info_name=project)
    above = click.Context(root.commands[command], info_name=command, parent=parent)
    for words, context in contexts(above, command):
        help_page = HelpPage(width=HELP_WIDTH)
        context.command.format_options(context, help_page)
        usage = context.command.collect_usage_pieces(context)
        text = [f".. program:: {context.command_path}", literal([context.command_path, *usage])]
        text += paragraphs(context.command.help or "")
        for title, records in help_page.sections.items():
            directive = "describe" if title in ("Arguments", "Commands") else "option"
            text.append(f".. rubric:: {title}")
            text += (
                f".. {directive}:: {spelled(names)}\n\n   {inline(says)}" for names, says in records
            )
        text += paragraphs(context.command.epilog or "")
        heading = f"\n## {words}\n" if words != command else ""
        yield f"{heading}\n```{{eval-rst}}\n" + "\n\n".join(text) + "\n```\n"


class HelpPage(click.HelpFormatter):
    """Keeps the records that `--help` prints, by the title of their section."""

    def __init__(self, width: int) -> None:
        super().__init__(width=width)
        self.sections: dict[str, list[tuple[str, str]]] = {}
        self._title = ""

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Name the section of the records that follow."""
        self._title = name
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]], *_: int) -> None:
        """Keep records: names of an option with its value, and its help with the default."""
        self.sections.setdefault(self._title, []).extend(rows)


def contexts(context: click.Context, words: str = "") -> Iterator[tuple[str, click.Context]]:
    """Yield every command below one, with the words that call it; groups come first."""
    yield words, context
    commands = getattr(context.command, "commands", {})
    for name in commands:
        inner = click.Context(commands[name], info_name=name, parent=context)
        yield from contexts(inner, f"{words} {name}".strip())


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a command's help; those that click keeps as they are, as code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = paragraph.splitlines()
        yield literal(lines[1:], "\n") if lines[:1] == ["\b"] else inline(" ".join(lines))


def literal(lines: Sequence[str], joint: str = " ") -> str:
    """Return a block of code."""
    return f".. code-block:: text\n\n{textwrap.indent(joint.join(lines), '   ')}"


def inline(text: str) -> str:
    """Return a sentence of the help as reStructuredText, with names of options as code."""
    escaped = re.sub(r"([\\*`_|])", r"\\\1", text)
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"``\g<0>``", escaped)


def spelled(names: str) -> str:
    """Return the spellings of an option as Sphinx takes them."""
    return names.replace(" / ", ", ").replace("\\", "\\\\")


def public_names() -> str:
    """Return directives for all public names: docstrings, and what each type alias stands for."""
    aliases = (
        f".. py:type:: {name}\n   :canonical: {' | '.join(kinds)}\n\n"
        for name in cc.__all__
        if (kinds := [kind.__name__ for kind in get_args(getattr(cc, name))])
    )
    module = ".. automodule:: cuda_cyclegan\n   :members:\n   :imported-members:\n\n"
    return f"\n```{{eval-rst}}\n{module}{''.join(aliases)}```\n"


def listings(page: str) -> Iterator[str]:
    """Yield the text of each program that the page of examples links to, under its name."""
    for name in re.findall(r"\]\((examples/\S+)\)", page):
        yield f"\n## {name.removeprefix('examples/')}\n\n```{{literalinclude}} {name}\n```\n"


def of_repository(name: str) -> str:
    """Return a page from the top of the repository without its title, with links from docs/ and
    without those to pages elsewhere.
    """
    text = (Path(__file__).parents[1] / name).read_text("utf-8").partition("\n")[2]
    text = re.sub(r"\[([^]]*)\]\((?!docs/)[\w/]+\.md\)", r"\1", text)
    return re.sub(r"\]\((docs/)?(?!\w+:|#)", lambda link: "](" if link[1] else "](../", text)


def complete(_: Sphinx, page: str, source: list[str]) -> None:
    """Add to a page what the plain file leaves out."""
    if page == "index":
        source[0] += navigation(source[0])
    elif page == "options":
        source[0] += contents("".join(re.findall("^- .*", source[0], re.M)))
    elif page.startswith("options/"):
        source[0] += "".join(manual_pages(page.removeprefix("options/")))
    elif page in ("readme", "changelog"):
        source[0] += of_repository(f"{page.upper()}.md")
    elif page == "examples":
        source[0] += "".join(listings(source[0]))
    elif page == "api":
        source[0] += public_names()


def setup(site: Sphinx) -> None:
    """Register what completes the pages; called by Sphinx."""
    site.connect("source-read", complete)
