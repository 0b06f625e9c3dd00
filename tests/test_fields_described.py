"""Every public field of a record is described, in its class's docstring or below the field."""

import ast
import re
from collections.abc import Iterator

import pytest
from support.product_source import ROOT, product

RECORDS = {"Struct", "NamedTuple", "TypedDict"}
OPTIONS = [ROOT / "cli" / "options" / name for name in ("bids.py", "groups.py", "study.py")]
"""Each of their fields is an option of the command line, whose help describes it."""


def classes(block: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Classes of a module or class, and those within them."""
    for node in block.body:
        if isinstance(node, ast.ClassDef):
            yield node
            yield from classes(node)


def records(module: ast.Module) -> Iterator[ast.ClassDef]:
    """Public dataclasses and other classes that hold named values."""
    for node in classes(module):
        if not node.name.startswith("_"):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            is_dataclass = any(found.startswith("dataclass") for found in decorators)
            if is_dataclass or RECORDS & {ast.unparse(base) for base in node.bases}:
                yield node


def is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def undescribed(record: ast.ClassDef) -> Iterator[str]:
    reported = ast.get_docstring(record) or ""
    for place, node in enumerate(record.body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                below = record.body[place + 1 : place + 2]
                has_text = any(is_text(following) for following in below)
                if not has_text and not re.search(rf"\b{name}\b", reported):
                    yield f"{record.name}.{name}"
            case _:
                pass


def test_every_public_field_is_described() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {field}"
        for path, module in product().items()
        if path not in OPTIONS
        for record in records(module)
        for field in undescribed(record)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@dataclass\nclass A:\n    '''Something.'''\n    size: int", ["A.size"]),
        ("@dataclass(frozen=True)\nclass A:\n    '''size: in bytes.'''\n    size: int", []),
        ("class A(Struct):\n    size: int\n    '''In bytes.'''\n    name: str", ["A.name"]),
        ("class A:\n    size: int", []),
        ("@dataclass\nclass _A:\n    size: int", []),
    ],
)
def test_rules_of_described_fields(source: str, expected: list[str]) -> None:
    [*found] = (field for record in records(ast.parse(source)) for field in undescribed(record))
    assert found == expected
