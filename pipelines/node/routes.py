"""Routes: processing of the objects sent to one AE title, and who may send them."""

import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Self, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ...io.dicom.object_types import known_modalities
from ...io.dicom_network.access_tokens import ClientCredentials, TokenSource
from ...io.dicom_network.limits import DEFAULT_WEB_LIMITS, WebLimits
from ...io.dicom_network.query_keys import STUDY_KEYS
from ...io.dicom_network.requesting import Peer
from ...io.dicom_network.syslog import PORT, SyslogServer
from ...io.dicom_network.web import WebPeer
from ..errors import ConfigError
from ..jobs.queue.batch_name import EACH_NIGHT, BatchPattern
from ..jobs.queue.schedule import SchedulingClass
from ..request import Request

AddressRange: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Caller:
    """Allowed sender. title: its AE title. network: addresses that it may have."""

    title: str
    network: AddressRange

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `TITLE@ADDRESS` or `TITLE@NETWORK/BITS`. Raises ConfigError."""
        title, _, place = text.rpartition("@")
        try:
            network = ip_network(place if title else "")
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is not TITLE@ADDRESS or TITLE@NETWORK, such as SCANNER1@10.0.0.5 or "
                "WORKSTATIONS@10.0.1.0/24."
            ) from error
        return cls(checked_title(title), network)

    def is_at(self, title: str, address: str) -> bool:
        """Whether a calling AE title and address match."""
        return title == self.title and _plain(ip_address(address)) in self.network


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Convert an IPv4-mapped IPv6 address to IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def parse_peer(text: str) -> Peer:
    """Parse an application entity from `TITLE@HOST:PORT`. Raises ConfigError."""
    title, _, place = text.rpartition("@")
    host, _, port = place.rpartition(":")
    if not title or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{text!r} is not TITLE@HOST:PORT, such as PACS@10.0.0.9:104.")
    return Peer(checked_title(title), host.removeprefix("[").removesuffix("]"), int(port))


def parse_syslog(text: str) -> SyslogServer:
    """Parse a syslog server from `HOST` or `HOST:PORT`. Raises ConfigError."""
    found = re.fullmatch(r"(\[[^\[\]\s]+\]|[^:\[\]\s]+)(?::([0-9]{1,5}))?", text)
    port = int(found[2] or PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise ConfigError(f"{text!r} is not HOST or HOST:PORT, such as logs.example.org:6514.")
    return SyslogServer(found[1].removeprefix("[").removesuffix("]"), port)


def parse_destination(text: str, token: TokenSource) -> Peer | WebPeer:
    """Parse a destination from `TITLE@HOST:PORT` or a URL. Raises ConfigError."""
    if "://" in text:
        return parse_web_peer(text, token)
    if token:
        raise ConfigError("a token is for a destination whose URL begins with https://.")
    return parse_peer(text)


def parse_source(text: str, token: TokenSource, *, has_largest: bool) -> Peer | WebPeer:
    """Parse a source from `TITLE@HOST:PORT` or a URL. Raises ConfigError.

    has_largest: whether the size of an object is limited, which the node's port does itself.
    """
    if "://" in text:
        return parse_web_peer(text, token)
    if token:
        raise ConfigError("a token is for a source whose URL begins with https://.")
    if has_largest:
        raise ConfigError(
            "source-object-limit is for a DICOMweb source; what TITLE@HOST:PORT sends is limited "
            "by setting inbox-limit."
        )
    return parse_peer(text)


def parse_web_peer(text: str, token: TokenSource) -> WebPeer:
    """Parse the URL of a DICOMweb server. token: of its bearer tokens. Raises ConfigError."""
    found = urlsplit(text)
    if not _is_web_url(found):
        raise ConfigError(
            f"{found.hostname or text!r} is not a URL such as https://host/dicom-web."
        )
    if found.query or found.fragment:
        raise ConfigError(f"the URL of {found.hostname} has a query; source-query is for that.")
    if token and _is_readable_in_transit(found):
        raise ConfigError("a token needs https://, as others could read it in transit.")
    return WebPeer(text.rstrip("/"), token)


def parse_credentials(text: str, client: str, secret: Path | str, scope: str) -> ClientCredentials:
    """Parse the URL of a token endpoint, with the other fields. Raises ConfigError."""
    found = urlsplit(text)
    if not _is_web_url(found):
        raise ConfigError(
            f"the token URL of {found.hostname or 'the route'} is not one such as "
            "https://host/oauth2/token."
        )
    if _is_readable_in_transit(found):
        raise ConfigError("a client secret needs https://, as others could read it in transit.")
    if found.fragment:
        raise ConfigError(f"the token URL of {found.hostname} has a fragment.")
    return ClientCredentials(text, client, secret, scope)


_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _is_web_url(url: SplitResult) -> bool:
    """Whether it names a host, and no user, whose name would be part of messages."""
    return url.scheme in ("http", "https") and bool(url.hostname) and not url.username


def _is_readable_in_transit(url: SplitResult) -> bool:
    return url.scheme == "http" and url.hostname not in _LOOPBACK


def web_limits(largest: int | None, listed: int | None) -> WebLimits:
    """Return the limits of a source. largest: bytes of an object. listed: length of a list."""
    default = DEFAULT_WEB_LIMITS
    return WebLimits(largest or default.bytes, listed or default.listed)


def parse_filters(text: str, peer: Peer | WebPeer) -> dict[str, str]:
    """Parse the filters of a source from `KEY=VALUE&KEY=VALUE`. Raises ConfigError."""
    try:
        found = dict(parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text)))
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a query such as ModalitiesInStudy=MR&StudyDescription=Brain*."
        ) from error
    if isinstance(peer, Peer) and (unknown := found.keys() - set(STUDY_KEYS)):
        raise ConfigError(
            f"source-query has {min(unknown)}, which cannot select studies by C-FIND; "
            f"known are {', '.join(STUDY_KEYS)}."
        )
    return found


def check_modalities(modalities: Collection[str]) -> None:
    """Raise ConfigError for a modality without a code in the standard, which no series has."""
    known = known_modalities()
    for modality in sorted(modalities):
        if modality not in known:
            meant = get_close_matches(modality, known, 1)
            hint = f"use {meant[0]}" if meant else "use one such as CT, MR or PT"
            raise ConfigError(
                f"{modality} is not a modality code of DICOM (PS3.16 CID 33); {hint}."
            )


def checked_title(text: str) -> str:
    """Return a valid AE title unchanged. Raises ConfigError."""
    is_plain = text.isascii() and text.isprintable() and "\\" not in text
    if not text.strip() or text.strip() != text or len(text) > 16 or not is_plain:
        raise ConfigError(f"{text!r} is not an AE title: 1 to 16 letters, digits or signs.")
    return text


@dataclass(frozen=True, slots=True)
class Source:
    """Archive from which a route fetches studies: a DICOMweb server, or an application entity.

    peer: the archive. filters: QIDO-RS keys, or keywords, and values of the studies; without
    StudyDate, those from yesterday on. poll: seconds between two searches. limits: of what is read
    from it. uses_tls: whether to connect to an application entity over TLS.
    """

    peer: Peer | WebPeer
    filters: Mapping[str, str] = field(default_factory=dict[str, str])
    poll: float = 30.0
    limits: WebLimits = DEFAULT_WEB_LIMITS
    uses_tls: bool = False

    def filters_at(self, moment: datetime) -> dict[str, str]:
        """Return the filters of a search."""
        yesterday = f"{moment - timedelta(days=1):%Y%m%d}-"
        return {"StudyDate": yesterday, **self.filters}


@dataclass(frozen=True, slots=True)
class Route:
    """Processing of the objects sent to one called AE title.

    title: that title, also the calling AE title towards the destination. request: series filters,
    model and options; the node sets its inputs and output. scheduling: class of the jobs. callers:
    allowed senders. destination: receiver of the results. uses_tls: whether to send over TLS.
    quiet: seconds without new objects after which a study counts as complete. hold: seconds that an
    incomplete study waits for the rest. retry: seconds for which sending a result is retried. keep:
    seconds that objects stay after all results were confirmed. keep_failed: the same for studies
    with a failure. batch: name of the batches that its jobs join. source:
    archive whose studies it fetches, or None. commitment: seconds that the destination has
    to report storage commitment until it is requested again; None without storage commitment.
    rejects_superseded: whether the destination gets a rejection note on an earlier result, once it
    has one of more images.
    """

    title: str
    request: Request
    scheduling: SchedulingClass
    callers: tuple[Caller, ...]
    destination: Peer | WebPeer
    uses_tls: bool = False
    quiet: float = 30.0
    hold: float = 3600.0
    retry: float = 7 * 86400.0
    keep: float = 86400.0
    keep_failed: float = 30 * 86400.0
    batch: BatchPattern = EACH_NIGHT
    source: Source | None = None
    commitment: float | None = None
    rejects_superseded: bool = False

    def admits(self, title: str, address: str) -> bool:
        """Whether a peer may send here."""
        return any(caller.is_at(title, address) for caller in self.callers)

    def expects_reports_of(self, title: str, address: str) -> bool:
        """Whether a peer may report storage commitment here: the destination, from its own address
        or one that the route admits.
        """
        peer = self.destination
        if self.commitment is None or not isinstance(peer, Peer) or title != peer.title:
            return False
        return self.admits(title, address) or _is_of(peer.host, address)

    def fetches_from(self, title: str, address: str) -> bool:
        """Whether a peer is the source, which sends over DIMSE what the route requests."""
        peer = self.source.peer if self.source else None
        return isinstance(peer, Peer) and title == peer.title and _is_of(peer.host, address)


def _is_of(host: str, address: str) -> bool:
    """Whether an address is one of a host's."""
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    known = {_plain(ip_address(str(each[4][0]).partition("%")[0])) for each in found}
    return _plain(ip_address(address.partition("%")[0])) in known
