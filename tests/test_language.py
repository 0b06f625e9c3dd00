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
        *("How", "Into", "It", "Its", "Onto", "Than", "These", "They", "This", "Until"),
        *("When", "Whence", "Why"),
    ]
)
"""Prepositions, pronouns and conjunctions: a docstring that begins with one has no subject."""

ODD_DOCSTRING = re.compile(rf'^\s*r?"""(?:{"|".join(sorted(ODD_BEGINNINGS))})\b', re.MULTILINE)
"""Pattern that finds such docstrings in a text without parsing it."""

ODD_TEST = re.compile(r"def test_(?:who|what|where|of|by|that)_\w+")
"""Pattern that finds names of tests that do not begin with what they are about."""

MOST_TELLING = 2
"""Limit of tell, tells and told in the product's files: `told` is a key of the JSON of `model
inspect`. The method `tell` of files does not count.
"""

PRIVATE_WORDS = {
    "matrix units": r"\bmatrix units?\b",
    "warp groups": r"\bwarp groups?\b",
    "own kernel": r"\bown kernels?\b",
    "in hand": r"\bin hand\b",
    "card": r"\b(?i:an?|the|this|each|every|another|no|on) (?:GPU )?cards?\b",
    "tell": r"\b(?:tells?|told) ",
    "nobody knows": r"\bnobody (?:knows|can)\b",
    "promises": r"\bpromise[sd]\b",
    "under way": r"\bunder way\b",
    "given up": r"\bg[ai]ven? up\b",
    "made anew": r"\b(?:made|make) anew\b",
    "passed over": r"\bpassed over\b",
    "left out": r"\b(?:left out|leaves? (?:it|them) out)\b",
    "no room": r"\b(?:no|not enough|where there is) room\b",
    "say so": r"\bsays? (?:so|which|no more|how hard)\b",
    "way back": r"\bway back\b",
    "at once": r"\bvolumes? at once\b",
    "at hand": r"\bat hand\b",
    "anew": r"\banew\b",
    "beside": r"\bbeside\b",
    "all the same": r"\ball the same\b",
    "leave out": r"\b(?:leave|leaves|left)(?: \S+){1,3} out\b",
    "go on": r"\b(?:go|goes|went) on\b",
    "any more": r"\bany ?more\b",
    "is no": r"(?<!here )\b(?:is|are) no (?!longer\b|more than\b)[a-z]",
    "says": r"\b(?:says?|said)\b",
    "obstacle": r"\bobstacles?\b",
    "nobody": r"\b(?:nobody|somebody|whoever)\b",
    "stands": r"\bstands?\b",
    "whence": r"\bwhence\b",
    "see to": r"\bsee to\b",
    "mend": r"\bmend(?:s|ed)?\b",
}
"""Words of the glossary, with patterns that find them in texts."""

_ANY = "|".join(PRIVATE_WORDS.values()).replace("(?i:", "(?:")
ANY_PRIVATE_WORD = re.compile(rf"\b(?=[a-z])(?:{_ANY})", re.IGNORECASE)
"""Pattern that finds all of them, and more; most modules need no other search. That each begins
with a word is looked at first, or the search takes four times as long.
"""

ALLOWED: Mapping[tuple[str, str], str] = {
    ("pipelines/jobs/queue/claims.py", "given up"): "a state of jobs in JSON",
    ("pipelines/jobs/queue/job.py", "given up"): "a state of jobs in JSON",
    ("pipelines/jobs/queue/dbos_queue.py", "given up"): "a state of jobs in JSON",
    ("pipelines/jobs/queue/store.py", "given up"): "a state of jobs in JSON",
    ("cli/render/models.py", "obstacle"): "a key of JSON",
    ("pipelines/node/node.py", "given up"): "a key of retries in the log",
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
        if not ANY_PRIVATE_WORD.search(words):
            continue
        yield from (
            (text.lineno, word) for word, found in PRIVATE_WORDS.items() if re.search(found, words)
        )


def may_contain_private_words(source: str) -> bool:
    """Return whether a search through the texts of a module can find something."""
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    return ANY_PRIVATE_WORD.search(" ".join(joined.split())) is not None


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, module in product().items()
        for line, text in odd_beginnings(module)
    ]
    shown = "\n".join(found)
    assert len(found) <= MOST_ODD_BEGINNINGS, f"{len(found)} docstrings without subject:\n{shown}"


@pytest.mark.parametrize("pattern", [ODD_DOCSTRING, ODD_TEST], ids=["docstrings", "names"])
def test_docstrings_and_names_of_tests_have_a_subject(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {odd.strip()}"
        for path in (ROOT / "tests").rglob("*.py")
        for odd in pattern.findall(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_software_reports_and_does_not_show() -> None:
    found = {
        str(path.relative_to(ROOT)): len(
            re.findall(r"(?<!\.)(?<!def )\b(?:tell|tells|told)\b", text)
        )
        for path in product()
        if (text := path.read_text("utf-8"))
    }
    telling = {name: count for name, count in found.items() if count}
    assert sum(telling.values()) <= MOST_TELLING, telling


@pytest.mark.parametrize("folder", ["cli", "engine", "io", "pipelines"])
def test_texts_for_users_contain_no_private_words(folder: str) -> None:
    found: dict[tuple[str, str], list[int]] = {}
    for path, module in product().items():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(folder) or not may_contain_private_words(path.read_text("utf-8")):
            continue
        for line, word in private_words(module, has_help=name.startswith(COMMANDS)):
            found.setdefault((name, word), []).append(line)
    wrong = [
        f"{name}:{line}: {word}"
        for (name, word), lines in found.items()
        if (name, word) not in ALLOWED
        for line in lines
    ]
    assert not wrong, "\n".join(wrong)
    allowed = {one for one in ALLOWED if one[0].startswith(folder)}
    assert found.keys() == allowed, "ALLOWED has entries that are no longer needed"


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
def test_rules_of_odd_beginnings(source: str, expected: list[int]) -> None:
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
def test_rules_of_private_words(source: str, expected: list[str]) -> None:
    assert [word for _, word in private_words(ast.parse(source), has_help=True)] == expected


@pytest.mark.parametrize("source", ['say(f"on the "\n    f"card")', 'say("""on\n the card""")'])
def test_texts_over_several_lines_are_searched(source: str) -> None:
    assert may_contain_private_words(source)


def test_docstrings_outside_commands_are_no_texts() -> None:
    module = ast.parse("def f():\n    '''Fill the card.'''")
    assert not [*private_words(module, has_help=False)]
