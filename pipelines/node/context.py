"""Objects that all parts of a node share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...io.dicom_network.access_tokens import AccessTokens
from ...io.dicom_network.tls import Certificates
from .audit import AuditTrail
from .events import NodeEvent
from .routes import Route
from .store import NodeStore


@dataclass(slots=True)
class NodeContext:
    """Records, clock and current routes of a node.

    store: records. results: folder of all results, by route and day. emit: callback for events,
    called by any thread. clock: seconds since 1970. certificates: for TLS, or None. routes: current
    routes by AE title; replaced as a whole, by the node alone. tokens: access tokens in use.
    audit: audit trail.
    """

    store: NodeStore
    results: Path
    emit: Callable[[NodeEvent], None]
    clock: Callable[[], float]
    certificates: Certificates | None
    routes: Mapping[str, Route]
    tokens: AccessTokens = field(default_factory=AccessTokens)
    audit: AuditTrail = field(default_factory=AuditTrail)
