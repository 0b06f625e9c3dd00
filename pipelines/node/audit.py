"""Audit trail of a node as its parts use it: sessions, transfers, failed authentications."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...io.dicom_network.errors import CertificateError, NetworkError, RefusedError, TokenError
from ...io.dicom_network.requesting import Peer
from ...io.dicom_network.sent_objects import identity_of, patient_and_study_of
from ...io.dicom_network.web import WebPeer
from . import audit_messages as messages
from .audit_messages import Party, StudyFacts, Tree

SUFFIX = ".dcm"


class AuditTrail:
    """Trail that keeps nothing, and base of the one that does; all methods are thread-safe."""

    def record(self, message: Tree) -> None:
        """Record a message, without waiting and without an error."""

    @property
    def is_kept(self) -> bool:
        """Whether messages are kept, so that they need to be made."""
        return False

    def failed(self, title: str, peer: Peer | WebPeer, error: NetworkError) -> None:
        """Record that this program could not connect, if a certificate or token is the reason.

        title: of the route. peer: that it connected to.
        """
        if isinstance(error, CertificateError | TokenError):
            self.record(messages.not_authenticated([title], party_of(peer), str(error)))


def party_of(peer: Peer | WebPeer) -> Party:
    """Return a destination or source as messages name it."""
    return Party(peer.title, peer.host) if isinstance(peer, Peer) else Party("", peer.url)


def facts_of(
    folders: Iterable[Path], study: str = "", classes: Mapping[str, int] | None = None
) -> StudyFacts:
    """Return what messages state of the objects in folders, each with objects of one study.

    study: its UID, if it is known. classes: those of the objects, if not of all there.
    """
    files = sorted(file for folder in folders for file in folder.glob(f"*{SUFFIX}"))
    patient = ""
    for file in files:
        with suppress(RefusedError, OSError):
            patient, found = patient_and_study_of(file)
            study = study or found
            break
    return StudyFacts(study, patient, _classes_of(files) if classes is None else classes)


def result_facts_of(folders: Iterable[Path]) -> StudyFacts:
    """Return what messages state of a result, of which each folder has objects of one class."""
    classes = Counter[str]()
    for folder in folders:
        files = sorted(folder.glob(f"*{SUFFIX}"))
        for sop_class in _classes_of(files[:1]):
            classes[sop_class] += len(files)
    return facts_of(folders, classes=classes)


def _classes_of(files: Iterable[Path]) -> dict[str, int]:
    found = Counter[str]()
    for file in files:
        with suppress(RefusedError, OSError):
            found[identity_of(file)[0]] += 1
    return found


@dataclass
class _Study:
    """Objects of a study that a session brought.

    classes: number of the stored ones by SOP class. folder: of the study, if any is stored. is_new:
    whether any was not there before. refused: number of the others.
    """

    classes: Counter[str] = field(default_factory=Counter[str])
    folder: Path | None = None
    is_new: bool = False
    refused: int = 0


class AuditedSession:
    """Objects that one association, or one fetched study, brings. peer: their sender."""

    def __init__(self, trail: AuditTrail, route: str, peer: Party) -> None:
        self._trail, self._route, self._peer = trail, route, peer
        self._studies: dict[str, _Study] = {}

    def take(self, study: str, sop_class: str, folder: Path, *, is_new: bool) -> None:
        """Note an object that is stored. study: its UID. folder: of the study."""
        found = self._studies.setdefault(study, _Study())
        found.classes[sop_class] += 1
        found.folder = folder
        found.is_new |= is_new

    def refuse(self, study: str) -> None:
        """Note an object that is refused. study: its UID, or "" if that is not known."""
        self._studies.setdefault(study, _Study()).refused += 1

    def end(self, reason: str) -> None:
        """Record what was received. reason: why it broke off, or ""."""
        if not self._trail.is_kept:
            return
        for study, one in self._studies.items():
            folders = [one.folder] if one.folder else []
            facts = facts_of(folders, study, one.classes)
            if one.classes:
                self._record(facts, is_new=one.is_new)
            # One message for what succeeded, and one for what did not: section A.5.2.
            refused = f"objects refused: {one.refused}" if one.refused else ""
            if failure := "; ".join(filter(None, (reason, refused))):
                self._record(StudyFacts(study, facts.patient), is_new=True, failure=failure)

    def _record(self, facts: StudyFacts, *, is_new: bool, failure: str = "") -> None:
        self._trail.record(
            messages.transferred(
                self._route, self._peer, facts, is_sending=False, is_new=is_new, failure=failure
            )
        )
