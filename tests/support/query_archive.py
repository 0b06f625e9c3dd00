"""An archive for C-FIND and C-MOVE in this process, with faults: pynetdicom's, named ARCHIVE."""

import ssl
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any
from unittest.mock import patch

import pydicom as _pydicom
import pynetdicom as _pynetdicom
from pynetdicom import evt
from pynetdicom.sop_class import (
    MRImageStorage,
    StudyRootQueryRetrieveInformationModelFind,
    StudyRootQueryRetrieveInformationModelMove,
    Verification,
)
from pynetdicom.transport import AssociationSocket
from support.dicom_network import keeping_answers
from support.waiting import ENOUGH

from cuda_cyclegan.io.dicom_network.connection import cut
from cuda_cyclegan.io.dicom_network.requesting import Peer

pydicom: Any = _pydicom
pynetdicom: Any = _pynetdicom
_UIDS = {
    "STUDY": "StudyInstanceUID",
    "SERIES": "SeriesInstanceUID",
    "IMAGE": "SOPInstanceUID",
}
FIND, MOVE = StudyRootQueryRetrieveInformationModelFind, StudyRootQueryRetrieveInformationModelMove


@dataclass
class QueryArchive:
    """Archive in memory.

    node: port to which it moves. ignored: keywords that it neither matches nor returns. lost: UIDs
    of objects that it lists, and never sends. finds, moves: called for each request and each
    sub-operation with the event; they may break off, or return a status to end with. rewrites:
    called for each answer to a search. asked: levels and numbers of UIDs of the requests to move.
    """

    node: int
    datasets: list[Any] = field(default_factory=list[Any])
    ignored: set[str] = field(default_factory=lambda: {"ModalitiesInStudy"})
    lost: set[str] = field(default_factory=set[str])
    finds: Callable[[Any], int | None] = lambda _: None
    moves: Callable[[Any, int], int | None] = lambda *_: None
    rewrites: Callable[[Any], object] = lambda _: None
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    port: int = 0

    @property
    def peer(self) -> Peer:
        return Peer("ARCHIVE", "127.0.0.1", self.port)

    def found(self, event: Any) -> Generator[tuple[int, Any]]:
        """Answer C-FIND."""
        asked = event.identifier
        level = _UIDS[asked.QueryRetrieveLevel]
        status = self.finds(event)
        if status:
            yield status, None
            return
        rows: dict[str, Any] = {str(one[level].value): one for one in self._matching(asked)}
        for one in rows.values():
            answer = pydicom.Dataset()
            answer.QueryRetrieveLevel = asked.QueryRetrieveLevel
            for element in asked:
                if element.keyword not in {*self.ignored, "QueryRetrieveLevel"}:
                    setattr(answer, element.keyword, one.get(element.keyword))
            self.rewrites(answer)
            yield 0xFF00, answer

    def moved(self, event: Any) -> Generator[Any]:
        """Answer C-MOVE."""
        asked = event.identifier
        level = asked.QueryRetrieveLevel
        uids = asked[_UIDS[level]].value
        self.asked.append(
            (level, len(uids) if level == "IMAGE" and not isinstance(uids, str) else 1)
        )
        found = list(self._matching(asked))
        yield ("127.0.0.1", self.node) if event.move_destination == "NODE" else (None, None)
        yield len(found)
        for at, one in enumerate(found):
            if status := self.moves(event, at):
                yield status, None
                return
            if one.SOPInstanceUID not in self.lost:
                yield 0xFF00, one

    def _matching(self, asked: Any) -> Iterable[Any]:
        for one in self.datasets:
            if all(
                _is_match(element, one)
                for element in asked
                if element.keyword not in {*self.ignored, "QueryRetrieveLevel"}
            ):
                yield one


def _is_match(asked: Any, one: Any) -> bool:
    if asked.value in (None, "") or asked.VR == "DA" or asked.keyword not in one:
        return True
    value = str(one[asked.keyword].value)
    if asked.VR == "UI":
        return value in ([asked.value] if isinstance(asked.value, str) else list(asked.value))
    return fnmatch(value, str(asked.value))


@contextmanager
def query_archive_in_process(
    node: int, datasets: Iterable[Any], tls: ssl.SSLContext | None = None
) -> Generator[QueryArchive]:
    """Run an archive that only NODE may call."""
    archive = QueryArchive(node, list(datasets))
    entity = pynetdicom.AE("ARCHIVE")
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = ENOUGH
    entity.require_calling_aet, entity.require_called_aet = ["NODE"], True
    for sop_class in (FIND, MOVE, Verification):
        entity.add_supported_context(sop_class)
    entity.add_requested_context(MRImageStorage)
    associate = entity.associate
    entity.associate = lambda *which, **how: keeping_answers(associate(*which, **how))
    handlers = [(evt.EVT_C_FIND, archive.found), (evt.EVT_C_MOVE, archive.moved)]
    with patch.object(AssociationSocket, "_shutdown_socket", _closed):
        server = entity.start_server(
            ("127.0.0.1", 0), block=False, evt_handlers=handlers, ssl_context=tls
        )
        try:
            archive.port = server.server_address[1]
            yield archive
        finally:
            server.shutdown()


def _closed(self: Any) -> None:
    """Close a socket, which pynetdicom leaves open if its peer has closed it before."""
    if self.socket:
        cut(self.socket)
