"""DICOMweb servers that answer oddly or with ill will: they get no data, memory or time."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.uid import DeflatedExplicitVRLittleEndian
from support.node_world import phantom
from support.web_server import (
    INSTANCE,
    MULTIPART,
    SERIES,
    STUDY,
    Archive,
    Asked,
    Reply,
    listed,
    one_part,
    web_server,
)

from cuda_cyclegan.io.dicom_network import web, web_client
from cuda_cyclegan.io.dicom_network.errors import (
    ConnectionLostError,
    NetworkError,
    ProtocolError,
    RefusedError,
)
from cuda_cyclegan.io.dicom_network.limits import WebLimits
from cuda_cyclegan.io.dicom_network.objects import ListedObject
from cuda_cyclegan.io.dicom_network.requesting import ANSWER_SECONDS
from cuda_cyclegan.io.dicom_network.web import WebLink, web_link

pydicom: Any = _pydicom
MEGABYTE = bytes(1 << 20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return phantom(0, 1).write(tmp_path)[0]


@pytest.fixture
def asked(file: Path) -> ListedObject:
    data = pydicom.dcmread(file)
    return ListedObject(data.StudyInstanceUID, data.SeriesInstanceUID, data.SOPInstanceUID)


def fetched(link: WebLink, asked: ListedObject) -> int:
    """Return how many bytes of a data set come."""
    with link.fetching(asked) as arriving:
        return sum(map(len, arriving.pieces))


REQUESTS: dict[str, Callable[[WebLink, Path, ListedObject], object]] = {
    "STOW-RS": lambda link, file, _: link.store(file),
    "QIDO-RS": lambda link, _, __: link.studies({}),
    "WADO-RS": lambda link, _, asked: fetched(link, asked),
}


@pytest.mark.parametrize("service", REQUESTS)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_named_and_never_followed(
    status: int, service: str, file: Path, asked: ListedObject
) -> None:
    with web_server(lambda _: Reply(body=b"{}")) as other:
        target = f"http://localhost:{other.port}/login?secret"
        bomb = gzip.compress(MEGABYTE)
        headers = {"Location": target, "Content-Encoding": "gzip"}
        with (
            web_server(lambda _: Reply(status, bomb, headers=headers)) as server,
            web_link(server.peer, None) as link,
            pytest.raises(NetworkError) as caught,
        ):
            REQUESTS[service](link, file, asked)
        assert str(caught.value) == (
            f"it answers {service} with HTTP status {status}, a redirect to localhost, "
            "which is not followed"
        )
        assert type(caught.value) is NetworkError
        assert len(server.asked) == 1
        assert not other.asked


@pytest.mark.parametrize(
    "target", ["", "file:///etc/passwd", "http://[", "http://DOE^JOHN/", "//" + "a" * 300]
)
def test_the_target_of_a_redirect_is_named_only_if_it_is_a_host(target: str, file: Path) -> None:
    with (
        web_server(lambda _: Reply(302, headers={"Location": target})) as server,
        web_link(server.peer, None) as link,
        pytest.raises(NetworkError, match="302, a redirect, which is not followed"),
    ):
        link.store(file)


def test_a_compressed_answer_is_refused(asked: ListedObject) -> None:
    packed = gzip.compress(MEGABYTE)
    with (
        web_server(
            lambda _: Reply(body=packed, media=MULTIPART, headers={"Content-Encoding": "gzip"})
        ) as server,
        web_link(server.peer, None) as link,
    ):
        for request in (lambda: link.studies({}), lambda: fetched(link, asked)):
            with pytest.raises(ProtocolError, match="compressed, unasked"):
                request()
        assert {one.headers["Accept-Encoding"] for one in server.asked} == {"identity"}


def test_memory_does_not_grow_with_an_object(file: Path, asked: ListedObject) -> None:
    content = file.read_bytes()

    def body() -> Iterator[bytes]:
        head, tail = one_part(b"|").split(b"|")
        yield head + content
        yield from (MEGABYTE for _ in range(32))
        yield tail

    with (
        web_server(lambda _: Reply(body=body(), media=MULTIPART)) as server,
        web_link(server.peer, None) as link,
        link.fetching(asked) as arriving,
    ):
        tracemalloc.start()
        try:
            size = sum(map(len, arriving.pieces))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size > 32 << 20
    assert peak < 4 << 20


def test_an_object_beyond_its_limit_is_refused(file: Path, asked: ListedObject) -> None:
    def endless() -> Iterator[bytes]:
        yield one_part(file.read_bytes()).rpartition(b"\r\n--B")[0]
        while True:
            yield MEGABYTE

    with (
        web_server(lambda _: Reply(body=endless(), media=MULTIPART)) as server,
        web_link(server.peer, None, WebLimits(bytes=1 << 20)) as link,
        pytest.raises(ProtocolError, match="more than"),
    ):
        fetched(link, asked)


def deflated(file: Path) -> bytes:
    """The same object, its data set deflated, with many zeros more."""
    content, data = file.read_bytes(), pydicom.dcmread(file)
    start = 144 + data.file_meta.FileMetaInformationGroupLength
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content[start:] + MEGABYTE) + packer.flush()
    return with_syntax(file, DeflatedExplicitVRLittleEndian, packed)


def with_syntax(file: Path, syntax: str, data_set: bytes) -> bytes:
    data = pydicom.dcmread(file)
    data.file_meta.TransferSyntaxUID = syntax
    head = pydicom.filebase.DicomBytesIO()
    pydicom.filewriter.write_file_meta_info(head, data.file_meta)
    return b"\0" * 128 + b"DICM" + head.getvalue() + data_set


PARTS: dict[str, tuple[Callable[[Path], Reply], str]] = {
    "another type": (lambda _: Reply(media="application/pdf"), "not multipart/related"),
    "no boundary": (
        lambda file: Reply(body=one_part(file.read_bytes()), media="multipart/related"),
        "not multipart/related",
    ),
    "a part of another type": (
        lambda file: Reply(body=one_part(file.read_bytes(), "image/png"), media=MULTIPART),
        "not one object",
    ),
    "two objects": (
        lambda file: Reply(
            body=one_part(file.read_bytes())[:-4] + b"\r\n" + one_part(b"")[3:], media=MULTIPART
        ),
        "not one object",
    ),
    "many parts": (
        lambda _: Reply(body=b"--B\r\n\r\n\r\n" * 10_000, media=MULTIPART),
        "not one object",
    ),
    "no part": (lambda _: Reply(body=b"--B--\r\n", media=MULTIPART), "has no object"),
    "an open end": (
        lambda file: Reply(body=one_part(file.read_bytes())[:-8], media=MULTIPART),
        "ends within a part",
    ),
    "no preamble": (
        lambda file: Reply(body=one_part(file.read_bytes()[132:]), media=MULTIPART),
        "not a DICOM file",
    ),
    "zeros": (lambda _: Reply(body=one_part(MEGABYTE), media=MULTIPART), "not a DICOM file"),
    "half a header": (
        lambda file: Reply(body=one_part(file.read_bytes()[:200]), media=MULTIPART),
        "not a whole DICOM file",
    ),
    "deflated": (
        lambda file: Reply(body=one_part(deflated(file)), media=MULTIPART),
        "its transfer syntax is not accepted",
    ),
    "an unknown syntax": (
        lambda file: Reply(body=one_part(with_syntax(file, "1.2.3", b"")), media=MULTIPART),
        "its transfer syntax is not accepted",
    ),
    "not found": (lambda _: Reply(404), "HTTP status 404"),
}
"""Answers to WADO-RS that are not the object, and why it is refused."""


@pytest.mark.parametrize("name", PARTS)
def test_only_one_whole_object_is_taken(name: str, file: Path, asked: ListedObject) -> None:
    reply, words = PARTS[name]
    with (
        web_server(lambda _: reply(file)) as server,
        web_link(server.peer, None) as link,
        pytest.raises((RefusedError, ProtocolError), match=words),
    ):
        fetched(link, asked)


@pytest.mark.parametrize("service", REQUESTS)
@pytest.mark.parametrize("place", ["head", "body"])
def test_an_answer_that_drips_is_given_up(
    service: str, place: str, file: Path, asked: ListedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, dripping = [0.0], list[bool]()

    def drip(_: Asked) -> bytes:
        dripping.append(True)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n" % MULTIPART.encode()
        return head if place == "head" else head + b"Content-Length: 99\r\n\r\n-"

    class Dripping(web_client.Deadline):
        def extend(self, size: int) -> None:
            super().extend(size)
            now[0] += 3.0 * size if dripping else 0.0  # a byte every three seconds

    monkeypatch.setattr(web_client, "Deadline", lambda: Dripping(lambda: now[0]))
    with (
        web_server(drip) as server,
        web_link(server.peer, None) as link,
        pytest.raises(ConnectionLostError, match=f"does not answer {service} in time"),
    ):
        REQUESTS[service](link, file, asked)


def test_a_large_object_has_time_as_long_as_it_comes() -> None:
    now = [0.0]
    deadline = web_client.Deadline(lambda: now[0])
    deadline.restart()
    for _ in range(1000):
        now[0] += 1.0
        deadline.left()
        deadline.extend(web_client.SLOWEST)
    now[0] += ANSWER_SECONDS + 1
    with pytest.raises(TimeoutError):
        deadline.left()


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03garbage" * 100,
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % one for one in range(1000)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: "
        + MULTIPART.encode()
        + b"\r\n\r\n-5\r\nabc\r\n",
    ],
)
@pytest.mark.parametrize("service", REQUESTS)
def test_answer_that_is_not_http_is_an_error_of_the_network(
    service: str, answer: bytes, file: Path, asked: ListedObject
) -> None:
    with (
        web_server(lambda _: answer) as server,
        web_link(server.peer, None) as link,
        pytest.raises(NetworkError),
    ):
        REQUESTS[service](link, file, asked)


STUDIES = [{STUDY: f"1.2.{number}"} for number in range(1201)]


def page_of(asked: Asked, most: int = 10_000) -> list[dict[str, str]]:
    start = int(asked.query["offset"])
    return STUDIES[start : start + min(int(asked.query["limit"]), most)]


SERVERS: dict[str, Callable[[Asked], Reply]] = {
    "by the standard": lambda one: listed(page_of(one)),
    "less at a time, with a warning": lambda one: listed(
        page := page_of(one, 50),
        **({"Warning": "299 x: There are additional results"} if len(page) == 50 else {}),
    ),
    "less at a time, with status 206": lambda one: Reply(
        206 if int(one.query["offset"]) + 50 < len(STUDIES) else 200,
        listed(page_of(one, 50)).body,
    ),
    "the limit ignored": lambda one: listed(STUDIES[int(one.query["offset"]) :]),
    "204 after the last": lambda one: listed(page) if (page := page_of(one)) else Reply(204),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_list_is_read_to_its_end(name: str) -> None:
    with web_server(SERVERS[name]) as server, web_link(server.peer, None) as link:
        assert link.studies({"Modality": "MR"}) == [row[STUDY] for row in STUDIES]
    assert {one.query["Modality"] for one in server.asked} == {"MR"}


LISTS: dict[str, tuple[Reply, str]] = {
    "the offset ignored": (listed(STUDIES[: web.PAGE]), "ignored the offset"),
    "more, over and over": (listed(STUDIES[:3], Warning="299 x: more"), "ignored the offset"),
    "too long": (listed(STUDIES), "more than 1,000 in one search"),
    "too large": (Reply(body=b" " * (9 << 20)), "more than 8,388,608 bytes"),
    "an empty body": (Reply(), "not a list of DICOM"),
    "not a list": (Reply(body=b'{"a": 1}'), "not a list of DICOM"),
    "nested deeply": (Reply(body=b"[" * 200_000 + b"]" * 200_000), "not a list of DICOM"),
    "another kind of value": (
        Reply(body=b'[{"0020000D":{"vr":"UI","Value":[{"x":1}]}}]'),
        "not a list of DICOM",
    ),
    "not UTF-8": (
        Reply(body=b'[{"0020000D":{"vr":"UI","Value":["\xff"]}}]'),
        "not a list of DICOM",
    ),
    "no UID": (listed([{INSTANCE: "1.2.3"}]), "lacks a UID"),
    "another path": (listed([{STUDY: "../../x"}]), "lacks a UID"),
    "a parent": (listed([{STUDY: ".."}]), "lacks a UID"),
    "HTML": (Reply(body=b"<html>", media="text/html"), "not DICOM's JSON"),
    "an error": (Reply(500, b"DOE^JOHN", "text/plain"), "HTTP status 500"),
}
"""Answers to QIDO-RS that are not a list of studies, and the error."""


@pytest.mark.parametrize("name", LISTS)
def test_answer_that_is_no_list_is_not_an_empty_one(name: str) -> None:
    reply, words = LISTS[name]
    with (
        web_server(lambda _: reply) as server,
        web_link(server.peer, None, WebLimits(listed=1000)) as link,
        pytest.raises(NetworkError, match=words),
    ):
        link.studies({})


@pytest.mark.parametrize("reply", [Reply(204), listed([]), Reply(body=b" [ ] ")])
def test_an_empty_list_is_one(reply: Reply) -> None:
    with web_server(lambda _: reply) as server, web_link(server.peer, None) as link:
        assert link.studies({}) == []


def test_an_echo_is_a_list(file: Path) -> None:
    with web_server(Archive([file]).answer) as server, web_link(server.peer, None) as link:
        link.echo()
    assert server.asked[0].query == {"limit": "1"}
    with (
        web_server(lambda _: Reply(body=b"<html>", media="text/html")) as server,
        web_link(server.peer, None) as link,
        pytest.raises(ProtocolError),
    ):
        link.echo()


def test_objects_are_listed_with_their_series(file: Path, asked: ListedObject) -> None:
    with web_server(Archive([file]).answer) as server, web_link(server.peer, None) as link:
        assert link.instances(asked.study) == [asked]
        assert len(link.pixels(asked)) == 2 * 16 * 16
    rows = [{SERIES: asked.series}]
    with (
        web_server(lambda _: listed(rows)) as server,
        web_link(server.peer, None) as link,
        pytest.raises(ProtocolError),
    ):
        link.instances(asked.study)
