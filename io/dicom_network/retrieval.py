"""Series fetched from a peer by C-GET, for tests of destinations."""

import ssl
from typing import Any

from ..dicom.dataset import pydicom
from .errors import NetworkError, ProtocolError, RefusedError
from .negotiation import pynetdicom
from .requesting import CONNECT_SECONDS, Peer

GET = "1.2.840.10008.5.1.4.1.2.2.3"
"""SOP class of C-GET with a study as its root."""
_PENDING = (0xFF00, 0xFF01)


def retrieve_series(
    peer: Peer, calling: str, tls: ssl.SSLContext | None, study: str, series: str
) -> dict[str, bytes]:
    """Return the pixel bytes of an MR series, uncompressed, by SOP instance UID.

    calling: our AE title. Raises NetworkError.
    """
    storage = pydicom.uid.MRImageStorage
    found: dict[str, bytes] = {}

    def take(event: Any) -> int:
        found[str(event.dataset.SOPInstanceUID)] = event.dataset.PixelData
        return 0

    entity = pynetdicom.AE(ae_title=calling)
    entity.connection_timeout = entity.acse_timeout = CONNECT_SECONDS
    entity.add_requested_context(GET)
    entity.add_requested_context(storage)
    association = entity.associate(
        peer.host,
        peer.port,
        ae_title=peer.title,
        ext_neg=[pynetdicom.build_role(storage, scp_role=True)],
        evt_handlers=[(pynetdicom.evt.EVT_C_STORE, take)],
        tls_args=(tls, peer.host) if tls else None,
    )
    if not association.is_established:
        raise NetworkError("it accepts no association for C-GET")
    try:
        asked = pydicom.Dataset()
        asked.QueryRetrieveLevel = "SERIES"
        asked.StudyInstanceUID, asked.SeriesInstanceUID = study, series
        for answer, _ in association.send_c_get(asked, GET):
            status = getattr(answer, "Status", None)
            if status is None:
                raise ProtocolError("it does not answer C-GET")
            if status and status not in _PENDING:
                raise RefusedError(f"it answers C-GET with status {status:04X}")
    except ValueError as error:
        raise RefusedError("it does not offer C-GET") from error
    finally:
        association.release()
    return found
