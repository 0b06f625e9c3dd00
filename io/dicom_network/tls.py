"""TLS by BCP 195: version 1.2 or newer, and certificates on both sides."""

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM.

    own: this program's certificate, with those between it and its root. key: its private key.
    trusted: roots of the peers' certificates.
    """

    own: Path
    key: Path
    trusted: Path

    def server_context(self) -> ssl.SSLContext:
        """For peers that connect, which must show a certificate. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._loaded(context)

    def client_context(self) -> ssl.SSLContext:
        """For peers to connect to, whose certificate must name their host. Raises OSError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.own, self.key)
        context.load_verify_locations(self.trusted)
        return context
