"""docs/troubleshooting.md: each message is one that the program prints."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

import pytest
from support.product_source import ROOT, product

from cuda_cyclegan.cli.render.text import flagged

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
MESSAGES = re.findall(r"^\*\*`(.*)`\*\*$", PAGE, re.MULTILINE)
FIELD = "…"


@cache
def templates() -> list[str]:
    """Texts of the product as they are printed, with a sign in place of each value."""
    return [flagged(text) for module in product().values() for text in texts(module)]


def texts(module: ast.Module) -> Iterator[str]:
    values = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part(value, values) for value in node.values)


def part(value: ast.expr, constants: Mapping[str, object]) -> str:
    """Text of a part of an f-string; that of a constant of the module, if it is one."""
    match value:
        case ast.Constant(value=text):
            return str(text)
        case ast.FormattedValue(value=ast.Name(id=name)) if isinstance(constants.get(name), str):
            return str(constants[name])
        case _:
            return FIELD


def is_printed(message: str) -> bool:
    """Whether a text of the program has the words of a message in their order, and a value where
    the message has the sign for one.
    """
    return any(message.strip(FIELD) in text for text in templates())


def test_there_are_at_least_forty_messages_and_each_has_a_cure() -> None:
    assert len(MESSAGES) == len({*MESSAGES}) >= 40
    assert PAGE.count("**Cure:**") == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_programs(message: str) -> None:
    assert is_printed(message)


@pytest.mark.parametrize(
    "message", ["… does not exist; check the path.", "the disc is full; free space"]
)
def test_other_words_are_found_out(message: str) -> None:
    assert not is_printed(message)
