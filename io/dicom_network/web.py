"""DICOMweb: objects sent by STOW-RS, and found and fetched by QIDO-RS and WADO-RS.

dicomweb-client speaks HTTP. Its messages, which quote URLs with identifiers, are discarded.
"""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dicom.dataset import PARSING_ERRORS, encoded, pydicom
from ..files.regular import open_regular, read_regular
from .errors import CertificateError, ConnectionLostError, NetworkError, ProtocolError, RefusedError
from .objects import Offer
from .sending import ANSWER_SECONDS, CONNECT_SECONDS
from .tls import Certificates

_OF_OBJECT = (400, 409, 415, 422)
"""HTTP statuses by which a server refuses one object."""
_STUDY, _SERIES, _INSTANCE = "0020000D", "0020000E", "00080018"
_BIG_ENDIAN = "1.2.840.10008.1.2.2"


@dataclass(frozen=True, slots=True)
class WebPeer:
    """DICOMweb server. url: its root. token: file with a bearer token, or None."""

    url: str
    token: Path | None = None

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class WebInstance:
    """Object that a server lists. study, series, instance: its UIDs."""

    study: str
    series: str
    instance: str


class WebLink:
    """Connection to a DICOMweb server, from `web_link`; its methods raise NetworkError."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def echo(self) -> None:
        """Request any one study."""
        with _failures("QIDO-RS"):
            self._client.search_for_studies(limit=1)

    def store(self, file: Path) -> None:
        """Send one object, which the server has when this returns. Raises RefusedError for it."""
        with _failures("STOW-RS"), open_regular(file) as opened:
            answer = self._client.store_instances([pydicom.dcmread(opened)])
            failed = getattr(answer, "FailedSOPSequence", None)
        if failed:
            reason = int(getattr(failed[0], "FailureReason", 0) or 0)
            raise RefusedError(f"it answers STOW-RS with failure {reason:04X}")

    def studies(self, filters: Mapping[str, str]) -> list[str]:
        """Return the UIDs of the studies that match. filters: QIDO-RS keys and values."""
        with _failures("QIDO-RS"):
            found = self._client.search_for_studies(search_filters=dict(filters))
            return [_value(each, _STUDY) for each in found]

    def instances(self, study: str) -> list[WebInstance]:
        """Return the objects of a study."""
        with _failures("QIDO-RS"):
            found = self._client.search_for_instances(study)
            return [
                WebInstance(study, _value(each, _SERIES), _value(each, _INSTANCE)) for each in found
            ]

    def pixels(self, asked: WebInstance) -> bytes:
        """Return the bytes of an object's pixels."""
        with _failures("WADO-RS"):
            return self._retrieved(asked).PixelData

    def _retrieved(self, asked: WebInstance) -> Any:
        return self._client.retrieve_instance(
            asked.study, asked.series, asked.instance, media_types=(("application/dicom", "*"),)
        )

    def fetch(self, asked: WebInstance) -> tuple[Offer, bytes]:
        """Return an object in the syntax in which the server keeps it, without its file meta."""
        with _failures("WADO-RS"):
            image = self._retrieved(asked)
            syntax = str(image.file_meta.TransferSyntaxUID)
            if syntax == _BIG_ENDIAN:
                raise RefusedError("an object is in big endian")
            offer = Offer(str(image.SOPClassUID), str(image.SOPInstanceUID), syntax)
            return offer, encoded(
                image, is_implicit=image.file_meta.TransferSyntaxUID.is_implicit_VR
            )


@contextmanager
def web_link(peer: WebPeer, certificates: Certificates | None) -> Generator[WebLink]:
    """Connect to a server for the block. certificates: for HTTPS; without, the system's.

    Raises NetworkError.
    """
    import requests
    from dicomweb_client import DICOMwebClient

    for name in ("dicomweb_client", "urllib3", "requests"):
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())
    with requests.Session() as session:
        session.trust_env = False  # neither ~/.netrc nor a proxy of the environment
        if certificates:
            session.verify = str(certificates.trusted)
            session.cert = (str(certificates.own), str(certificates.key))
        client = DICOMwebClient(
            peer.url,
            session=session,
            headers=_authorization(peer),
            timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
        )
        client.set_http_retry_params(retry=False)
        yield WebLink(client)


def _authorization(peer: WebPeer) -> dict[str, str]:
    if peer.token is None:
        return {}
    try:
        token = read_regular(peer.token).decode("ascii").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CertificateError(f"the token file {peer.token} cannot be used ({why})") from error
    return {"Authorization": f"Bearer {token}"}


def _value(found: Mapping[str, Any], tag: str) -> str:
    return str(found[tag]["Value"][0])


@contextmanager
def _failures(service: str) -> Generator[None]:
    """Raise errors of HTTP as NetworkError, without anything that a server says."""
    from requests import exceptions

    try:
        yield
    except exceptions.HTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        kind = RefusedError if service == "STOW-RS" and status in _OF_OBJECT else NetworkError
        raise kind(f"it answers {service} with HTTP status {status}") from error
    except exceptions.SSLError as error:
        raise CertificateError(
            "its certificate is not trusted, or it does not trust this node's"
        ) from error
    except exceptions.Timeout as error:
        raise ConnectionLostError(f"it does not answer {service} in time") from error
    except exceptions.RequestException as error:
        raise ConnectionLostError("nothing answers there") from error
    except OSError as error:  # of the certificates' files
        raise CertificateError(f"a file for TLS cannot be used ({error.strerror})") from error
    except (KeyError, IndexError, TypeError, AttributeError, *PARSING_ERRORS) as error:
        raise ProtocolError(f"its answer to {service} is not DICOMweb") from error
