"""HTTP of DICOMweb by requests, which alone limits neither the time nor the size of an answer.

No redirect is followed, nothing is decompressed, and an answer that comes too slowly is given up.
"""

import io
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from .errors import CertificateError, ConnectionLostError, NetworkError, ProtocolError, TokenError
from .media_types import MediaType
from .requesting import ANSWER_SECONDS, CONNECT_SECONDS

SLOWEST = 250_000
"""Bytes per second beyond ANSWER_SECONDS below which a transfer is given up."""
_PIECE = 1 << 16
_UNAUTHORIZED = 401
_HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")


class Deadline:
    """End of the time for an answer; each byte that is transferred moves it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = 0.0

    def restart(self) -> None:
        """Allow ANSWER_SECONDS from now."""
        self._end = self._clock() + ANSWER_SECONDS

    def extend(self, size: int) -> None:
        """Allow the time that `size` bytes may take."""
        self._end += size / SLOWEST

    def left(self) -> float:
        """Return the seconds left. Raises TimeoutError if there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


class Authorization(Protocol):
    """Authorization of the requests of a client."""

    def headers(self) -> Mapping[str, str]:
        """Return the header of the next request. Raises NetworkError."""
        ...

    def reject(self) -> bool:
        """Note that the last request was rejected; return whether another header may help."""
        ...


class WebClient:
    """Client of one server, from `web_client`."""

    def __init__(
        self, session: requests.Session, root: str, deadline: Deadline, bearer: Authorization | None
    ) -> None:
        self._session, self._root, self._deadline = session, root, deadline
        self._bearer = bearer

    @contextmanager
    def request(
        self,
        service: str,
        path: str,
        headers: Mapping[str, str],
        parameters: Mapping[str, str] | None = None,
        body: "Body | None" = None,
    ) -> Generator["Answer"]:
        """Send a request, and read the head of its answer; the block may read the rest.

        service: its name, for errors. path: below the root, "" for the root itself. body: makes it
        a POST. If the server rejects an access token that can be renewed, it is sent once more.
        Raises NetworkError, also for a redirect or a compressed answer.
        """
        asked = (service, path, headers, parameters, body)
        response = self._response(*asked)
        if response.status_code == _UNAUTHORIZED and self._bearer and self._bearer.reject():
            response.close()
            response = self._response(*asked)
            if response.status_code == _UNAUTHORIZED:
                response.close()
                raise TokenError(
                    f"it answers {service} with HTTP status 401, also to a new access token"
                )
        with closing(response):
            answer = Answer(service, response)
            answer.check()
            yield answer

    def _response(
        self,
        service: str,
        path: str,
        headers: Mapping[str, str],
        parameters: Mapping[str, str] | None,
        body: "Body | None",
    ) -> requests.Response:
        """Send a request; return its answer, of which the head is read. Raises NetworkError."""
        authorization = self._bearer.headers() if self._bearer else dict[str, str]()
        self._deadline.restart()
        with _failures(service):
            return self._session.request(
                "GET" if body is None else "POST",
                f"{self._root}/{path}" if path else self._root,
                params=parameters,
                data=body and _Upload(body, self._deadline),
                headers={**headers, **authorization, "Accept-Encoding": "identity"},
                stream=True,
                allow_redirects=False,
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
            )


class Answer:
    """Answer to a request. status: of HTTP. headers: by names in any case. media: type of the body.

    All methods raise NetworkError.
    """

    def __init__(self, service: str, response: requests.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.media = MediaType.parse(response.headers.get("Content-Type", ""))
        self._service, self._raw = service, response.raw

    def check(self) -> None:
        """Refuse a redirect, and a body that is not as it was asked for."""
        if 300 <= self.status < 400:
            raise NetworkError(
                f"it answers {self._service} with HTTP status {self.status}, a redirect"
                f"{_target_of(self.headers.get('Location', ''))}, which is not followed"
            )
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise ProtocolError(f"its answer to {self._service} is compressed, unasked")

    def pieces(self, most: int) -> Iterator[bytes]:
        """Yield the body as it arrives. most: bytes that it may have."""
        size = 0
        with _failures(self._service):
            for piece in self._raw.stream(_PIECE, decode_content=False):
                size += len(piece)
                if size > most:
                    raise ProtocolError(
                        f"its answer to {self._service} has more than {most:,} bytes"
                    )
                yield piece

    def body(self, most: int) -> bytes:
        """Return the whole body. most: bytes that it may have."""
        return b"".join(self.pieces(most))


class Body:
    """Body of a request: a file between two texts."""

    def __init__(self, head: bytes, file: BinaryIO, tail: bytes) -> None:
        self.parts = (io.BytesIO(head), file, io.BytesIO(tail))
        self.size = len(head) + file.seek(0, io.SEEK_END) + len(tail)


class _Upload:
    """Body as requests sends it: of known length, and read piece by piece."""

    def __init__(self, body: Body, deadline: Deadline) -> None:
        self._body, self._deadline = body, deadline
        for part in body.parts:
            part.seek(0)

    def __len__(self) -> int:
        return self._body.size

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(_PIECE):
            yield piece

    def read(self, size: int) -> bytes:
        for part in self._body.parts:
            if piece := part.read(size):
                return piece
        self._deadline.restart()  # for the answer
        return b""


@contextmanager
def web_client(
    root: str, context: ssl.SSLContext | None, bearer: Authorization | None = None
) -> Generator[WebClient]:
    """Return a client of a server for the block.

    root: its URL. context: for HTTPS, or None. bearer: authorization of its requests, or None.
    """
    for name in ("urllib3", "requests"):  # whose messages quote URLs with identifiers
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())
    deadline = Deadline()
    with _Session() as session:
        session.trust_env = False  # neither ~/.netrc nor a proxy of the environment
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(deadline, context))
        yield WebClient(session, root, deadline, bearer)


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return no target: otherwise requests reads the body of a redirect, however long."""


class _Adapter(HTTPAdapter):
    """Connections with a deadline, and with the TLS settings of `context` alone."""

    def __init__(self, deadline: Deadline, context: ssl.SSLContext | None) -> None:
        self._deadline, self._context = deadline, context
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *sizes: Any, **options: Any) -> None:
        super().init_poolmanager(*sizes, **options, ssl_context=self._context, blocksize=_PIECE)
        self.poolmanager.pool_classes_by_scheme = {
            "http": _timed(HTTPConnectionPool, self._deadline),
            "https": _timed(HTTPSConnectionPool, self._deadline),
        }

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Add no authorities to those of the context."""


def _timed(pool: type[Any], deadline: Deadline) -> type[Any]:
    """Return a kind of connection pool whose connections keep a deadline."""

    class Connection(pool.ConnectionCls):
        sock: Any

        def connect(self) -> None:
            pool.ConnectionCls.connect(self)
            self.sock = _TimedSocket(self.sock, deadline)

    class Pool(pool):
        ConnectionCls = Connection

    return Pool


class _TimedSocket:
    """Connected socket, each of whose operations ends by a deadline."""

    def __init__(self, link: socket.socket, deadline: Deadline) -> None:
        self._link, self._deadline = link, deadline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def sendall(self, data: Any) -> None:
        self._link.settimeout(self._deadline.left())
        self._link.sendall(data)
        self._deadline.extend(len(data))

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._link, self._deadline))


class _TimedReader(io.RawIOBase):
    def __init__(self, link: socket.socket, deadline: Deadline) -> None:
        self._link, self._deadline = link, deadline
        self._file = link.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._link.settimeout(self._deadline.left())
        size = self._file.readinto(buffer)
        self._deadline.extend(size or 0)
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _target_of(location: str) -> str:
    """Return the host to which a redirect leads, in words; "" if it names none."""
    try:
        host = urlsplit(location).hostname or ""
    except ValueError:
        return ""
    return f" to {host}" if _HOST.fullmatch(host) else ""


@contextmanager
def _failures(service: str) -> Generator[None]:
    """Raise errors of HTTP as NetworkError, without anything that a server says."""
    try:
        yield
    except (requests.exceptions.SSLError, urllib3.exceptions.SSLError) as error:
        raise CertificateError(
            "its certificate is not trusted, or it does not trust this node's"
        ) from error
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError, TimeoutError) as error:
        raise ConnectionLostError(f"it does not answer {service} in time") from error
    except requests.exceptions.ConnectionError as error:
        if isinstance(error.args and error.args[0], urllib3.exceptions.ProtocolError):
            raise ConnectionLostError(f"it broke off while it answered {service}") from error
        raise ConnectionLostError("nothing answers there") from error
    except urllib3.exceptions.HTTPError as error:
        raise ConnectionLostError(f"it broke off while it answered {service}") from error
    except (requests.exceptions.RequestException, ValueError) as error:  # the latter of chunks
        raise ProtocolError(f"its answer to {service} is not HTTP") from error
    except OSError as error:
        raise ConnectionLostError(f"the connection broke ({error.strerror})") from error
