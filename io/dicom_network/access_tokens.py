"""Bearer tokens for DICOMweb: from a file, or by OAuth 2.0 client credentials.

The grant is that of RFC 6749, section 4.4. The client authenticates by HTTP Basic (section 2.3.1),
which every token endpoint must support. Neither a secret nor a token is part of any message.
"""

import base64
import io
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec

from ..files.regular import read_regular
from .errors import CertificateError, NetworkError, ProtocolError, RefusedError, TokenError

_MOST_BYTES = 1 << 16
_EARLY_SECONDS = 60.0
"""Seconds before its end at which a token is replaced; of a short-lived one, half of its time."""
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
"""Token that a header may hold."""
_ERRORS = {
    "invalid_client": "it does not accept client-id or client secret",
    "invalid_scope": "it does not grant the scope",
    "unauthorized_client": "this client may not use client credentials",
    "unsupported_grant_type": "it does not offer client credentials",
    "invalid_grant": "it does not accept the grant",
    "invalid_request": "it calls the request malformed",
}
"""Error codes of RFC 6749, section 5.2, the only texts of an endpoint that messages quote."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Identity of this program at a token endpoint.

    endpoint: its URL. client: client identifier. secret: file with the client secret, or the name
    of an environment variable that has it. scope: of the tokens, or "" for the endpoint's default.
    """

    endpoint: str
    client: str
    secret: Path | str
    scope: str = ""

    @property
    def name(self) -> str:
        """URL of the endpoint without its query."""
        return self.endpoint.partition("?")[0]


TokenSource: TypeAlias = Path | ClientCredentials | None
"""File with a bearer token, or what gets one; None without a token."""


@dataclass(frozen=True, slots=True)
class _Token:
    """Token, and when to replace it, by the clock of its `AccessTokens`."""

    value: str = field(repr=False)
    until: float


class AccessTokens:
    """Tokens in use, by the credentials that got them, for any number of connections and threads.

    Two threads that need one at the same time may both request it; the later one stays.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[ClientCredentials, _Token] = {}

    def token(self, credentials: ClientCredentials, context: ssl.SSLContext | None) -> str:
        """Return a token that has not expired, requested if there is none. Raises NetworkError.

        context: for HTTPS.
        """
        held = self._held.get(credentials)
        if held is None or self._clock() >= held.until:
            now = self._clock()  # before the request: its time counts, too
            granted = _granted(credentials, context)
            held = _Token(granted.value, now + granted.usable_seconds)
            self._held[credentials] = held
        return held.value

    def forget(self, credentials: ClientCredentials, token: str) -> None:
        """Use a token no more, unless another has replaced it."""
        held = self._held.get(credentials)
        if held is not None and held.value == token:
            self._held.pop(credentials, None)


class Bearer:
    """Authorization of the requests of one connection.

    source: of its tokens. tokens: those in use. context: for HTTPS to a token endpoint. Raises
    NetworkError if there is no token.
    """

    def __init__(
        self, source: TokenSource, tokens: AccessTokens, context: ssl.SSLContext | None
    ) -> None:
        self._source, self._tokens, self._context = source, tokens, context
        self._token = _token_in(source) if isinstance(source, Path) else ""
        self.headers()  # a token that cannot be had is a failure to connect

    def headers(self) -> Mapping[str, str]:
        """Return the header of the next request. Raises NetworkError."""
        if isinstance(self._source, ClientCredentials):
            self._token = self._tokens.token(self._source, self._context)
        return {"Authorization": f"Bearer {self._token}"} if self._source else {}

    def reject(self) -> bool:
        """Forget the token of the last request; return whether another one can be requested."""
        if not isinstance(self._source, ClientCredentials):
            return False
        self._tokens.forget(self._source, self._token)
        return True


class _Granted(msgspec.Struct):
    """Successful response: section 5.1."""

    value: str = msgspec.field(name="access_token")
    kind: str = msgspec.field(name="token_type", default="")
    seconds: Any = msgspec.field(name="expires_in", default=None)

    @property
    def usable_seconds(self) -> float:
        """Seconds after which it is replaced; infinite if the endpoint does not state its end."""
        try:
            seconds = float(self.seconds)  # some endpoints send a text
        except (TypeError, ValueError, OverflowError):
            return float("inf")
        return max(seconds - min(_EARLY_SECONDS, seconds / 2), 0.0)


class _Failed(msgspec.Struct):
    """Error response: section 5.2."""

    error: str = ""


def _granted(credentials: ClientCredentials, context: ssl.SSLContext | None) -> _Granted:
    """Request a token. Raises TokenError, which names the endpoint."""
    try:
        status, body = _answer(credentials, context)
        if status != 200:
            raise RefusedError(_refusal(status, body))
        return _decoded(body)
    except NetworkError as error:
        raise TokenError(f"no access token from {credentials.name}: {error}") from error


def _answer(credentials: ClientCredentials, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    from .web_client import Body, web_client

    form = {"grant_type": "client_credentials"}
    if credentials.scope:
        form["scope"] = credentials.scope
    pair = ":".join(quote_plus(part) for part in (credentials.client, _secret_of(credentials)))
    headers = {
        "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    body = Body(urlencode(form).encode(), io.BytesIO(), b"")
    uses_tls = urlsplit(credentials.endpoint).scheme == "https"
    with (
        web_client(credentials.endpoint, context if uses_tls else None) as client,
        client.request("the token request", "", headers, body=body) as answer,
    ):
        return answer.status, answer.body(_MOST_BYTES)


def _decoded(body: bytes) -> _Granted:
    """Return the token of a response with status 200. Raises ProtocolError."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProtocolError("its answer is not JSON") from None
    try:
        granted = msgspec.convert(found, _Granted)
    except msgspec.ValidationError:
        raise ProtocolError("its answer has no access_token") from None
    if granted.kind.lower() != "bearer":
        raise ProtocolError("its answer does not state that the token is of type Bearer")
    if not _PRINTABLE.fullmatch(granted.value):
        raise ProtocolError("its access_token is empty, or no header may hold it")
    return granted


def _refusal(status: int, body: bytes) -> str:
    """Describe a response with another status than 200."""
    try:
        code = msgspec.json.decode(body, type=_Failed).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        code = ""
    if meaning := _ERRORS.get(code):
        return f"it answers {code}: {meaning}"
    return f"it answers with HTTP status {status}"


def _secret_of(credentials: ClientCredentials) -> str:
    """Return the client secret as it is now. Raises CertificateError."""
    if isinstance(credentials.secret, str):
        if not (found := os.environ.get(credentials.secret, "")):
            raise CertificateError(
                f"the environment variable {credentials.secret} has no client secret"
            )
        return found
    return _text_in(credentials.secret, "client secret", "utf-8")


def _token_in(file: Path) -> str:
    return _text_in(file, "token", "ascii")


def _text_in(file: Path, what: str, encoding: str) -> str:
    """Return the text of a file without spaces around it. Raises CertificateError."""
    try:
        found = read_regular(file).decode(encoding).strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CertificateError(f"the {what} file {file} cannot be used ({why})") from error
    if not found:
        raise CertificateError(f"the {what} file {file} is empty")
    return found
