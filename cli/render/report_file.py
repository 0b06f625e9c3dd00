"""Where documents go: JSON to a file or standard output, a page to a file."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .terminal.streams import say
from .terminal.text import file_size, printable

if TYPE_CHECKING:
    from ...pipelines.report.report import BatchReport

STDOUT = Path("-")


def standard_named(target: Path | None) -> Path | None:
    """The same place, and `STDOUT` for another name of standard output, such as /dev/stdout."""
    if target is None or target == STDOUT:
        return target
    from ...io.files.documents import is_descriptor

    return STDOUT if is_descriptor(target, 1) else target


def screen(report: Path | None) -> TextIO:
    """Where tables go, so that nothing but the report is on standard output if it goes there."""
    return sys.stderr if report == STDOUT else sys.stdout


def written(target: Path, size: int) -> str:
    """That a file was made; size: its bytes."""
    return f"Written: {printable(str(target))}, {file_size(size)}"


def save_page(page: str, target: Path) -> int:
    """Write a page for a browser; its bytes. Raises WriteError."""
    from ...io.files.documents import write_document

    content = page.encode()
    write_document(target, content)
    return len(content)


def write_json(content: Mapping[str, Any], target: Path) -> None:
    """Store or print a document. Raises WriteError."""
    from ...io.files.documents import write_document

    text = json.dumps(content, indent=2)
    if target == STDOUT:
        say(text, sys.stdout)
    else:
        write_document(target, f"{text}\n".encode())


def write_report(report: "BatchReport", target: Path) -> None:
    """Store or print it. Raises WriteError."""
    from ...pipelines.report.codec import to_json

    write_json(to_json(report), target)
