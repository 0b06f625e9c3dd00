"""Answers to STOW-RS, and what each proves: an object is stored only if the server shows that."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.node_world import phantom
from support.web_server import (
    FAILED,
    INSTANCE,
    OTHER,
    REFERENCED,
    Archive,
    Asked,
    Reply,
    element,
    encoded,
    item,
    listed,
    receipt,
    web_server,
)

from cuda_cyclegan.io.dicom_network.errors import (
    ConnectionLostError,
    NetworkError,
    RefusedError,
    UnconfirmedError,
)
from cuda_cyclegan.io.dicom_network.web import web_link

pydicom: Any = _pydicom
XML = "application/dicom+xml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return phantom(0, 1).write(tmp_path)[0]


def in_xml(tag: str, instance: str, **more: int) -> bytes:
    """An answer with one item, in the Native DICOM Model."""
    found = {"00081155": instance, **{key.strip("_"): value for key, value in more.items()}}
    rows = "".join(
        f'<DicomAttribute tag="{key}" vr="UI"><Value number="1">{value}</Value></DicomAttribute>'
        for key, value in found.items()
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<NativeDicomModel xmlns="http://dicom.nema.org/PS3.19/models/NativeDICOM">'
        f'<DicomAttribute tag="{tag}" vr="SQ"><Item number="1">{rows}</Item></DicomAttribute>'
        "</NativeDicomModel>"
    ).encode()


def with_both(instance: str) -> bytes:
    return encoded({REFERENCED: element(item(instance)), FAILED: element(item(instance))})


STORED: dict[str, Callable[[str], Reply]] = {
    "named": lambda uid: receipt(REFERENCED, item(uid)),
    "named among others": lambda uid: receipt(REFERENCED, item("1.2"), item(uid)),
    "with a charset": lambda uid: Reply(
        body=receipt(REFERENCED, item(uid)).body, media="application/dicom+json; charset=utf-8"
    ),
    "plain JSON": lambda uid: Reply(
        body=receipt(REFERENCED, item(uid)).body, media="application/json"
    ),
    "in a list": lambda uid: Reply(body=encoded([{REFERENCED: element(item(uid))}])),
    "with 202": lambda uid: receipt(REFERENCED, item(uid), status=202),
    "in XML": lambda uid: Reply(body=in_xml(REFERENCED, uid), media=f"{XML}; charset=UTF-8"),
    "in text/xml": lambda uid: Reply(body=in_xml(REFERENCED, uid), media="text/xml"),
}
"""Answers that name the object as stored."""


@pytest.mark.parametrize("name", STORED)
def test_an_object_that_is_named_as_stored_is_stored(name: str, file: Path) -> None:
    with (
        web_server(lambda one: STORED[name](one.instance)) as server,
        web_link(server.peer, None) as link,
    ):
        assert link.store(file) == ""
    assert server.count("GET") == 0


@pytest.mark.parametrize("is_xml", [False, True])
def test_a_warning_is_passed_on(is_xml: bool, file: Path) -> None:
    def answer(one: Asked) -> Reply:
        if is_xml:
            return Reply(body=in_xml(REFERENCED, one.instance, _00081196=0xB000), media=XML)
        return receipt(REFERENCED, item(one.instance, _00081196=0xB000))

    with web_server(answer) as server, web_link(server.peer, None) as link:
        assert link.store(file) == "warning B000"


FAILURE = {"_00081197": 0x0110}
CODE = {0x0111: {"_00081197": 0x0111}, 45070: {"_00081197": 45070}}

OTHERWISE: dict[str, tuple[Callable[[str], Reply], type[NetworkError], str, bool]] = {
    "empty 200": (lambda _: Reply(), UnconfirmedError, "does not name", True),
    "204": (lambda _: Reply(204), UnconfirmedError, "204", True),
    "202 without the object": (
        lambda _: Reply(202, encoded({})),
        UnconfirmedError,
        "status 202",
        True,
    ),
    "another UID": (
        lambda _: receipt(REFERENCED, item("1.2.3")),
        UnconfirmedError,
        "does not name",
        True,
    ),
    "HTML": (
        lambda _: Reply(body=b"<html>Please log in</html>", media="text/html"),
        UnconfirmedError,
        "does not name",
        True,
    ),
    "HTML as JSON": (
        lambda _: Reply(body=b"<html>Please log in</html>"),
        UnconfirmedError,
        "does not name",
        True,
    ),
    "JSON as HTML": (
        lambda uid: Reply(body=receipt(REFERENCED, item(uid)).body, media="text/html"),
        UnconfirmedError,
        "does not name",
        True,
    ),
    "nested deeply": (lambda _: Reply(body=b"[" * 99_999), UnconfirmedError, "name", True),
    "odd values": (
        lambda _: Reply(body=encoded({REFERENCED: element("x"), FAILED: element(7)})),
        UnconfirmedError,
        "does not name",
        True,
    ),
    "much too long": (
        lambda uid: Reply(body=receipt(REFERENCED, item(uid)).body + b" " * (1 << 20)),  # pyright: ignore[reportOperatorIssue]
        UnconfirmedError,
        "more than 262,144 bytes",
        True,
    ),
    "compressed": (
        lambda uid: Reply(
            body=receipt(REFERENCED, item(uid)).body, headers={"Content-Encoding": "gzip"}
        ),
        UnconfirmedError,
        "compressed",
        True,
    ),
    "XML with entities": (
        lambda uid: Reply(
            body=in_xml(REFERENCED, uid).replace(b"?>", b'?><!DOCTYPE x [<!ENTITY y "z">]>'),
            media=XML,
        ),
        UnconfirmedError,
        "does not name",
        True,
    ),
    "stored and failed": (
        lambda uid: Reply(202, with_both(uid)),
        UnconfirmedError,
        "as stored and as failed",
        True,
    ),
    "stored, with 409": (
        lambda uid: receipt(REFERENCED, item(uid), status=409),
        UnconfirmedError,
        "as stored and as failed",
        True,
    ),
    "the wrong sequence": (
        lambda uid: receipt(FAILED, item(uid, **FAILURE)),
        RefusedError,
        "failure 0110",
        True,
    ),
    "failed without a reason": (
        lambda uid: receipt(FAILED, item(uid), status=409),
        RefusedError,
        "as failed",
        True,
    ),
    "failed, 202": (
        lambda uid: receipt(FAILED, item(uid, **FAILURE), status=202),
        RefusedError,
        "failure 0110",
        False,
    ),
    "failed, 409": (
        lambda uid: receipt(FAILED, item(uid, **FAILURE), status=409),
        RefusedError,
        "failure 0110",
        False,
    ),
    "failed, in XML": (
        lambda uid: Reply(409, in_xml(FAILED, uid, **FAILURE), XML),
        RefusedError,
        "failure 0110",
        False,
    ),
    "other failures": (
        lambda _: Reply(202, encoded({OTHER: element({"00081197": element(0xA700)})})),
        RefusedError,
        "failure A700",
        False,
    ),
    "bare 409": (lambda _: Reply(409), RefusedError, "HTTP status 409", True),
    "bare 400": (lambda _: Reply(400, b"no", "text/plain"), RefusedError, "status 400", True),
    "already there, 0111": (
        lambda uid: receipt(FAILED, item(uid, **CODE[0x0111]), status=409),
        RefusedError,
        "failure 0111",
        True,
    ),
    "already there, 45070": (
        lambda uid: receipt(FAILED, item(uid, **CODE[45070]), status=409),
        RefusedError,
        "failure B00E",
        True,
    ),
    "another one is there": (
        lambda _: receipt(FAILED, item("1.2.3", **CODE[0x0111]), status=409),
        RefusedError,
        "HTTP status 409",
        True,
    ),
}
"""Answers that do not name the object as stored: the error, its words, and whether a search, which
settles it, follows."""


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_object_that_is_not_named_is_looked_up(name: str, file: Path) -> None:
    reply, error, words, is_sought = OTHERWISE[name]
    archive = Archive()

    def answer(one: Asked) -> Reply:
        return reply(one.instance) if one.method == "POST" else archive.found(one)

    with web_server(answer) as server, web_link(server.peer, None) as link:
        with pytest.raises(error, match=words):
            link.store(file)
        assert server.count("GET") == is_sought
        archive.keep(file.read_bytes())
        if is_sought:
            assert link.store(file) == ""
        else:
            with pytest.raises(error, match=words):
                link.store(file)


SEARCHES: dict[str, Reply] = {
    "no QIDO-RS": Reply(404),
    "an error": Reply(500),
    "a login page": Reply(body=b"<html>", media="text/html"),
    "nothing": Reply(204),
    "an empty list": listed([]),
    "an empty body": Reply(),
    "another object": listed([{INSTANCE: "1.2.3"}]),
    "a redirect": Reply(302, headers={"Location": "http://127.0.0.2/"}),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_that_does_not_show_the_object_proves_nothing(name: str, file: Path) -> None:
    with (
        web_server(lambda one: Reply() if one.method == "POST" else SEARCHES[name]) as server,
        web_link(server.peer, None) as link,
        pytest.raises(UnconfirmedError),
    ):
        link.store(file)


def test_a_search_is_for_the_object_in_its_own_series(file: Path) -> None:
    archive, data = Archive(), pydicom.dcmread(file)
    data.SeriesInstanceUID = "1.2.3.4"
    data.save_as(file.with_name("foreign.dcm"))
    archive.keep(file.with_name("foreign.dcm").read_bytes())

    def answer(one: Asked) -> Reply:
        return Reply(409) if one.method == "POST" else archive.found(one)

    with (
        web_server(answer) as server,
        web_link(server.peer, None) as link,
        pytest.raises(RefusedError),
    ):
        link.store(file)


@pytest.mark.parametrize("code", CODE)
def test_already_there_is_good_news_about_an_object_that_was_sent_before(
    code: int, file: Path
) -> None:
    def answer(one: Asked) -> Reply:
        if one.method == "GET":
            return Reply(404)
        return receipt(FAILED, item(one.instance, **CODE[code]), status=409)

    with web_server(answer) as server, web_link(server.peer, None) as link:
        assert link.store(file, was_sent=True)
        with pytest.raises(RefusedError):
            link.store(file)


def test_an_object_that_was_sent_before_is_sought_first(file: Path) -> None:
    archive = Archive([file])
    with web_server(archive.answer) as server, web_link(server.peer, None) as link:
        link.store(file, was_sent=True)
        assert server.count("POST") == 0
        archive.held.clear()
        link.store(file, was_sent=True)
        assert server.count("POST") == 1


@pytest.mark.parametrize("status", [401, 403, 404, 405, 429, 500, 503])
def test_a_status_about_the_server_is_no_answer_about_the_object(status: int, file: Path) -> None:
    with (
        web_server(lambda _: Reply(status)) as server,
        web_link(server.peer, None) as link,
        pytest.raises(NetworkError, match=f"STOW-RS with HTTP status {status}") as caught,
    ):
        link.store(file)
    assert type(caught.value) is NetworkError
    assert server.count("GET") == 0


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
def test_a_lost_answer_breaks_the_connection(answer: bytes | None, file: Path) -> None:
    with (
        web_server(lambda _: answer) as server,
        web_link(server.peer, None) as link,
        pytest.raises(ConnectionLostError, match="broke off while it answered STOW-RS"),
    ):
        link.store(file)


def test_the_file_is_sent_as_it_is(file: Path) -> None:
    archive = Archive()
    with web_server(archive.answer) as server, web_link(server.peer, None) as link:
        link.store(file)
    assert list(archive.held.values()) == [file.read_bytes()]
    [asked] = server.asked
    assert asked.headers["Content-Type"].startswith('multipart/related; type="application/dicom"')
    assert json.loads(encoded(dict(asked.headers)))["Accept-Encoding"] == "identity"


def test_a_damaged_file_is_not_sent(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2])
    with (
        web_server(lambda _: Reply()) as server,
        web_link(server.peer, None) as link,
        pytest.raises(RefusedError, match="a result on disk is damaged"),
    ):
        link.store(file)
    assert not server.asked
