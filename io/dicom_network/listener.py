"""Port that peers connect to: one thread per connection, none of which can block the others."""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from .association import Association, Policy, reject
from .connection import Connection, Pdu, cut
from .errors import NetworkError, ProtocolError
from .limits import LONGEST_REQUEST, Limits
from .negotiation import TOO_MANY, AssociationRequest, Rejection

_BACKLOG = 128
_STOP_SECONDS = 10.0


class Listener:
    """Accepts connections in a thread of its own; a context manager.

    address, port: to listen at; port 0 selects a free one. policy: rules for peers. on_reject:
    called with the address of each connection without an association, the reason, and the AE titles
    in the request if they are the reason. tls: a server's context, or None.
    """

    def __init__(
        self,
        address: str,
        port: int,
        policy: Policy,
        limits: Limits,
        on_reject: Callable[[str, str, str], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._on_reject = on_reject
        self._tls = tls
        self._lock = threading.Lock()
        self._waiting: dict[int, socket.socket] = {}
        self._serving: dict[int, Connection] = {}
        self._threads: set[threading.Thread] = set()
        self._count = 0
        self._is_open = True
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def use_tls(self, context: ssl.SSLContext | None) -> None:
        """Use other certificates for new connections."""
        self._tls = context

    def close(self, patience: float = _STOP_SECONDS) -> None:
        """Stop accepting connections; open ones end, or are closed after a while."""
        with self._lock:
            self._is_open = False
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for link in self._waiting.values():
                cut(link)
            threads = list(self._threads)
        for thread in threads:
            thread.join(patience / max(len(threads), 1))
        with self._lock:
            for connection in self._serving.values():
                connection.close()
        for thread in threads:
            thread.join(1.0)

    def _accept(self) -> None:
        while self._is_open:
            try:
                link, peer = self._socket.accept()
            except OSError:
                if not self._is_open:
                    return
                threading.Event().wait(0.1)  # no more files may be open
                continue
            self._admit(link, str(peer[0]))

    def _admit(self, link: socket.socket, address: str) -> None:
        """Start a thread for a connection; the oldest waiting one may be closed for it.

        `close` then finds either the started thread, or no connection.
        """
        with self._lock:
            if not self._is_open:
                cut(link)
                return
            self._count += 1
            number = self._count
            if len(self._waiting) >= self._limits.waiting:
                cut(self._waiting.pop(min(self._waiting)))
            thread = threading.Thread(
                target=self._handle, args=(number, link, address), name="association", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads may run
                cut(link)
                return
            self._waiting[number] = link
            self._threads.add(thread)

    def _handle(self, number: int, link: socket.socket, address: str) -> None:
        try:
            with self._secured(number, link) as connection:
                self._negotiate(number, connection, address)
        except (NetworkError, OSError) as error:
            self._on_reject(address, _reason(error), "")
        except Exception as error:  # its message may quote received data
            reason = f"the received data could not be handled ({type(error).__name__})"
            self._on_reject(address, reason, "")
        finally:
            cut(link)
            self._forget(number, threading.current_thread())

    def _secured(self, number: int, link: socket.socket) -> Connection:
        """Return the connection, under TLS if the port has it. Raises OSError."""
        link.settimeout(self._limits.request_seconds)
        if self._tls:
            link = self._with_tls(self._tls, number, link)
        longest = max(LONGEST_REQUEST, self._limits.pdu)
        return Connection(link, longest, self._limits.pdu_seconds)

    def _with_tls(self, tls: ssl.SSLContext, number: int, link: socket.socket) -> ssl.SSLSocket:
        secured = tls.wrap_socket(link, server_side=True, do_handshake_on_connect=False)
        try:
            with self._lock:
                if number not in self._waiting:
                    raise OSError("it was closed to free a connection")
                self._waiting[number] = secured  # the other one is an empty shell now
            secured.do_handshake()
        except BaseException:
            cut(secured)
            raise
        return secured

    def _negotiate(self, number: int, connection: Connection, address: str) -> None:
        kind, body = connection.read(self._limits.request_seconds, self._limits.request_seconds)
        if kind != Pdu.ASSOCIATE_RQ:
            raise ProtocolError("it did not request an association")
        request = AssociationRequest(bytes(body))
        session = self._policy.session(request.called, request.calling, address)
        if isinstance(session, Rejection):
            reject(connection, session)
            self._on_reject(address, session.reason, session.titles)
            return
        if not self._serves(number, connection):
            session.end(TOO_MANY.reason)
            reject(connection, TOO_MANY)
            self._on_reject(address, TOO_MANY.reason, "")
            return
        Association(connection, self._limits).serve(request, session)

    def _serves(self, number: int, connection: Connection) -> bool:
        """Return whether one more association is allowed, which is this one then."""
        with self._lock:
            self._waiting.pop(number, None)
            if len(self._serving) >= self._limits.associations:
                return False
            self._serving[number] = connection
            return True

    def _forget(self, number: int, thread: threading.Thread) -> None:
        with self._lock:
            self._waiting.pop(number, None)
            self._serving.pop(number, None)
            self._threads.discard(thread)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed ({error.reason or 'unknown reason'})"
    return str(error) if isinstance(error, NetworkError) else "the connection broke"
