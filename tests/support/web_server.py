"""DICOMweb servers on loopback: a test decides their answers, or they keep what they are sent."""

import json
import ssl
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import pydicom as _pydicom

from cuda_cyclegan.io.dicom_network.web import WebPeer

pydicom: Any = _pydicom

STUDY, SERIES, INSTANCE, SOP_CLASS = "0020000D", "0020000E", "00080018", "00080016"
REFERENCED, FAILED, OTHER = "00081199", "00081198", "0008119A"
MULTIPART = 'multipart/related; type="application/dicom"; boundary=B'


@dataclass(frozen=True)
class Asked:
    """A request. query: its parameters, as it has each once."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> bytes:
        """The file that it stores."""
        return self.body.partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0]

    @property
    def instance(self) -> str:
        """The UID of the object that it stores."""
        return str(pydicom.dcmread(BytesIO(self.content)).SOPInstanceUID)


@dataclass(frozen=True)
class Reply:
    """An answer. body: sent in chunks, unless it is bytes."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    media: str = "application/dicom+json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Answer: TypeAlias = Callable[[Asked], "Reply | bytes | None"]
"""Answer to a request: bytes are all that is sent, and None is a broken connection."""


@dataclass(frozen=True)
class WebServer:
    """A running server. asked: what came so far."""

    port: int
    asked: list[Asked]
    scheme: str = "http"

    @property
    def peer(self) -> WebPeer:
        return WebPeer(f"{self.scheme}://127.0.0.1:{self.port}/dicom-web")

    def count(self, method: str) -> int:
        return sum(one.method == method for one in self.asked)


@contextmanager
def web_server(
    answer: Answer, port: int = 0, context: ssl.SSLContext | None = None
) -> Generator[WebServer]:
    """Run a server for the block. context: for HTTPS."""
    asked: list[Asked] = []
    answering = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            place = urlsplit(self.path)
            one = Asked(
                self.command,
                place.path.removeprefix("/dicom-web"),
                dict(parse_qsl(place.query)),
                dict(self.headers),
                self.rfile.read(size),
            )
            with answering:
                asked.append(one)
                reply = answer(one)
            self.close_connection = not isinstance(reply, Reply)
            with suppress(ConnectionError):
                if isinstance(reply, Reply):
                    self.send(reply)
                elif reply:
                    self.wfile.write(reply)

        def send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.media)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if isinstance(reply.body, bytes):
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in reply.body:
                self.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002
            pass

    with _Server(("127.0.0.1", port), Handler) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield WebServer(server.server_port, asked, "https" if context else "http")
        server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that left is no error of the test."""


def element(*values: object) -> dict[str, Any]:
    """An element in DICOM's JSON."""
    return {"Value": list(values)}


def item(instance: str, **more: int) -> dict[str, Any]:
    """An item of a sequence about objects. more: values by their tags, such as _00081197."""
    return {
        "00081155": element(instance),
        **{tag.strip("_"): element(value) for tag, value in more.items()},
    }


def encoded(found: Any) -> bytes:
    return json.dumps(found).encode()


def receipt(tag: str, *items: Any, status: int = 200) -> Reply:
    """An answer to STOW-RS with one sequence."""
    return Reply(status, encoded({tag: element(*items)}))


def listed(rows: Iterable[Mapping[str, str]], **headers: str) -> Reply:
    """An answer to QIDO-RS. rows: UIDs by tags."""
    found = [{tag: element(uid) for tag, uid in row.items()} for row in rows]
    return Reply(body=encoded(found), headers=headers)


def one_part(content: bytes, media: str = "application/dicom") -> bytes:
    return b"--B\r\nContent-Type: " + media.encode() + b"\r\n\r\n" + content + b"\r\n--B--\r\n"


class Archive:
    """Answers of a server that keeps objects. held: their files, by UID."""

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self.held: dict[str, bytes] = {}
        for file in files:
            self.keep(file.read_bytes())

    def keep(self, content: bytes) -> None:
        self.held[str(pydicom.dcmread(BytesIO(content)).SOPInstanceUID)] = content

    def answer(self, asked: Asked) -> Reply:
        """Answer as PS3.18 says."""
        if asked.method == "POST":
            self.keep(asked.content)
            return receipt(REFERENCED, item(asked.instance))
        instance = asked.path.rpartition("/")[2]
        if instance in self.held:
            return Reply(body=one_part(self.held[instance]), media=MULTIPART)
        return self.found(asked)

    def found(self, asked: Asked) -> Reply:
        """Rows of a search, a page of them."""
        tags = {STUDY: "StudyInstanceUID", SERIES: "SeriesInstanceUID", INSTANCE: "SOPInstanceUID"}
        rows: dict[str, dict[str, str]] = {}
        for content in self.held.values():
            data = pydicom.dcmread(BytesIO(content), stop_before_pixels=True)
            row = {tag: str(data[name].value) for tag, name in tags.items()}
            wanted = asked.query.get("SOPInstanceUID", row[INSTANCE])
            is_of_path = all(uid in row.values() for uid in asked.path.split("/")[2::2])
            if is_of_path and wanted == row[INSTANCE]:
                is_study = asked.path == "/studies"
                rows[row[STUDY if is_study else INSTANCE]] = row
        start = int(asked.query.get("offset", 0))
        return listed([*rows.values()][start : start + int(asked.query.get("limit", 1000))])
