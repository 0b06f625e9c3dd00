"""Docstrings and texts for users follow the section "Language" of CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest
from support.product_source import ROOT, product

MOST_ODD_BEGINNINGS = 0
"""Docstrings of the product that may still begin with one of `ODD_BEGINNINGS`; only lower it."""

ODD_BEGINNINGS = frozenset(
    [
        *("As", "At", "Behind", "Beside", "By", "For", "From", "In", "Of", "On", "To", "Under"),
        *("That", "What", "Where", "Which", "Who", "Whom", "Whose", "With"),
    ]
)
"""Prepositions and relative pronouns: a docstring that begins with one has no subject."""

PRIVATE_WORDS = {
    "matrix units": r"\bmatrix units?\b",
    "warp groups": r"\bwarp groups?\b",
    "own kernel": r"\bown kernels?\b",
    "in hand": r"\bin hand\b",
    "card": r"\b(?i:an?|the|this|each|every|no|on) (?:GPU )?cards?\b",
}
"""Words of the glossary, with patterns that find them in texts."""

ALLOWED: Mapping[tuple[str, str], str] = {
    ("cli/commands/bench/bench.py", "card"): "a GPU in a help text that is not rewritten yet",
    ("cli/commands/model_calibrate.py", "card"): "a model card",
    ("cli/commands/queue/worker.py", "in hand"): "claimed jobs in a log line not rewritten yet",
    ("cli/render/bench.py", "card"): "a GPU in a message that is not rewritten yet",
    ("pipelines/doctor/machine.py", "card"): "a GPU in a message that is not rewritten yet",
    ("pipelines/jobs/gpu_sharing.py", "card"): "a GPU in messages not rewritten yet",
}
"""Files with a word that they may contain all the same, and the reason."""


COMMANDS = "cli/commands/"
"""Folder whose public functions are commands, with their help as docstring."""


def docstrings(module: ast.Module) -> Iterator[ast.Constant]:
    """Yield docstrings of a module, its classes and functions, and strings below assignments."""
    for node in ast.walk(module):
        match node:
            case (
                ast.Module(body=body)
                | ast.ClassDef(body=body)
                | ast.FunctionDef(body=body)
                | ast.AsyncFunctionDef(body=body)
            ):
                yield from docstrings_in(body)
            case _:
                pass


def docstrings_in(body: list[ast.stmt]) -> Iterator[ast.Constant]:
    """Yield the docstring at the beginning of a body, and those below its assignments."""
    match body:
        case [ast.Expr(ast.Constant(str()) as text), *_]:
            yield text
        case _:
            pass
    for pair in pairwise(body):
        match pair:
            case (ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str()) as text)):
                yield text
            case _:
                pass


def odd_beginnings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and first line of each docstring that begins with one of `ODD_BEGINNINGS`."""
    for text in docstrings(module):
        first_line, *_ = str(text.value).strip().splitlines() or [""]
        if re.split(r"[\s,:]", first_line)[0] in ODD_BEGINNINGS:
            yield text.lineno, first_line


def texts(module: ast.Module, *, has_help: bool) -> Iterator[ast.Constant]:
    """Yield all strings that a user may see: all but docstrings.

    has_help: whether docstrings of public functions are the help of commands, and count too.
    """
    shown = {
        id(text)
        for node in module.body
        if has_help and isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        for text in docstrings_in(node.body)
    }
    hidden = {id(text) for text in docstrings(module)} - shown
    for node in ast.walk(module):
        match node:
            case ast.Constant(str()) if id(node) not in hidden:
                yield node
            case _:
                pass


def private_words(module: ast.Module, *, has_help: bool) -> Iterator[tuple[int, str]]:
    """Yield line and word for each word of the glossary in texts, whatever their line breaks."""
    for text in texts(module, has_help=has_help):
        words = " ".join(str(text.value).split())
        yield from (
            (text.lineno, word) for word, found in PRIVATE_WORDS.items() if re.search(found, words)
        )


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, module in product().items()
        for line, text in odd_beginnings(module)
    ]
    shown = "\n".join(found)
    assert len(found) <= MOST_ODD_BEGINNINGS, f"{len(found)} docstrings without subject:\n{shown}"


def test_texts_for_users_contain_no_private_words() -> None:
    found: dict[tuple[str, str], list[int]] = {}
    for path, module in product().items():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(("cli/", "pipelines/")):
            for line, word in private_words(module, has_help=name.startswith(COMMANDS)):
                found.setdefault((name, word), []).append(line)
    wrong = [
        f"{name}:{line}: {word}"
        for (name, word), lines in found.items()
        if (name, word) not in ALLOWED
        for line in lines
    ]
    assert not wrong, "\n".join(wrong)
    assert found.keys() == ALLOWED.keys(), "ALLOWED has entries that are no longer needed"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'''Of its blocks.'''", [1]),
        ("'''What is known.'''\nSIZE = 1\n'''In bytes.'''", [1, 3]),
        ("class A:\n    '''By: name.'''\n    size: int = 1\n    '''Under which.'''", [2, 4]),
        ("def f():\n    '''Return of maps.'''\n    x = 1\n    print('Of its blocks')", []),
        ("async def f():\n    '''\n    Which one.\n    '''", [2]),
        ("'''Offset, Input, Whether.'''", []),
    ],
)
def test_what_counts_as_odd(source: str, expected: list[int]) -> None:
    assert [line for line, _ in odd_beginnings(ast.parse(source))] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("say(f'{n} MiB of the card')", ["card"]),
        ("say('runs on the\\n  matrix  units')", ["matrix units"]),
        ("def _f():\n    '''Of the card.'''", []),
        ("def f():\n    '''Fill the card.'''", ["card"]),
        ("say('the GPU, the model card')", []),
    ],
)
def test_what_counts_as_private(source: str, expected: list[str]) -> None:
    assert [word for _, word in private_words(ast.parse(source), has_help=True)] == expected


def test_docstrings_outside_commands_are_no_texts() -> None:
    module = ast.parse("def f():\n    '''Fill the card.'''")
    assert not [*private_words(module, has_help=False)]
