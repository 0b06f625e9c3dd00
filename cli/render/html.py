"""Pages from templates: no other file, no network, and no name that could become markup."""

from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .terminal.settings import flagged
from .terminal.text import counted, printable

if TYPE_CHECKING:
    from markupsafe import Markup


def rendered(template: str, filters: dict[str, Callable[..., Any]], **values: object) -> str:
    """Render a page. filters: functions that the template uses on values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__ or ""),
        autoescape=True,
        finalize=_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        base64=lambda content: b64encode(content).decode(), counted=counted, flagged=flagged
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(**values)


def _text(value: object) -> "str | Markup":
    """Return a value on one line, with control characters escaped and numbers rounded."""
    from markupsafe import Markup

    if isinstance(value, Markup):
        return value
    return printable(f"{value:.6g}" if isinstance(value, float) else str(value))
