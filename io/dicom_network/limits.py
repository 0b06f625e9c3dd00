"""Limits of the resources that peers may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of all peers together, or of one association.

    associations: at a time. waiting: connections at a time that have not become associations;
    beyond that, the oldest is closed. pdu: bytes of one PDU. objects, bytes: received on one
    association. request_seconds: from a connection to its whole request for an association.
    pdu_seconds: from a PDU's first byte to its last. idle_seconds: between two PDUs.
    """

    associations: int = 32
    waiting: int = 64
    pdu: int = 1 << 18
    objects: int = 100_000
    bytes: int = 64 << 30
    request_seconds: float = 10.0
    pdu_seconds: float = 30.0
    idle_seconds: float = 120.0


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class WebLimits:
    """Limits of what is read from a DICOMweb server.

    bytes: of one object. listed: studies of a search, and objects of a study.
    """

    bytes: int = 4 << 30
    listed: int = 100_000


DEFAULT_WEB_LIMITS = WebLimits()
LONGEST_REQUEST = 1 << 18
"""Bytes of a request for an association: 128 contexts of 60 transfer syntaxes take less."""
LONGEST_LIST = 1 << 20
"""Bytes of a message's data set that lists objects; each takes at most 170."""
LONGEST_COMMAND = 1 << 16
"""Bytes of a message's command; the longest, of a commitment, hold no list."""
