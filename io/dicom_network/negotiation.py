"""Requests for associations and the answers to them, by pynetdicom's reader and writer of PDUs.

Accepted are the objects and encodings that this program's reader can use.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pydicom.uid as uids
import pynetdicom as _pynetdicom
from pynetdicom import pdu as _pdu
from pynetdicom import pdu_primitives as _primitives
from pynetdicom import presentation as _presentation

from ..dicom.object_types import SCANS
from .errors import ProtocolError, RefusedError

VERIFICATION = "1.2.840.10008.1.1"
COMMITMENT = "1.2.840.10008.1.20.1"
COMMITMENT_INSTANCE = "1.2.840.10008.1.20.1.1"

IMAGES: tuple[str, ...] = (*SCANS, uids.SecondaryCaptureImageStorage)
"""Classes of the objects of scans and derived series."""
REJECTION_NOTE: str = uids.KeyObjectSelectionDocumentStorage
"""Class of rejection notes on results, which have no pixels."""

PLAIN: tuple[str, ...] = (uids.ExplicitVRLittleEndian, uids.ImplicitVRLittleEndian)

SYNTAXES: tuple[str, ...] = (
    *PLAIN,
    uids.JPEGLSLossless,
    uids.JPEGLosslessSV1,
    uids.JPEGLossless,
    uids.JPEG2000Lossless,
    uids.HTJ2KLossless,
    uids.HTJ2KLosslessRPCL,
    uids.RLELossless,
    uids.JPEGLSNearLossless,
    uids.JPEGExtended12Bit,
    uids.JPEGBaseline8Bit,
    uids.JPEG2000,
    uids.HTJ2K,
    uids.ExplicitVRBigEndian,
)
"""Encodings by preference: the first of these that a peer offers for an object is used, so a lossy
one only if it offers no other.
"""


pynetdicom: Any = _pynetdicom  # typed only in part
pdu: Any = _pdu
primitives: Any = _primitives
presentation: Any = _presentation

# Its log messages quote data from unknown peers.
logging.getLogger("pynetdicom").addHandler(logging.NullHandler())
logging.getLogger("pynetdicom").propagate = False

APPLICATION_CONTEXT = "1.2.840.10008.3.1.1.1"
IMPLEMENTATION_UID = "2.25.283120613947103456789134986341207"
IMPLEMENTATION_NAME = "CUDA_CYCLEGAN"


@dataclass(frozen=True, slots=True)
class PresentationContext:
    """An agreed way to exchange objects. number: odd, of the association. sop_class: theirs.

    syntax: UID of their encoding.
    """

    number: int
    sop_class: str
    syntax: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rejection of an association.

    result, source, diagnostic: as PS3.8 section 9.3.4 has them. reason: in words. titles: those in
    the request, if they are the reason.
    """

    result: int
    source: int
    diagnostic: int
    reason: str
    titles: str = ""


UNKNOWN_CALLED = Rejection(1, 1, 7, "the called AE title matches no route")
UNKNOWN_CALLING = Rejection(1, 1, 3, "the route does not allow the calling AE title or its address")
TOO_MANY = Rejection(2, 3, 2, "the maximum number of associations is reached")


class AssociationRequest:
    """A peer's request. called, calling: AE titles. longest: bytes of a PDU that it accepts."""

    def __init__(self, body: bytes) -> None:
        """body: of the PDU. Raises ProtocolError."""
        try:
            request = pdu.A_ASSOCIATE_RQ()
            request.decode(b"\x01\0" + len(body).to_bytes(4, "big") + body)
            self._asked = request.to_primitive()
            self.called = str(self._asked.called_ae_title).strip()
            self.calling = str(self._asked.calling_ae_title).strip()
            self.longest = _longest(self._asked)
            self._offered = list(self._asked.presentation_context_definition_list)
        except Exception:  # it quotes received data
            raise ProtocolError("its association request is malformed") from None
        self._results: Any = []
        self._roles: list[Any] = []

    def agreed(self, *, images: bool = True) -> Mapping[int, PresentationContext]:
        """Return the contexts that this program can use, by number. images: whether the peer may
        send them.
        """
        usable = [one for one in supported() if images or one.abstract_syntax not in IMAGES]
        roles = {
            item.sop_class_uid: (item.scu_role, item.scp_role)
            for item in self._asked.user_information
            if isinstance(item, primitives.SCP_SCU_RoleSelectionNegotiation)
        }
        self._results, self._roles = presentation.negotiate_as_acceptor(
            self._offered, usable, roles
        )
        return {
            each.context_id: PresentationContext(
                each.context_id, str(each.abstract_syntax), str(each.transfer_syntax[0])
            )
            for each in self._results
            if each.result == 0
        }

    def acceptance(self, longest: int) -> bytes:
        """Return the PDU that answers, after `agreed`; longest: bytes of a PDU that this program
        accepts.
        """
        answer = primitives.A_ASSOCIATE()
        answer.application_context_name = APPLICATION_CONTEXT
        answer.calling_ae_title = self._asked.calling_ae_title
        answer.called_ae_title = self._asked.called_ae_title
        answer.result, answer.result_source = 0, 1
        answer.presentation_context_definition_results_list = self._results
        answer.user_information = [*_about_us(longest), *self._roles]
        return _encoded(pdu.A_ASSOCIATE_AC(answer))


def rejection(why: Rejection) -> bytes:
    """Return the PDU that rejects an association."""
    return bytes([3, 0, 0, 0, 0, 4, 0, why.result, why.source, why.diagnostic])


def abortion(source: int = 2) -> bytes:
    """Return the PDU that aborts an association. source: 0 the user of the service, 2 itself."""
    return bytes([7, 0, 0, 0, 0, 4, 0, 0, source, 0])


def association_request(
    calling: str, called: str, classes: Iterable[str], longest: int, *, as_provider: bool = False
) -> bytes:
    """Return the PDU that requests an association.

    as_provider: whether this program provides the service of these classes and the peer uses it.
    """
    request = primitives.A_ASSOCIATE()
    request.application_context_name = APPLICATION_CONTEXT
    request.calling_ae_title, request.called_ae_title = calling, called
    request.calling_presentation_address = request.called_presentation_address = None
    offered = tuple(classes)
    request.presentation_context_definition_list = [
        _context(sop_class, PLAIN, 2 * at + 1) for at, sop_class in enumerate(offered)
    ]
    roles = [_provider_of(sop_class) for sop_class in offered] if as_provider else []
    request.user_information = [*_about_us(longest), *roles]
    return _encoded(pdu.A_ASSOCIATE_RQ(request))


def accepted(body: bytes, asked: bytes) -> tuple[Mapping[str, PresentationContext], int]:
    """Return the contexts by SOP class, and the longest PDU, that the peer's answer grants.

    asked: the request PDU. Raises ProtocolError.
    """
    try:
        answer = pdu.A_ASSOCIATE_AC()
        answer.decode(b"\x02\0" + len(body).to_bytes(4, "big") + body)
        granted = answer.to_primitive()
        offered = pdu.A_ASSOCIATE_RQ()
        offered.decode(asked)
        classes = {
            each.context_id: str(each.abstract_syntax)
            for each in offered.to_primitive().presentation_context_definition_list
        }
        found = {
            classes[each.context_id]: PresentationContext(
                each.context_id, classes[each.context_id], str(each.transfer_syntax[0])
            )
            for each in granted.presentation_context_definition_results_list
            if each.result == 0
        }
        return found, _longest(granted)
    except Exception:
        raise ProtocolError("its answer to the association request is malformed") from None


_REJECTED = {
    (1, 3): "it does not recognise the calling AE title",
    (1, 7): "it does not recognise the called AE title",
    (3, 1): "it is busy",
    (3, 2): "it has reached its limit of associations",
}


def rejected(body: bytes) -> RefusedError:
    """Return the error for a peer's refusal."""
    source, diagnostic = (body[2], body[3]) if len(body) == 4 else (0, 0)
    reason = _REJECTED.get((source, diagnostic), "it gave no reason")
    return RefusedError(f"it rejected the association: {reason}")


def supported() -> list[Any]:
    commitment = _context(COMMITMENT, PLAIN)
    commitment.scu_role = commitment.scp_role = True  # it asks for reports, and gives them
    return [
        *(_context(sop_class, SYNTAXES) for sop_class in IMAGES),
        _context(VERIFICATION, PLAIN),
        commitment,
    ]


def _context(sop_class: str, syntaxes: Iterable[str], number: int | None = None) -> Any:
    context = presentation.build_context(sop_class, list(syntaxes))
    context.context_id = number
    return context


def _about_us(longest: int) -> list[Any]:
    most = primitives.MaximumLengthNotification()
    most.maximum_length_received = longest
    uid = primitives.ImplementationClassUIDNotification()
    uid.implementation_class_uid = IMPLEMENTATION_UID
    name = primitives.ImplementationVersionNameNotification()
    name.implementation_version_name = IMPLEMENTATION_NAME
    return [most, uid, name]


def _provider_of(sop_class: str) -> Any:
    role = primitives.SCP_SCU_RoleSelectionNegotiation()
    role.sop_class_uid = sop_class
    role.scu_role, role.scp_role = False, True
    return role


def _longest(primitive: Any) -> int:
    """Return the longest PDU; 0 in a PDU means no limit."""
    found = [
        item.maximum_length_received
        for item in primitive.user_information
        if isinstance(item, primitives.MaximumLengthNotification)
    ]
    return int(found[0]) if found and found[0] else 1 << 20


def _encoded(message: Any) -> bytes:
    return bytes(message.encode())
