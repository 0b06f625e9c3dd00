"""Errors of associations, with messages that contain no patient data.

NetworkError
├── ConnectionLostError   the peer closed, was silent too long, or cannot be reached
├── CertificateError      TLS files are missing or invalid
├── ProtocolError         it sent what DICOM does not allow, or more than it may
└── RefusedError          it refuses the association, or everything that it was offered
"""


class NetworkError(Exception):
    """An association cannot continue."""


class ConnectionLostError(NetworkError):
    """The peer cannot be reached, or has gone."""


class CertificateError(NetworkError):
    """No association over TLS is possible with the configured files."""


class ProtocolError(NetworkError):
    """Received bytes are not DICOM, or exceed a limit."""


class RefusedError(NetworkError):
    """Refusal of an association by the peer."""
