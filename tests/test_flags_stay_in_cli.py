"""Spelling of options: only the command line's; the packages below name settings."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from support.product_source import ROOT, product

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.errors import sentence
from cuda_cyclegan.cli.render.text import flagged, known_settings
from cuda_cyclegan.pipelines.errors import SettingsError
from cuda_cyclegan.pipelines.settings import FIELDS

ALLOWED = {
    ("pipelines/translate.py", "--device"),
    ("engine/importing/foreign_files.py", "--output"),
}
"""Names under which speeds are remembered from one version to the next, which nobody is shown, and
options of other programs.
"""

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
SETTING = re.compile(r"\b[Ss]etting ([a-z][a-z-]*)(?=[=;,. ]|$)")


def texts(tree: ast.Module) -> Iterator[str]:
    """Every string that is no docstring, with `{}` in place of what is put into it."""
    nodes = list(ast.walk(tree))
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    skipped = statements | inside
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            yield node.value


@pytest.fixture(scope="module")
def texts_below() -> list[tuple[str, str]]:
    """Every text below the command line, after the file that holds it."""
    return [
        (path.relative_to(ROOT).as_posix(), text)
        for path, tree in product().items()
        if not path.is_relative_to(ROOT / "cli")
        for text in texts(tree)
    ]


def options(command: Any) -> set[str]:
    """Every option of a command and of those below it."""
    found = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    below = getattr(command, "commands", {}).values()
    return found.union(*map(options, below))


@pytest.fixture(scope="module")
def all_options() -> set[str]:
    return options(typer.main.get_command(app))


def test_no_text_below_the_command_line_spells_an_option(
    texts_below: list[tuple[str, str]], all_options: set[str]
) -> None:
    spelt = [
        f"{file}: {flag} in {text!r}"
        for file, text in texts_below
        for flag in FLAG.findall(text)
        if flag in all_options and (file, flag) not in ALLOWED
    ]
    assert not spelt, "\n".join(spelt)


def test_every_setting_that_a_text_speaks_of_is_an_option(
    texts_below: list[tuple[str, str]], all_options: set[str]
) -> None:
    spoken = {name for _, text in texts_below for name in SETTING.findall(text)}
    assert spoken - known_settings() == set()
    assert {f"--{name}" for name in known_settings()} - all_options == set()


def test_every_setting_that_a_text_speaks_of_is_shown_as_an_option(
    texts_below: list[tuple[str, str]],
) -> None:
    shown = [flagged(f"; {text.replace('{}', '1')}") for _, text in texts_below]
    left = [text for text in shown if known_settings() & {*SETTING.findall(text)}]
    assert not left, "\n".join(left)


def test_an_error_of_settings_has_those_that_it_names_as_a_field() -> None:
    calls = [
        (path, node)
        for path, tree in product().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "SettingsError"
    ]
    assert calls
    for path, call in calls:
        message, *given = call.args
        named = {name for text in texts(ast.Expression(message)) for name in SETTING.findall(text)}
        stated = {one.value for one in given if isinstance(one, ast.Constant)}
        absent = {FIELDS.get(name, name.replace("-", "_")) for name in named} - stated
        assert len(absent) <= len(given) - len(stated), f"{path}:{call.lineno}: {absent}"


def test_an_option_in_a_text_is_seen() -> None:
    source = '"""Of --patch."""\nraise ValueError(f"{x} is wrong; use " f"--patch {y}")'
    assert [FLAG.findall(text) for text in texts(ast.parse(source))] == [["--patch"]]


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ("lower setting vram-limit", "lower --vram-limit"),
        ("use setting device=cuda:N, or wait", "use --device cuda:N, or wait"),
        ("choose one of 0 to 3 with setting volume=N.", "choose one of 0 to 3 with --volume N."),
        ("/a: Setting direction=AtoB contradicts", "/a: --direction AtoB contradicts"),
        ("omit setting yield-to-others.", "omit --yield-to-others."),
        (
            "16 GiB are free; setting patch=96,96,64 fits.",
            "16 GiB are free; --patch 96,96,64 fits.",
        ),
        ("a small setting patch only", "a small --patch only"),
        ("None of these settings can run", "None of these settings can run"),
        ("a setting of its own, the setting patched", "a setting of its own, the setting patched"),
    ],
)
def test_settings_are_shown_as_options(reported: str, shown: str) -> None:
    assert flagged(reported) == shown


@pytest.mark.parametrize(
    "name",
    [
        *("/data/setting patch/a.nii", "/data/my setting patch/a.nii", "/data/setting patch"),
        *("setting patch", "setting patch/a.nii", "setting patch.nii.gz", "setting patch=64.nii"),
        *("the setting patch.nii", "x-setting patch", r"C:\setting patch\a.nii"),
    ],
)
def test_a_file_name_is_not_shown_as_an_option(name: str) -> None:
    reported = f"{name} is truncated; use setting format=nifti."
    assert flagged(reported) == f"{name} is truncated; use --format nifti."


def test_only_the_settings_of_an_error_are_shown_as_options() -> None:
    reported = "Model old setting patch makes 2 results; setting spread supports one."
    shown = "Model old setting patch makes 2 results; --spread supports one."
    assert sentence(SettingsError(reported, "spread")) == shown
