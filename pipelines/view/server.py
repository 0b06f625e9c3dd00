"""Local server of one viewing: a page, planes of images, pictures, and the marks that come back.

It listens on 127.0.0.1 only, under a random port and a random path. Every request needs that path's
token and the right Host; one that stores a mark needs the right Origin, too. Studies are named by
number, so that no path of a file ever comes from outside.
"""

import json
import re
import secrets
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast, get_args

from ...engine.decoding import FieldError, decode, parse
from ...io.errors import WriteError
from ..errors import ReviewFileError
from ..report.previews import thumbnail
from .images import PLANES, SENT_TYPES, ImageStore, PlaneValues, StudyImages
from .review import GRADES, LONGEST_COMMENT, Change, Reviews, verdict
from .studies import Role, Viewing

LARGEST_REQUEST = 1 << 16
"""Bytes of a mark; its comment has at most LONGEST_COMMENT letters."""

UNSHOWN = "cannot be shown."
"""All that a blind reading shows of why an image is missing."""

Page = Callable[[str], str]
"""Page for a browser, rendered with the nonce that its scripts and styles have."""

_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


_DIFFERENCES: dict[str, tuple[Role, Role]] = {
    "difference": ("input", "result"),
    "error": ("truth", "result"),
}


class ViewServer(ThreadingHTTPServer):
    """Server of one viewing; `serve_forever` runs until `shutdown`.

    reviews: where the marks are stored. page: as the browser gets it. url: address to open in the
    browser, with the token. failure: called with why a mark was not stored, if the page of a blind
    reading may not show it, as paths are in it.
    """

    daemon_threads = True

    def __init__(
        self,
        viewing: Viewing,
        reviews: Reviews,
        page: Page,
        failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.viewing, self.reviews, self.page, self.failure = viewing, reviews, page, failure
        self.images = ImageStore(viewing.studies)
        self.token = secrets.token_urlsafe(24)
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.url = f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects during a response."""


def described(study: StudyImages, *, is_blind: bool = False) -> dict[str, Any]:
    """Return the images of a study as the page takes them; without notes and paths if blind."""
    grid = study.grid
    return {
        "shape": grid.shape if grid else None,
        "spacing": grid.spacing if grid else None,
        "toSpace": grid.to_space.tolist() if grid else None,
        "images": {
            role: {
                "window": [image.window.low, image.window.high],
                "moved": grid is not None and not image.is_on_grid_of(grid),
                "notes": () if is_blind else image.notes,
                "unit": image.windows.unit,
                "presets": [[one.name, one.low, one.high] for one in image.windows.presets],
            }
            for role, image in study.images.items()
        },
        "differences": {
            name: study.largest_difference(first, second)
            for name, (first, second) in _DIFFERENCES.items()
        },
        "faults": dict.fromkeys(study.faults, UNSHOWN) if is_blind else study.faults,
    }


class _RefusedError(Exception):
    """A request that gets this status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    server: ViewServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "cuda-cyclegan", ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: an address contains the token."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, act: Callable[[list[str]], None]) -> None:
        try:
            act(self._asked())
        except _RefusedError as refusal:
            self._send_reason(str(refusal), refusal.status)
        except (WriteError, ReviewFileError) as error:
            reason = str(error)
            if self.server.viewing.is_blind:
                self.server.failure(reason)
                reason = "The marks cannot be written; the terminal of 'view' shows why."
            self._send_reason(reason, HTTPStatus.INTERNAL_SERVER_ERROR)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # shown by the page; the server ignores errors
            reason = f"{type(error).__name__}: {error}; this looks like a bug"
            self._send_reason(reason, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _asked(self) -> list[str]:
        """Return the words of the path after the token."""
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN)
        _, _, path = self.path.partition("/")
        token, *words = path.split("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN)
        return words

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True  # what the request still holds stays unread
        raise _RefusedError(status)

    def _get(self, words: list[str]) -> None:
        match words:
            case [""]:
                self._send_page()
            case ["study", number]:
                study = self.server.images.study(self._number(number))
                self._send_json(described(study, is_blind=self.server.viewing.is_blind))
            case ["ahead", number]:
                self.server.images.read_ahead(self._number(number))
                self._send_json({})
            case ["plane", number, role, plane, index]:
                self._send_plane(self._number(number), role, plane, index)
            case ["picture", number]:
                self._send_picture(self._number(number))
            case _:
                raise _RefusedError(HTTPStatus.NOT_FOUND)

    def _number(self, text: str) -> int:
        """Return the number of a study."""
        number = _whole(text)
        if number >= len(self.server.viewing.studies):
            raise _RefusedError(HTTPStatus.NOT_FOUND)
        return number

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(18)
        policy = [("Content-Security-Policy", _POLICY.format(nonce=nonce))]
        self._send(self.server.page(nonce).encode(), "text/html; charset=utf-8", extra=policy)

    def _send_plane(self, number: int, role: str, plane: str, index: str) -> None:
        if role not in get_args(Role) or plane not in PLANES:
            raise _RefusedError(HTTPStatus.NOT_FOUND)
        try:
            found = self.server.images.plane(number, cast("Role", role), plane, _whole(index))
        except LookupError:
            raise _RefusedError(HTTPStatus.NOT_FOUND) from None
        self._send(packed(found), "application/octet-stream")

    def _send_picture(self, number: int) -> None:
        preview = self.server.viewing.studies[number].preview
        picture = thumbnail(preview) if preview else None
        if picture is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND)
        self._send(picture, "image/webp")

    def _post(self, words: list[str]) -> None:
        origin = self.headers.get("Origin", "").removeprefix("http://")
        if origin not in self.server.hosts or words[:1] != ["mark"] or len(words) != 2:
            self._refuse(HTTPStatus.FORBIDDEN)
        size = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", size):
            self._refuse(HTTPStatus.BAD_REQUEST)
        if int(size) > LARGEST_REQUEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        content = self.rfile.read(int(size))
        study = self.server.viewing.studies[self._number(words[1])]
        review = self.server.reviews[study.folder]
        review.put(study.name, _change_in(content))
        self._send_json(verdict(review.own(study.name), review.others(study.name)))

    def _send_json(self, values: object) -> None:
        self._send(json.dumps(values).encode(), "application/json")

    def _send_reason(self, reason: str, status: HTTPStatus) -> None:
        self._send(reason.encode(errors="replace"), "text/plain", status)

    def _send(
        self,
        content: bytes,
        kind: str,
        status: HTTPStatus = HTTPStatus.OK,
        extra: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.send_response(status)
        for name, value in (*_HEADERS.items(), *extra):
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(content)


def _whole(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise _RefusedError(HTTPStatus.NOT_FOUND)
    return int(text)


def _change_in(content: bytes) -> Change:
    try:
        values = decode(dict[str, str | None], parse(content))
    except FieldError:
        raise _RefusedError(HTTPStatus.BAD_REQUEST) from None
    change = Change()
    if "mark" in values:
        if values["mark"] not in (None, *GRADES):
            raise _RefusedError(HTTPStatus.BAD_REQUEST)
        change["mark"] = values["mark"]
    if "comment" in values:
        change["comment"] = values["comment"] or ""
        if len(change["comment"]) > LONGEST_COMMENT:
            raise _RefusedError(HTTPStatus.BAD_REQUEST)
    if not change:
        raise _RefusedError(HTTPStatus.BAD_REQUEST)
    return change


def packed(plane: PlaneValues) -> bytes:
    """Return a plane as bytes: a header of 32 and the values, both little-endian.

    The header: rows, columns, index of the type in `SENT_TYPES`, 4 bytes of padding, slope,
    intercept.
    """
    rows, columns = plane.stored.shape
    kind = SENT_TYPES.index(plane.stored.dtype.name)
    head = struct.pack("<IIIIdd", rows, columns, kind, 0, plane.slope, plane.intercept)
    little = plane.stored.astype(plane.stored.dtype.newbyteorder("<"), copy=False)
    return head + little.tobytes()
