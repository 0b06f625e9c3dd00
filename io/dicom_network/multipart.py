"""Multipart bodies (RFC 2046, 5.1), read part by part while they arrive, in little memory."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .errors import ProtocolError

_LONGEST_LINE = 1 << 13
_MOST_HEADERS = 64
_LINE_END = b"\r\n"


@dataclass(frozen=True, slots=True)
class BodyPart:
    """Part of a body. headers: by lower-case names. pieces: its content, to be read once."""

    headers: Mapping[str, str]
    pieces: Iterator[bytes]


def parts_of(pieces: Iterable[bytes], boundary: str) -> Iterator[BodyPart]:
    """Yield the parts of a body, each to be read before the next. pieces: the body.

    The body is read to its end. Raises ProtocolError if it is malformed or incomplete, also while a
    part is read.
    """
    reader = _Reader(iter(pieces), boundary.encode("latin-1"))
    for _ in reader.until_delimiter():
        pass  # the preamble
    while not reader.is_closed():
        part = BodyPart(reader.headers(), reader.until_delimiter())
        yield part
        for _ in part.pieces:
            pass
    reader.finish()


class _Reader:
    def __init__(self, pieces: Iterator[bytes], boundary: bytes) -> None:
        self._pieces = pieces
        self._delimiter = _LINE_END + b"--" + boundary
        self._known = bytearray(_LINE_END)  # which the first delimiter may lack

    def until_delimiter(self) -> Iterator[bytes]:
        """Yield the bytes before the next delimiter, and skip that."""
        kept = len(self._delimiter) - 1
        while (end := self._known.find(self._delimiter)) < 0:
            if len(self._known) > kept:
                yield bytes(self._known[:-kept])
                del self._known[:-kept]
            self._read()
        if end:
            yield bytes(self._known[:end])
        del self._known[: end + len(self._delimiter)]

    def is_closed(self) -> bool:
        """Whether the delimiter was the last one; if not, skip the end of its line."""
        while len(self._known) < len(_LINE_END):
            self._read()
        if self._known.startswith(b"--"):
            return True
        if self._line().strip(b" \t"):
            raise ProtocolError("a delimiter in its answer is malformed")
        return False

    def headers(self) -> dict[str, str]:
        """Return the headers of a part, and skip the empty line after them."""
        found: dict[str, str] = {}
        while line := self._line():
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or len(found) >= _MOST_HEADERS:
                raise ProtocolError("the headers of a part of its answer are malformed")
            found[name.strip().lower()] = value.strip()
        return found

    def finish(self) -> None:
        """Skip what follows the last part."""
        for _ in self._pieces:
            pass

    def _line(self) -> bytes:
        while (end := self._known.find(_LINE_END)) < 0:
            if len(self._known) > _LONGEST_LINE:
                raise ProtocolError("a line in its answer is too long")
            self._read()
        line = bytes(self._known[:end])
        del self._known[: end + len(_LINE_END)]
        return line

    def _read(self) -> None:
        try:
            self._known += next(self._pieces)
        except StopIteration:
            raise ProtocolError("its answer ends within a part") from None
