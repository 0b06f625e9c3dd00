"""TLS by BCP 195: version 1.2 or newer, and certificates on both sides."""

import ssl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..files.regular import open_regular
from .errors import CertificateError


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
        """Context for peers that connect and must show a certificate. Raises CertificateError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._loaded(context)

    def client_context(self) -> ssl.SSLContext:
        """Context for peers to connect to, whose certificate must name their host.

        Raises CertificateError.
        """
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with _failures_named(f"{self.own} with the key {self.key}"):
            _refuse_pipes(self.own, self.key)
            # Otherwise OpenSSL prompts for a password, which nobody can type for a service.
            context.load_cert_chain(self.own, self.key, password="")
        with _failures_named(str(self.trusted)):
            _refuse_pipes(self.trusted)
            context.load_verify_locations(self.trusted)
        return context


def _refuse_pipes(*files: Path) -> None:
    """Raise OSError for pipes and devices, on which OpenSSL would block."""
    for file in files:
        open_regular(file).close()


@contextmanager
def _failures_named(files: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        why = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror
        raise CertificateError(
            f"TLS cannot be set up with {files} ({why}); give PEM files that this user may read, "
            "with the certificate's own key, unencrypted"
        ) from error
