"""Multipart bodies and media types, as servers write them and as they should not."""

import email
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from cuda_cyclegan.io.dicom_network.errors import ProtocolError
from cuda_cyclegan.io.dicom_network.media_types import MediaType
from cuda_cyclegan.io.dicom_network.multipart import parts_of

BOUNDARY = "-a b"
DELIMITER = f"\r\n--{BOUNDARY}".encode()
PIECES = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"-", b"--", b"\r\n--", b"\r\n---a", b"x", b"\0"]),
    max_size=12,
).map(b"".join)
"""Contents that nearly are delimiters."""


def read(pieces: Iterator[bytes]) -> list[tuple[dict[str, str], bytes]]:
    return [(dict(part.headers), b"".join(part.pieces)) for part in parts_of(pieces, BOUNDARY)]


def cut(body: bytes, places: list[int]) -> Iterator[bytes]:
    ends = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return (body[start:end] for start, end in pairwise(ends))


@settings(max_examples=examples(300), deadline=None)
@given(
    contents=st.lists(PIECES.filter(lambda one: DELIMITER not in one), min_size=1, max_size=3),
    preamble=st.sampled_from([b"", b"hello\r\n", b"\r\n"]),
    epilogue=st.sampled_from([b"", b"\r\n", b"\r\nbye"]),
    places=st.lists(st.integers(0, 1 << 16), max_size=20),
)
def test_any_split_of_a_body_gives_the_same_parts(
    contents: list[bytes], preamble: bytes, epilogue: bytes, places: list[int]
) -> None:
    body = preamble
    for content in contents:
        body += DELIMITER[2 if body in (b"", b"hello\r\n") else 0 :]
        body += b"\t\r\nContent-Type: application/dicom\r\nX:  y \r\n\r\n" + content
    body += DELIMITER + b"--" + epilogue
    headers = {"content-type": "application/dicom", "x": "y"}
    expected = [(headers, content) for content in contents]
    assert read(cut(body, places)) == expected
    assert read(iter([body])) == expected


def test_a_body_may_be_cut_anywhere() -> None:
    content = DELIMITER[:-1] * 2 + b"x\r"
    body = DELIMITER[2:] + b"\r\nA: b\r\n\r\n" + content + DELIMITER + b"--"
    bytewise = (body[at : at + 1] for at in range(len(body)))
    assert read(bytewise) == [({"a": "b"}, content)]
    for place in range(len(body)):
        assert read(iter([body[:place], body[place:]])) == [({"a": "b"}, content)]


def test_the_standard_library_reads_the_same() -> None:
    contents = [b"one\r\n", b"--two", b""]
    body = b"".join(DELIMITER + b"\r\nA: b\r\n\r\n" + one for one in contents) + DELIMITER + b"--"
    head = f'Content-Type: multipart/related; boundary="{BOUNDARY}"\r\n\r\n'.encode()
    judged = email.message_from_bytes(head + body).walk()
    next(judged)
    assert [one.get_payload(decode=True) for one in judged] == contents
    assert [content for _, content in read(iter([body]))] == contents


PART = DELIMITER + b"\r\nA: b\r\n\r\nbody"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no delimiter",
        PART,
        PART + DELIMITER,
        PART + DELIMITER[:-1] + b"--",
        PART + DELIMITER + b"x\r\n\r\n" + DELIMITER + b"--",
        DELIMITER + b"\r\nno colon\r\n\r\n" + DELIMITER + b"--",
        DELIMITER + b"\r\nA: " + b"b" * 10_000,
        DELIMITER + b"\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(65)),
    ],
)
def test_malformed_or_short_text_is_no_body(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(iter([body]))


def test_little_of_a_part_is_in_memory() -> None:
    piece = b"\r\n--" * 1000

    def pieces() -> Iterator[bytes]:
        yield PART
        yield from (piece for _ in range(100))
        yield DELIMITER + b"--"

    [part] = parts_of(pieces(), BOUNDARY)
    assert max(map(len, part.pieces), default=0) <= len(piece) + len(DELIMITER)


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("", "", {}),
        ("application/dicom+json", "application/dicom+json", {}),
        (
            "Application/DICOM+json ; Charset=utf-8",
            "application/dicom+json",
            {"charset": "utf-8"},
        ),
        (
            'multipart/related; type="application/dicom"; boundary="a;\\"b"',
            "multipart/related",
            {"type": "application/dicom", "boundary": 'a;"b'},
        ),
        ("multipart/related;boundary=a=b;;x", "multipart/related", {"boundary": "a=b"}),
    ],
)
def test_a_media_type_is_read_with_its_parameters(
    text: str, name: str, parameters: dict[str, str]
) -> None:
    found = MediaType.parse(text)
    assert (found.name, found.parameters) == (name, parameters)
