"""DICOMweb: objects sent by STOW-RS, and found and fetched by QIDO-RS and WADO-RS."""

import ssl
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from ..dicom.dataset import PARSING_ERRORS, DataSet, pydicom, word
from .access_tokens import AccessTokens, Bearer, ClientCredentials, TokenSource
from .errors import (
    ConnectionLostError,
    NetworkError,
    ProtocolError,
    RefusedError,
    UnconfirmedError,
)
from .limits import DEFAULT_WEB_LIMITS, WebLimits
from .media_types import MediaType
from .multipart import parts_of
from .negotiation import SYNTAXES
from .objects import UID_PATTERN, ListedObject, Offer
from .sent_objects import SentObject, object_in, opened
from .stow_answer import Proof, StowAnswer, is_about_objects, meaning_of
from .tls import Certificates

if TYPE_CHECKING:
    from .web_client import Answer, WebClient

PAGE = 100
"""Studies or objects that are asked for at a time. Microsoft's server refuses more than 200, its
early versions more than 100.
"""
_MOST_BYTES_OF_A_PAGE, _MOST_BYTES_OF_A_RECEIPT = 8 << 20, 1 << 18
_NOT_FOUND = (400, 404, 406, 410, 415)
"""HTTP statuses by which a server refuses one object that is asked for."""
_BEFORE_META, _LONGEST_META = 144, 1 << 16
"""Bytes up to the end of the file meta's length, and bytes of the file meta."""
_META_START = b"DICM\2\0\0\0UL\4\0"
_SYNTAX = "TransferSyntaxUID"


@dataclass(frozen=True, slots=True)
class WebPeer:
    """DICOMweb server. url: its root. token: source of its bearer tokens, or None."""

    url: str
    token: TokenSource = None

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class ArrivingObject:
    """Object that a server sends.

    offer: its identity. pieces: its data set, without the file meta, to be read once.
    """

    offer: Offer
    pieces: Iterator[bytes]


class WebLink:
    """Connection to a DICOMweb server, from `web_link`; its methods raise NetworkError."""

    def __init__(self, client: "WebClient", limits: WebLimits) -> None:
        self._client, self._limits = client, limits

    def echo(self) -> None:
        """Request any one study."""
        self._page("studies", {"limit": "1"})

    def store(self, file: Path, *, was_sent: bool = False) -> str:
        """Send one object, which the server has when this returns.

        was_sent: whether it was sent before and no answer came; then the server may have it.
        Returns the server's warning, or "". Raises RefusedError or UnconfirmedError for this object
        alone.
        """
        with opened(file) as stream:
            sent = object_in(stream)
            if was_sent and self._shows(sent):
                return ""
            answer = self._posted(stream, sent)
        is_there = answer.proof is Proof.STORED or (
            was_sent and answer.proof is Proof.ALREADY_THERE
        )
        if is_there:
            return answer.words
        if answer.proof is not Proof.FAILED and self._shows(sent):
            return ""
        if answer.proof is Proof.NOTHING:
            raise UnconfirmedError(answer.words)
        raise RefusedError(answer.words)

    def studies(self, filters: Mapping[str, str]) -> list[str]:
        """Return the UIDs of the studies that match. filters: QIDO-RS keys and values."""
        return [_uid(row.study) for row in self._found("studies", filters)]

    def instances(self, study: str) -> list[ListedObject]:
        """Return the objects of a study."""
        return [
            ListedObject(study, _uid(row.series), _uid(row.instance))
            for row in self._found(f"studies/{study}/instances", {})
        ]

    @contextmanager
    def fetching(self, asked: ListedObject) -> Generator[ArrivingObject]:
        """Fetch an object for the block, in the syntax in which the server keeps it.

        Raises RefusedError for this object alone.
        """
        accepted = 'multipart/related; type="application/dicom"; transfer-syntax=*'
        with self._client.request("WADO-RS", _path(asked), {"Accept": accepted}) as answer:
            if answer.status != 200:
                kind = RefusedError if answer.status in _NOT_FOUND else NetworkError
                raise kind(f"it answers WADO-RS with HTTP status {answer.status}")
            pieces = _only_part(answer, self._limits.bytes)
            meta, start = _file_meta(pieces)
            sop_class, syntax = word(meta, "MediaStorageSOPClassUID"), word(meta, _SYNTAX)
            if syntax not in SYNTAXES:
                raise RefusedError("its transfer syntax is not accepted")
            yield ArrivingObject(Offer(sop_class, asked.instance, syntax), chain([start], pieces))

    def pixels(self, asked: ListedObject) -> bytes:
        """Return the bytes of an object's pixels."""
        with self.fetching(asked) as arriving:
            syntax, data = pydicom.uid.UID(arriving.offer.syntax), b"".join(arriving.pieces)
        try:
            dataset = pydicom.filereader.read_dataset(
                BytesIO(data), syntax.is_implicit_VR, is_little_endian=True
            )
            return dataset.PixelData
        except PARSING_ERRORS:
            raise ProtocolError("an object that it sends is damaged") from None

    def _posted(self, stream: BinaryIO, sent: SentObject) -> StowAnswer:
        from .web_client import Body

        boundary = uuid.uuid4().hex
        head = f"--{boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode()
        body = Body(head, stream, f"\r\n--{boundary}--\r\n".encode())
        headers = {
            "Content-Type": f'multipart/related; type="application/dicom"; boundary={boundary}',
            "Accept": "application/dicom+json",
        }
        try:
            with self._client.request("STOW-RS", "studies", headers, body=body) as answer:
                if not is_about_objects(answer.status):
                    raise NetworkError(f"it answers STOW-RS with HTTP status {answer.status}")
                content = answer.body(_MOST_BYTES_OF_A_RECEIPT)
                return meaning_of(answer.status, answer.media, content, sent.instance)
        except ProtocolError as error:
            return StowAnswer(Proof.NOTHING, str(error))

    def _shows(self, sent: SentObject) -> bool:
        """Return whether a search shows that the server has an object of ours."""
        path = f"studies/{sent.study}/series/{sent.series}/instances"
        try:
            found = self._found(path, {"SOPInstanceUID": sent.instance})
        except NetworkError:
            return False
        return any(row.instance.values == [sent.instance] for row in found)

    def _found(self, path: str, filters: Mapping[str, str]) -> "list[_Row]":
        """Return all rows of a search, page by page."""
        found: dict[tuple[tuple[str, ...], ...], _Row] = {}
        offset = 0
        while True:
            bounds = {"limit": str(PAGE), "offset": str(offset)}
            page, has_more = self._page(path, {**filters, **bounds})
            known = len(found)
            found.update((row.key, row) for row in page)
            if page and len(found) == known:
                raise ProtocolError("its answers to QIDO-RS repeat, as if it ignored the offset")
            if len(found) > self._limits.listed:
                raise ProtocolError(f"it lists more than {self._limits.listed:,} in one search")
            if not page or not (has_more or len(page) >= PAGE):
                return list(found.values())
            offset += len(page)

    def _page(self, path: str, parameters: Mapping[str, str]) -> "tuple[list[_Row], bool]":
        """Return rows of a search, and whether the server states that there are more."""
        accepted = {"Accept": "application/dicom+json"}
        with self._client.request("QIDO-RS", path, accepted, parameters) as answer:
            if answer.status == 204:
                return [], False
            if answer.status not in (200, 206):
                raise NetworkError(f"it answers QIDO-RS with HTTP status {answer.status}")
            body = answer.body(_MOST_BYTES_OF_A_PAGE)
            if not answer.media.is_json:
                raise ProtocolError("its answer to QIDO-RS is not DICOM's JSON")
            has_more = answer.status == 206 or "299" in answer.headers.get("Warning", "")
        try:
            return _ROWS.decode(body), has_more
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ProtocolError("its answer to QIDO-RS is not a list of DICOM") from None


@contextmanager
def web_link(
    peer: WebPeer,
    certificates: Certificates | None,
    limits: WebLimits = DEFAULT_WEB_LIMITS,
    tokens: AccessTokens | None = None,
) -> Generator[WebLink]:
    """Connect to a server for the block. certificates: for HTTPS; without, the system's. tokens:
    access tokens that several connections share.

    Raises NetworkError.
    """
    from .web_client import web_client

    endpoint = peer.token.endpoint if isinstance(peer.token, ClientCredentials) else ""
    uses_tls = any(url.startswith("https:") for url in (peer.url, endpoint))
    context = _tls_context(certificates) if uses_tls else None
    bearer = Bearer(peer.token, tokens or AccessTokens(), context)
    with web_client(peer.url, context, bearer) as client:
        try:
            yield WebLink(client, limits)
        except ConnectionLostError:
            bearer.reject()  # a server may cut an upload instead of answering 401
            raise


def _path(asked: ListedObject) -> str:
    """Return the path of an object's URL, below the root."""
    return f"studies/{asked.study}/series/{asked.series}/instances/{asked.instance}"


def _tls_context(certificates: Certificates | None) -> ssl.SSLContext:
    return certificates.client_context() if certificates else ssl.create_default_context()


class _Values(msgspec.Struct):
    """Element of a UID."""

    values: list[str] = msgspec.field(default_factory=list[str], name="Value")


class _Row(msgspec.Struct):
    """Study or object in a list."""

    study: _Values = msgspec.field(default_factory=_Values, name="0020000D")
    series: _Values = msgspec.field(default_factory=_Values, name="0020000E")
    instance: _Values = msgspec.field(default_factory=_Values, name="00080018")

    @property
    def key(self) -> tuple[tuple[str, ...], ...]:
        """Identity in a list."""
        return tuple(tuple(each.values) for each in (self.study, self.series, self.instance))


_ROWS = msgspec.json.Decoder(list[_Row])


def _uid(element: _Values) -> str:
    """Return the UID of a row. Raises ProtocolError if it has none that a URL may hold."""
    if len(element.values) != 1 or not UID_PATTERN.fullmatch(element.values[0]):
        raise ProtocolError("its answer to QIDO-RS lacks a UID")
    return element.values[0]


def _only_part(answer: "Answer", most: int) -> Iterator[bytes]:
    """Yield the one object of an answer. Raises ProtocolError if there are none or more."""
    boundary = answer.media.parameters.get("boundary", "")
    if answer.media.name != "multipart/related" or not boundary:
        raise RefusedError("its answer to WADO-RS is not multipart/related")
    count = 0
    for part in parts_of(answer.pieces(most + _LONGEST_META), boundary):
        count += 1
        kind = part.headers.get("content-type", "application/dicom")
        if count > 1 or MediaType.parse(kind).name != "application/dicom":
            raise RefusedError("its answer to WADO-RS is not one object")
        yield from part.pieces
    if not count:
        raise RefusedError("its answer to WADO-RS has no object")


def _file_meta(pieces: Iterator[bytes]) -> tuple[DataSet, bytes]:
    """Return the file meta of an object, and what was read after it. Raises RefusedError."""
    start = bytearray()
    size = _BEFORE_META
    while len(start) < size:
        piece = next(pieces, b"")
        start += piece
        if not piece:
            raise RefusedError("an object that it sends is not a whole DICOM file")
        if size == _BEFORE_META <= len(start):
            length = int.from_bytes(start[size - 4 : size], "little")
            if bytes(start[128 : size - 4]) != _META_START or length > _LONGEST_META:
                raise RefusedError("an object that it sends is not a DICOM file")
            size += length
    try:
        meta = pydicom.filereader.read_dataset(
            BytesIO(start[132:size]), is_implicit_VR=False, is_little_endian=True
        )
    except PARSING_ERRORS:
        raise RefusedError("the file meta of an object that it sends is damaged") from None
    return meta, bytes(start[size:])
