"""JSON and HTML documents, and their destinations."""

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .terminal import print_line
from .text import counted, file_size, flagged, printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from ...pipelines.report.report import BatchReport


STDOUT = Path("-")


def standard_named(target: Path | None) -> Path | None:
    """Return `STDOUT` for other names of standard output, such as /dev/stdout, else the target."""
    if target is None or target == STDOUT:
        return target
    from ...io.files.documents import is_descriptor

    return STDOUT if is_descriptor(target, 1) else target


def screen(report: Path | None) -> TextIO:
    """Return the stream for tables: not standard output if the report goes there."""
    return sys.stderr if report == STDOUT else sys.stdout


def written(target: Path, size: int) -> str:
    """Return the message that a file was written. size: its bytes."""
    return f"Written: {printable(str(target))}, {file_size(size)}"


def save_page(page: str, target: Path) -> int:
    """Write a page for a browser and return its size in bytes. Raises WriteError."""
    from ...io.files.documents import write_document

    content = page.encode()
    write_document(target, content)
    return len(content)


def json_text(content: Mapping[str, Any]) -> str:
    """Encode a document as JSON, in ASCII; its values may be records and paths."""
    from ...engine.decoding import encode

    return json.dumps(encode(content), indent=2)


def write_json(content: Mapping[str, Any], target: Path) -> None:
    """Store or print a document, encoded by `json_text`. Raises WriteError."""
    from ...io.files.documents import write_document

    text = json_text(content)
    if target == STDOUT:
        print_line(text, sys.stdout)
    else:
        write_document(target, f"{text}\n".encode())


def write_report(report: "BatchReport", target: Path) -> None:
    """Store or print a report. Raises WriteError."""
    from ...pipelines.report.codec import to_json

    write_json(to_json(report), target)


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


_FILTERS: dict[str, Callable[..., Any]] = {
    "base64": _base64,
    "counted": counted,
    "flagged": flagged,
}


def rendered(template: str, filters: dict[str, Callable[..., Any]], **values: object) -> str:
    """Render a page. filters: functions that the template uses on values."""
    environment = _page_environment(tuple(filters.items()))
    return environment.get_template(template).render(**values)


def rendered_text(template: str, **values: object) -> str:
    """Render a template that is no page, with its values as they are."""
    return _environment(is_page=False).get_template(template).render(**values)


@lru_cache  # compiling the templates takes longer than rendering a page
def _page_environment(filters: tuple[tuple[str, Callable[..., Any]], ...]) -> "Environment":
    environment = _environment(is_page=True)
    named: dict[str, Any] = {**_FILTERS, **dict(filters)}
    environment.filters.update(named)
    return environment


def _environment(*, is_page: bool) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(__package__ or ""),
        autoescape=is_page,
        finalize=_text if is_page else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _text(value: object) -> "str | Markup":
    """Return a value on one line, with control characters escaped and numbers rounded."""
    from markupsafe import Markup

    if isinstance(value, Markup):
        return value
    return printable(f"{value:.6g}" if isinstance(value, float) else str(value))
