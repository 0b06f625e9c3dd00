"""Source of studies over DICOMweb: each object is one request."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...io.dicom_network.commands import Refusal
from ...io.dicom_network.errors import ProtocolError, RefusedError
from ...io.dicom_network.negotiation import IMAGES
from ...io.dicom_network.objects import (
    ListedObject,
    NotUnderstoodError,
    ObjectFile,
    is_whole_image,
)
from ...io.dicom_network.web import ArrivingObject, WebLink
from .reception import RouteSession


class WebSource:
    """Connected source, a `SourceLink`."""

    def __init__(self, link: WebLink) -> None:
        self._link = link

    def studies(self, filters: Mapping[str, str]) -> list[str]:
        """Return the UIDs of the studies that match. filters: QIDO-RS keys and values."""
        return self._link.studies(filters)

    def objects(self, study: str) -> list[ListedObject]:
        """Return the objects of a study."""
        return self._link.instances(study)

    def parts(self, lacking: Iterable[ListedObject]) -> Iterator[Sequence[ListedObject]]:
        """Yield each object alone."""
        for one in lacking:
            yield (one,)

    def fetch(self, session: RouteSession, part: Sequence[ListedObject]) -> bool:
        """Fetch one object; return whether there was space. Raises NetworkError or OSError.

        A refusal is noted in the session, and ends the requests for the object.
        """
        [asked] = part
        place = session.place()
        if isinstance(place, Refusal):
            session.refused(asked.instance, asked.study, place.reason)
            return False
        try:
            with self._link.fetching(asked) as arriving:
                _store(session, place, asked, arriving)
        except NotUnderstoodError as error:
            session.refused(asked.instance, asked.study, error.refusal.reason)
        except (RefusedError, ProtocolError) as error:
            session.refused(asked.instance, asked.study, str(error))
        return True


def _store(
    session: RouteSession, part: Path, asked: ListedObject, arriving: ArrivingObject
) -> None:
    """Store an object. Raises NotUnderstoodError, NetworkError or OSError."""
    file = ObjectFile(part, arriving.offer, session.claim)
    try:
        for piece in arriving.pieces:
            file.write(memoryview(piece))
        received = file.finish()
        if received.study != asked.study:
            raise RefusedError("its StudyInstanceUID differs from that of the request")
        if arriving.offer.sop_class in IMAGES and not is_whole_image(part):
            raise RefusedError("its pixels are not complete")
        session.take(received)
    finally:
        file.discard()
