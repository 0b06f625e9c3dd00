"""Errors of associations, with messages that contain no patient data.

NetworkError
├── ConnectionLostError   the peer closed, was silent too long, or cannot be reached
├── CertificateError      TLS files are missing or invalid, or a certificate is not trusted
├── TokenError            no access token can be had for a DICOMweb server, or it accepts none
├── ProtocolError         it sent what DICOM does not allow, or more than it may
├── RefusedError          it refuses the association, an object, or everything that it was offered
└── UnconfirmedError      it answered, but did not name the object as stored
"""


class NetworkError(Exception):
    """An association cannot continue."""


class ConnectionLostError(NetworkError):
    """The peer cannot be reached, or has gone."""


class CertificateError(NetworkError):
    """No connection over TLS is possible with the configured files."""


class TokenError(NetworkError):
    """No access token that a DICOMweb server accepts, whatever is sent there."""


class ProtocolError(NetworkError):
    """Received bytes are not DICOM, or exceed a limit."""


class RefusedError(NetworkError):
    """Refusal of an association, or of one object, by the peer."""


class UnconfirmedError(NetworkError):
    """No evidence that the peer has an object, nor that it lacks it."""
