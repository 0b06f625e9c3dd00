"""Listeners in this process, and clients that follow DICOM or do not."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynetdicom as _pynetdicom
from pydicom.uid import ExplicitVRLittleEndian
from pynetdicom import evt
from pynetdicom.pdu_primitives import A_ASSOCIATE
from pynetdicom.sop_class import MRImageStorage, Verification
from support.waiting import ENOUGH

from cuda_cyclegan.io.dicom.dataset import encoded
from cuda_cyclegan.io.dicom_network import commands
from cuda_cyclegan.io.dicom_network.commands import DimseStatus, Refusal
from cuda_cyclegan.io.dicom_network.limits import Limits
from cuda_cyclegan.io.dicom_network.listener import Listener
from cuda_cyclegan.io.dicom_network.negotiation import UNKNOWN_CALLED, UNKNOWN_CALLING, Rejection
from cuda_cyclegan.io.dicom_network.objects import ReceivedObject
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.io.dicom_network.storage_commitment import (
    Commitment,
    CommitmentReport,
    Referenced,
)

pynetdicom: Any = _pynetdicom
LIMITS = Limits(request_seconds=ENOUGH, pdu_seconds=ENOUGH, idle_seconds=ENOUGH)
"""No peer of a test is slow, however busy the machine is."""


@dataclass
class Store:
    """Store of what SENDER sends to NODE; a policy and the session of all associations."""

    folder: Path
    full: bool = False
    most: int = 1 << 30
    claimed: int = 0
    received: list[ReceivedObject] = field(default_factory=list[ReceivedObject])
    reports: list[str] = field(default_factory=list[str])
    refusals: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    ended: list[str] = field(default_factory=list[str])
    turned_away: list[str] = field(default_factory=list[str])
    takes_images: bool = True
    judged: list[CommitmentReport] = field(default_factory=list[CommitmentReport])
    over: threading.Condition = field(default_factory=threading.Condition)

    def session(self, called: str, calling: str, address: str) -> "Store | Rejection":
        assert address == "127.0.0.1"
        if called != "NODE":
            return UNKNOWN_CALLED
        return self if calling == "SENDER" else UNKNOWN_CALLING

    def place(self) -> Path | Refusal:
        if self.full:
            return Refusal(DimseStatus.OUT_OF_RESOURCES, "no room")
        return self.folder / f"{len(self.received)}-{threading.get_ident()}.part"

    def claim(self, size: int) -> bool:
        fits = size <= 0 or self.claimed + size <= self.most
        self.claimed += size if fits else 0
        return fits

    def take(self, received: ReceivedObject) -> None:
        name = received.offer.instance.replace("/", "_")[:100]
        received.path.rename(self.folder / f"{name}.dcm")
        self.received.append(received)

    def refused(self, instance: str, study: str, reason: str) -> None:
        self.refusals.append((instance, study, reason))

    def commit(self, asked: Commitment) -> Sequence[Referenced] | Refusal:
        held = {received.offer.instance for received in self.received}
        return [one for one in asked.referenced if one.instance in held]

    def reported(self, transaction: str) -> None:
        self.reports.append(transaction)

    def judge(self, report: CommitmentReport) -> Refusal | None:
        self.judged.append(report)
        return None

    def end(self, reason: str) -> None:
        with self.over:
            self.ended.append(reason)
            self.over.notify_all()

    def note_turned_away(self, _address: str, reason: str, _titles: str) -> None:
        with self.over:
            self.turned_away.append(reason)
            self.over.notify_all()

    def wait_for_ends(self, count: int) -> None:
        """Wait until so many associations are over."""
        with self.over:
            assert self.over.wait_for(lambda: len(self.ended) >= count, ENOUGH)

    def wait_until_turned_away(self, count: int) -> None:
        with self.over:
            assert self.over.wait_for(lambda: len(self.turned_away) >= count, ENOUGH)

    @property
    def leftovers(self) -> list[Path]:
        """Files of objects that did not become whole."""
        return list(self.folder.glob("*.part"))


@contextmanager
def listening(
    folder: Path, limits: Limits = LIMITS, tls: ssl.SSLContext | None = None
) -> Generator[tuple[Store, int]]:
    """A listener's store, and its port."""
    store = Store(folder)
    folder.mkdir(exist_ok=True)
    with Listener("127.0.0.1", 0, store, limits, store.note_turned_away, tls) as listener:
        yield store, listener.port


@contextmanager
def archive(
    *syntaxes: str,
    status: int | Callable[[Any], int] = 0,
    sop_class: str = MRImageStorage,
    port: int = 0,
    calling: str = "NODE",
    aborts: Callable[[Any], bool] = lambda _: False,
    more: Sequence[str] = (),
) -> Generator[tuple[Peer, list[Any]]]:
    """A storage SCP by pynetdicom that only `calling` may call, and the data sets that it got.

    status: that it answers, or what it makes of a data set. sop_class: that it takes. aborts: at
    which data sets it breaks the association off. more: further classes that it takes.
    """
    held: list[Any] = []

    def store(event: Any) -> int:
        if aborts(event.dataset):
            event.assoc.abort()
            return 0xC000
        held.append(event.dataset)
        return status(event.dataset) if callable(status) else status

    entity = pynetdicom.AE("PACS")
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = ENOUGH
    entity.require_calling_aet = [calling]
    entity.require_called_aet = True
    for one in (sop_class, *more):
        entity.add_supported_context(one, list(syntaxes or (ExplicitVRLittleEndian,)))
    entity.add_supported_context(Verification)
    server = entity.start_server(
        ("127.0.0.1", port), block=False, evt_handlers=[(evt.EVT_C_STORE, store)]
    )
    try:
        yield Peer("PACS", "127.0.0.1", server.server_address[1]), held
    finally:
        server.shutdown()


def associate(
    port: int,
    *classes: str,
    called: str = "NODE",
    calling: str = "SENDER",
    syntaxes: Sequence[str] = (),
    **how: Any,
) -> Any:
    """An association by pynetdicom, made or not.

    syntaxes: that it offers, if not the plain ones. how: further arguments of `AE.associate`.
    """
    entity = pynetdicom.AE(calling)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = ENOUGH
    for sop_class in classes or (MRImageStorage, Verification):
        entity.add_requested_context(sop_class, list(syntaxes) or None)
    association = entity.associate("127.0.0.1", port, ae_title=called, **how)
    answer = None if association.is_established else association.dul.peek_next_pdu()
    if isinstance(answer, A_ASSOCIATE) and answer.result:
        # A rejection that came, with the end of its connection, before its thread saw that one.
        association.is_rejected, association.is_aborted = True, False
    return keeping_answers(association)


def keeping_answers(association: Any) -> Any:
    """Return an association whose thread leaves answers to the method that waits for them.

    The thread is there for the peer's requests, and would at times take answers as well.
    """
    messages = association.dimse
    take = messages.get_msg

    def take_if_meant(block: bool = False) -> Any:
        found = messages.peek_msg()[1]
        is_request = found and getattr(found, "MessageIDBeingRespondedTo", None) is None
        return take(block) if block or is_request else (None, None)

    messages.get_msg = take_if_meant
    return association


@contextmanager
def raw(port: int) -> Generator[socket.socket]:
    """A connection on which anything may be sent."""
    with socket.create_connection(("127.0.0.1", port), ENOUGH) as link:
        yield link


def closed_by_peer(link: socket.socket) -> bytes:
    """Return what comes until the peer closes."""
    found = b""
    try:
        while piece := link.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def pdu(kind: int, body: bytes, length: int | None = None) -> bytes:
    """length: the stated one, if it is wrong."""
    return struct.pack(">BxL", kind, len(body) if length is None else length) + body


def offered(dataset: Any, share: float = 1.0) -> bytes:
    """The PDUs that offer an object in the first context after `associate_request`.

    share: of its data set; of less than the whole the last piece is missing.
    """
    command = commands.encoded(
        {
            commands.SOP_CLASS: dataset.SOPClassUID,
            commands.FIELD: commands.Field.STORE,
            commands.MESSAGE: 1,
            commands.PRIORITY: 0,
            commands.DATA_SET: commands.WITH_DATA_SET,
            commands.INSTANCE: dataset.SOPInstanceUID,
        }
    )
    content = encoded(dataset, is_implicit=False)
    pieces = (3, command), (2 * (share == 1.0), content[: int(len(content) * share)])
    items = (struct.pack(">LBB", len(data) + 2, 1, control) + data for control, data in pieces)
    return b"".join(pdu(4, item) for item in items)


def associated(link: socket.socket) -> None:
    """Ask for an association, which is accepted."""
    link.sendall(associate_request())
    assert whole_pdu(link)[0] == 2


def whole_pdu(link: socket.socket) -> bytes:
    """The next PDU that comes."""
    found = b""
    while len(found) < 6 or len(found) < 6 + struct.unpack(">L", found[2:6])[0]:
        piece = link.recv(1 if len(found) >= 6 else 6 - len(found))
        assert piece
        found += piece
    return found


def associate_request(called: str = "NODE", calling: str = "SENDER") -> bytes:
    """A request as this program makes it."""
    from cuda_cyclegan.io.dicom_network.negotiation import association_request

    return association_request(calling, called, (MRImageStorage, Verification), 16384)
