"""Keys of a route about bearer tokens for DICOMweb: a file, or OAuth 2.0 client credentials."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...pipelines.errors import ConfigError

if TYPE_CHECKING:
    from ...pipelines.node.routes import TokenSource

_TOKEN, _URL, _CLIENT, _SCOPE = "token", "token-url", "client-id", "scope"
_FILE, _VARIABLE = "client-secret-file", "client-secret-variable"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def token_keys(side: str) -> tuple[str, ...]:
    """Return the keys about tokens. side: source or destination."""
    parts = (_TOKEN, _URL, _CLIENT, _FILE, _VARIABLE, _SCOPE)
    return tuple(f"{side}-{part}" for part in parts)


def token_source(asked: Mapping[str, Any], side: str) -> "TokenSource":
    """Return the source of tokens for one side of a route. Raises ConfigError.

    asked: keys of the route. side: source or destination.
    """
    from ...pipelines.node.routes import parse_credentials

    given = {
        key.removeprefix(f"{side}-"): _text(key, asked[key])
        for key in token_keys(side)
        if key in asked
    }
    if _URL not in given:
        if stray := given.keys() - {_TOKEN}:
            raise ConfigError(f"{side}-{min(stray)} needs {side}-{_URL}.")
        return Path(given[_TOKEN]) if _TOKEN in given else None
    if _TOKEN in given:
        raise ConfigError(f"{side}-{_TOKEN} and {side}-{_URL} exclude each other.")
    if _CLIENT not in given:
        raise ConfigError(f"{side}-{_URL} needs {side}-{_CLIENT}.")
    if (_FILE in given) == (_VARIABLE in given):
        raise ConfigError(f"{side}-{_URL} needs {side}-{_FILE} or else {side}-{_VARIABLE}.")
    if _FILE not in given and not _NAME.fullmatch(given[_VARIABLE]):
        # Not quoted, as it may be the secret itself.
        raise ConfigError(f"{side}-{_VARIABLE} must be the name of an environment variable.")
    secret = Path(given[_FILE]) if _FILE in given else given[_VARIABLE]
    return parse_credentials(given[_URL], given[_CLIENT], secret, given.get(_SCOPE, ""))


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key} must be a text.")
    return value
