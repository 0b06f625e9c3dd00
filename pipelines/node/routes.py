"""Routes: what becomes of objects that are sent to one AE title, and who may send them."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self, TypeAlias

from ...io.dicom_network.sending import Peer
from ..errors import ConfigError
from ..jobs.queue.state import SchedulingClass
from ..request import Request

AddressRange: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Caller:
    """Who may send. title: its AE title. network: where it may be."""

    title: str
    network: AddressRange

    @classmethod
    def parse(cls, text: str) -> Self:
        """A caller from `TITLE@ADDRESS` or `TITLE@NETWORK/BITS`. Raises ConfigError."""
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
        """Whether this is who calls."""
        return title == self.title and _plain(ip_address(address)) in self.network


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that came over an IPv6 socket as itself."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def parse_peer(text: str) -> Peer:
    """A destination from `TITLE@HOST:PORT`. Raises ConfigError."""
    title, _, place = text.rpartition("@")
    host, _, port = place.rpartition(":")
    if not title or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{text!r} is not TITLE@HOST:PORT, such as PACS@10.0.0.9:104.")
    return Peer(checked_title(title), host.removeprefix("[").removesuffix("]"), int(port))


def checked_title(text: str) -> str:
    """An AE title. Raises ConfigError."""
    is_plain = text.isascii() and text.isprintable() and "\\" not in text
    if not text.strip() or text.strip() != text or len(text) > 16 or not is_plain:
        raise ConfigError(f"{text!r} is no AE title: 1 to 16 letters, digits or signs.")
    return text


@dataclass(frozen=True, slots=True)
class Route:
    """What is done for one called AE title.

    title: that title, by which the node calls its destination too. request: which series become
    what; its inputs and output are the node's. scheduling: of the jobs. callers: who may send.
    destination: of the results. uses_tls: whether that is reached over TLS. quiet: seconds without
    news after which a study is complete. hold: seconds for which a study waits for what it lacks.
    retry: seconds for which sending a result is tried again. keep: seconds for which objects stay
    after all results were confirmed. keep_failed: the same for studies of which something failed.
    """

    title: str
    request: Request
    scheduling: SchedulingClass
    callers: tuple[Caller, ...]
    destination: Peer
    uses_tls: bool = False
    quiet: float = 30.0
    hold: float = 3600.0
    retry: float = 7 * 86400.0
    keep: float = 86400.0
    keep_failed: float = 30 * 86400.0

    def admits(self, title: str, address: str) -> bool:
        """Whether somebody may send here."""
        return any(caller.is_at(title, address) for caller in self.callers)
