"""OAuth 2.0 client credentials (RFC 6749, section 4.4) for DICOMweb, with servers on loopback."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from support.certificates import authority
from support.node_world import phantom
from support.ports import reserved_port
from support.web_server import Archive, Asked, Reply, WebServer, encoded, web_server

from cuda_cyclegan.io.dicom_network.access_tokens import AccessTokens, ClientCredentials
from cuda_cyclegan.io.dicom_network.errors import NetworkError, TokenError
from cuda_cyclegan.io.dicom_network.web import WebPeer, web_link

SECRET = "p:ss %/wörd"
REQUEST = "/token"


@dataclass
class Guard:
    """An endpoint that issues numbered tokens, and a server that accepts the newest of them.

    answer: of the endpoint, instead of a token. more: fields next to the token. accepts: whether
    the server does. breaks: whether it closes the connection.
    """

    archive: Archive = field(default_factory=Archive)
    answer: Callable[[Asked], "Reply | bytes | None"] | None = None
    more: dict[str, object] = field(default_factory=lambda: {"expires_in": 300})
    issued: int = 0
    accepts: bool = True
    breaks: bool = False

    def __call__(self, asked: Asked) -> "Reply | bytes | None":
        if asked.path == REQUEST:
            if self.answer:
                return self.answer(asked)
            self.issued += 1
            token = {"access_token": f"token-{self.issued}", "token_type": "bearer"}
            return Reply(body=encoded({**token, **self.more}), media="application/json")
        if self.breaks:
            return None
        is_known = asked.headers.get("Authorization") == f"Bearer token-{self.issued}"
        return self.archive.answer(asked) if self.accepts and is_known else Reply(401)


def credentials(server: WebServer, folder: Path, **changed: object) -> ClientCredentials:
    file = folder / "secret"
    file.write_text(f"{SECRET}\n", "utf-8")
    url = f"{server.scheme}://127.0.0.1:{server.port}{REQUEST}"
    return replace(ClientCredentials(url, "node 1", file), **changed)


@contextmanager
def guarded(guard: Guard, folder: Path, **changed: object) -> Iterator[tuple[WebServer, WebPeer]]:
    """A server with an endpoint, and the peer with the credentials for it."""
    with web_server(guard) as server:
        yield server, WebPeer(server.peer.url, credentials(server, folder, **changed))


def test_the_request_is_that_of_the_standard(tmp_path: Path) -> None:
    with (
        guarded(Guard(), tmp_path, scope="dicom.read dicom.write") as (server, peer),
        web_link(peer, None) as link,
    ):
        link.echo()
    first, second = server.asked
    assert (first.method, first.path) == ("POST", REQUEST)
    assert parse_qs(first.body.decode()) == {
        "grant_type": ["client_credentials"],
        "scope": ["dicom.read dicom.write"],
    }
    assert first.headers["Content-Type"] == "application/x-www-form-urlencoded"
    scheme, _, pair = first.headers["Authorization"].partition(" ")
    # Section 2.3.1: both parts are form-encoded before they are joined.
    assert scheme == "Basic"
    assert base64.b64decode(pair) == b"node+1:p%3Ass+%25%2Fw%C3%B6rd"
    assert second.headers["Authorization"] == "Bearer token-1"


def test_connections_share_a_token_and_replace_it_before_it_ends(tmp_path: Path) -> None:
    now = 1000.0
    tokens = AccessTokens(lambda: now)
    guard = Guard()
    with guarded(guard, tmp_path) as (_, peer):
        for moment, issued in ((1000.0, 1), (1239.0, 1), (1240.0, 2), (1300.0, 2), (1500.0, 3)):
            now = moment
            with web_link(peer, None, tokens=tokens) as link:
                link.echo()
            assert guard.issued == issued
        with web_link(peer, None, tokens=tokens) as link:
            now += 300.0
            link.echo()  # on an open connection, too
        assert guard.issued == 4


@pytest.mark.parametrize(
    ("more", "usable"),
    [
        ({"expires_in": 10}, 5.0),
        ({"expires_in": "3600"}, 3540.0),
        ({"expires_in": -1}, 0.0),
        ({}, float("inf")),
        ({"expires_in": None}, float("inf")),
        ({"expires_in": "soon"}, float("inf")),
    ],
)
def test_a_token_is_used_for_as_long_as_is_stated(
    more: dict[str, object], usable: float, tmp_path: Path
) -> None:
    now = 0.0
    guard, tokens = Guard(more=more), AccessTokens(lambda: now)
    with guarded(guard, tmp_path) as (_, peer):
        assert isinstance(peer.token, ClientCredentials)
        for moment in (0.0, min(usable, 1e9) - 0.5 if usable else 0.0):
            now = moment
            tokens.token(peer.token, None)
        assert guard.issued == (1 if usable else 2)
        now = usable
        tokens.token(peer.token, None)
        assert guard.issued == (2 if usable else 3)


def test_a_rejected_token_is_replaced_once_and_the_whole_object_is_sent_again(
    tmp_path: Path,
) -> None:
    guard, [file] = Guard(), phantom(0, 1).write(tmp_path)
    with guarded(guard, tmp_path) as (server, peer), web_link(peer, None) as link:
        guard.issued += 1  # the server accepts another one by now
        link.store(file)
        assert guard.issued == 3
        [kept] = guard.archive.held.values()
        assert kept == file.read_bytes()
        guard.accepts = False
        before = len(server.asked)
        with pytest.raises(TokenError, match=r"STOW-RS.*401, also to a new access"):
            link.store(file)
        assert [one.path for one in server.asked[before:]] == ["/studies", REQUEST, "/studies"]


def test_a_token_is_not_kept_where_the_connection_broke(tmp_path: Path) -> None:
    guard, tokens = Guard(), AccessTokens()
    with guarded(guard, tmp_path) as (_, peer):
        guard.breaks = True
        with pytest.raises(NetworkError), web_link(peer, None, tokens=tokens) as link:
            link.echo()
        with web_link(peer, None, tokens=tokens):
            assert guard.issued == 2


def test_a_secret_may_be_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded(Guard(), tmp_path, secret="NODE_SECRET") as (server, peer):
        with (
            pytest.raises(TokenError, match="variable NODE_SECRET has no client secret"),
            web_link(peer, None),
        ):
            pass
        monkeypatch.setenv("NODE_SECRET", "other")
        with web_link(peer, None):
            pass
    [asked] = server.asked
    assert base64.b64decode(asked.headers["Authorization"].split()[1]) == b"node+1:other"


def _json(found: object, status: int = 200) -> Callable[[Asked], Reply]:
    return lambda _: Reply(status, encoded(found), "application/json")


FAILURES: dict[str, tuple[Callable[[Asked], "Reply | bytes | None"], str]] = {
    "invalid_client": (
        _json({"error": "invalid_client", "error_description": SECRET}, 401),
        "it answers invalid_client: it does not accept client-id or client secret",
    ),
    "invalid_scope": (
        _json({"error": "invalid_scope"}, 400),
        "it answers invalid_scope: it does not grant the scope",
    ),
    "an unknown error": (_json({"error": SECRET}, 400), "it answers with HTTP status 400"),
    "a failing server": (lambda _: Reply(503, b"busy"), "it answers with HTTP status 503"),
    "no access_token": (_json({"token_type": "Bearer"}), "its answer has no access_token"),
    "an odd access_token": (_json({"access_token": 5}), "its answer has no access_token"),
    "a list": (_json([]), "its answer has no access_token"),
    "an empty token": (
        _json({"access_token": "", "token_type": "Bearer"}),
        "its access_token is empty, or no header may hold it",
    ),
    "a token with a line end": (
        _json({"access_token": "a\r\nHost: b", "token_type": "Bearer"}),
        "its access_token is empty, or no header may hold it",
    ),
    "another kind of token": (
        _json({"access_token": "a", "token_type": "DPoP"}),
        "its answer does not state that the token is of type Bearer",
    ),
    "no kind of token": (
        _json({"access_token": "a"}),
        "its answer does not state that the token is of type Bearer",
    ),
    "a page to log in": (
        lambda _: Reply(body=b"<html>", media="text/html"),
        "its answer is not JSON",
    ),
    "nested too deep": (lambda _: Reply(body=b"[" * 60_000), "its answer is not JSON"),
    "a long answer": (
        lambda _: Reply(body=b" " * (1 << 17)),
        "its answer to the token request has more than 65,536 bytes",
    ),
    "a redirect": (
        lambda _: Reply(302, headers={"Location": "https://other.example/token"}),
        "it answers the token request with HTTP status 302, a redirect to other.example, which is "
        "not followed",
    ),
    "a closed connection": (
        lambda _: None,
        "it broke off while it answered the token request",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_is_named_without_a_secret(name: str, tmp_path: Path) -> None:
    answer, reason = FAILURES[name]
    with (
        guarded(Guard(answer=answer), tmp_path, scope="?") as (server, peer),
        pytest.raises(TokenError) as raised,
        web_link(peer, None),
    ):
        pass
    place = f"no access token from http://127.0.0.1:{server.port}/token: "
    assert str(raised.value) == place + reason
    assert SECRET not in repr(peer)
    assert [one.path for one in server.asked] == [REQUEST]


def test_an_endpoint_that_is_away_and_a_secret_that_cannot_be_read_are_named(
    tmp_path: Path,
) -> None:
    with reserved_port() as port:
        server = WebServer(port, [])
        peer = WebPeer(server.peer.url, credentials(server, tmp_path))
        with pytest.raises(TokenError, match="nothing answers there"), web_link(peer, None):
            pass
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(TokenError, match="secret is empty"), web_link(peer, None):
        pass
    (tmp_path / "secret").unlink()
    with pytest.raises(TokenError, match="secret cannot be used"), web_link(peer, None):
        pass


@pytest.mark.process
def test_the_endpoint_is_trusted_by_the_same_certificates(tmp_path: Path) -> None:
    issue, stranger = authority(tmp_path / "ca"), authority(tmp_path / "other")
    guard = Guard()
    with (
        web_server(guard, context=issue("idp").server_context()) as server,
        web_server(guard) as archive,
    ):
        peer = WebPeer(archive.peer.url, credentials(server, tmp_path))
        with web_link(peer, issue("node")) as link:
            link.echo()
        assert guard.issued == 1
        for wrong in (stranger("node"), None):
            with (
                pytest.raises(TokenError, match="its certificate is not trusted"),
                web_link(peer, wrong),
            ):
                pass
        assert guard.issued == 1
