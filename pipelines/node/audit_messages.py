"""Messages of the audit trail: PS3.15, section A.5. Only patients' IDs name them.

A message is a tree as the schema of A.5.1 has it, in its order: texts are attributes, and trees or
lists of them elements, whose own text is TEXT. It fits in the length that each receiver supports.
"""

import base64
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit
from xml.etree import ElementTree

Tree: TypeAlias = "dict[str, str | Tree | list[Tree]]"
TEXT = "text"
SUCCESS, MINOR, SERIOUS = "0", "4", "8"
"""Values of EventOutcomeIndicator."""
STOP = "110121"
"""Code of the type of a message that this application stops."""
_LONGEST_TEXT = 400
"""Characters of a text; a longer one is cut. At most seven of a message are not from here."""
_LONGEST_UID = 64
_MOST_CLASSES = 20
"""SOP classes that a message lists, the most frequent ones; this program takes half as many."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ADDRESS = re.compile(r"[0-9.]+|[0-9A-Fa-f:.%]*:[0-9A-Fa-f:.%]*")


@dataclass(frozen=True, slots=True)
class Party:
    """Process that takes part in a transfer.

    name: AE title, or "" for a server without one. place: address, host or URL; "" if unknown.
    """

    name: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """Study that a message is about.

    study: its UID. patient: PatientID. classes: number of objects by SOP class.
    """

    study: str
    patient: str
    classes: Mapping[str, int] = field(default_factory=dict[str, int])


def activity(titles: Iterable[str], *, starts: bool) -> Tree:
    """Return that this application starts or stops: A.5.3.1. titles: its AE titles."""
    kind = ("110120", "Application Start") if starts else (STOP, "Application Stop")
    process = _process(titles, _code("110150", "Application"), is_requestor=False)
    return _message(_event("110100", "Application Activity", "E", kinds=[_code(*kind)]), [process])


def begin_transfer(route: str, to: Party, facts: StudyFacts) -> Tree:
    """Return that objects of a study are about to be sent: A.5.3.3."""
    event = _event("110102", "Begin Transferring DICOM Instances", "E")
    return _message(event, _parties(route, to, is_sending=True), _objects(facts))


def transferred(
    route: str,
    peer: Party,
    facts: StudyFacts,
    *,
    is_sending: bool,
    is_new: bool = True,
    failure: str = "",
) -> Tree:
    """Return that objects of a study were sent or received: A.5.3.7.

    is_new: whether this program, as the receiver, lacked any of them. failure: why they were not,
    or "".
    """
    outcome = (SERIOUS if is_sending else MINOR) if failure else SUCCESS
    action = "C" if is_new and not is_sending else "R"  # what a destination had is not known
    event = _event("110104", "DICOM Instances Transferred", action, outcome, failure)
    return _message(event, _parties(route, peer, is_sending=is_sending), _objects(facts))


def deleted(route: str, facts: StudyFacts) -> Tree:
    """Return that a study was removed here: A.5.3.8."""
    event = _event("110105", "DICOM Study Deleted", "D")
    process = _process([route], _code("110150", "Application"), is_requestor=True)
    return _message(event, [process], _objects(facts))


def not_authenticated(titles: Iterable[str], peer: Party, reason: str, count: int = 1) -> Tree:
    """Return that a peer, or this program at a peer, was rejected: A.5.3.11, Node Authentication.

    count: how often, for this reason.
    """
    kind = _code("110126", "Node Authentication")
    times = f"{reason}; {count} times" if count > 1 else reason
    subject: Tree = {
        "ParticipantObjectIDTypeCode": _code("110182", "Node ID"),
        "ParticipantObjectName": {TEXT: ""},
        "ParticipantObjectDetail": {"type": "Alert Description", "value": _base64(times)},
        "ParticipantObjectID": peer.place or "unknown",
        "ParticipantObjectTypeCode": "2",
    }
    other: Tree = {"UserID": peer.name or peer.place or "unknown", "UserIsRequestor": "false"}
    return _alert(titles, kind, MINOR, times, [other | _access(peer.place)], [subject])


def gap(titles: Iterable[str], reason: str) -> Tree:
    """Return that messages are missing before this one: A.5.3.11, with an own type."""
    kind = _code("AUDITGAP", "Audit messages are missing", "99CUDACYCLEGAN")
    return _alert(titles, kind, SERIOUS, reason)


def _alert(
    titles: Iterable[str],
    kind: Tree,
    outcome: str,
    reason: str,
    others: Iterable[Tree] = (),
    objects: Iterable[Tree] = (),
) -> Tree:
    event = _event("110113", "Security Alert", "E", outcome, reason, [kind])
    process = _process(titles, _code("110150", "Application"), is_requestor=False)
    return _message(event, [process, *others], objects)


def document_of(message: Tree) -> str:
    """Return the XML of a message. Raises TypeError or ValueError if it is none."""
    root = ElementTree.Element("AuditMessage")
    _fill(root, {name: value for name, value in message.items() if isinstance(value, dict | list)})
    return ElementTree.tostring(root, "unicode")


def _fill(element: ElementTree.Element, tree: Tree) -> None:
    for name, value in tree.items():
        if isinstance(value, str):
            if name == TEXT:
                element.text = _NOT_XML.sub("?", value)
            else:
                element.set(name, _NOT_XML.sub("?", value))
        else:
            for one in value if isinstance(value, list) else [value]:
                _fill(ElementTree.SubElement(element, name), one)


def _message(event: Tree, participants: list[Tree], objects: Iterable[Tree] = ()) -> Tree:
    source: Tree = {"AuditSourceID": "cuda-cyclegan", "AuditSourceTypeCode": {"csd-code": "4"}}
    message: Tree = {
        "EventIdentification": event,
        "ActiveParticipant": list(participants),
        "AuditSourceIdentification": source,
        "ParticipantObjectIdentification": list(objects),
    }
    return _cut(message)


def _cut(tree: Tree) -> Tree:
    """Return a copy whose texts are not longer than _LONGEST_TEXT, those in base64 aside."""
    found: Tree = {}
    for name, value in tree.items():
        if isinstance(value, str):
            found[name] = value if name == "value" else value[:_LONGEST_TEXT]
        elif isinstance(value, list):
            found[name] = [_cut(one) for one in value]
        else:
            found[name] = _cut(value)
    return found


def _event(
    code: str,
    meaning: str,
    action: str,
    outcome: str = SUCCESS,
    failure: str = "",
    kinds: Iterable[Tree] = (),
) -> Tree:
    """Return an event without its time, which is added when it is recorded."""
    found: Tree = {
        "EventID": _code(code, meaning),
        "EventTypeCode": list(kinds),
        "EventActionCode": action,
        "EventDateTime": "",
        "EventOutcomeIndicator": outcome,
    }
    if failure:
        found["EventOutcomeDescription"] = {TEXT: failure}
    return found


def _code(code: str, meaning: str, system: str = "DCM") -> Tree:
    return {"csd-code": code, "codeSystemName": system, "originalText": meaning}


def _process(titles: Iterable[str], role: Tree, *, is_requestor: bool) -> Tree:
    """Return this process: A.5.2.1 and A.5.2.2."""
    return {
        "RoleIDCode": role,
        "UserID": str(os.getpid()),
        "AlternativeUserID": f"AETITLES={';'.join(titles)}",
        "UserIsRequestor": str(is_requestor).lower(),
    }


def _parties(route: str, peer: Party, *, is_sending: bool) -> list[Tree]:
    """Return the sender of objects and then their receiver."""
    source, target = _code("110153", "Source Role ID"), _code("110152", "Destination Role ID")
    own = _process([route], source if is_sending else target, is_requestor=is_sending)
    other: Tree = {
        "RoleIDCode": target if is_sending else source,
        "UserID": peer.name or peer.place or "unknown",
        "UserIsRequestor": str(not is_sending).lower(),
    }
    other |= _access(peer.place)
    return [own, other] if is_sending else [other, own]


def _access(place: str) -> Tree:
    """Return the network access point of a process."""
    if not place:
        return {}
    kind = "2" if _ADDRESS.fullmatch(place) else "5" if urlsplit(place).scheme else "1"
    return {"NetworkAccessPointID": place, "NetworkAccessPointTypeCode": kind}


def _objects(facts: StudyFacts) -> list[Tree]:
    """Return a study and its patient, whose name the schema asks for, and who has none here."""
    classes: list[Tree] = [
        {"UID": uid[:_LONGEST_UID], "NumberOfInstances": str(count)}
        for uid, count in Counter(facts.classes).most_common(_MOST_CLASSES)
    ]
    study: Tree = {
        "ParticipantObjectIDTypeCode": _code("110180", "Study Instance UID"),
        "ParticipantObjectName": {TEXT: ""},
        "ParticipantObjectDescription": {"SOPClass": classes},
        "ParticipantObjectID": facts.study or "unknown",
        "ParticipantObjectTypeCode": "2",
        "ParticipantObjectTypeCodeRole": "3",
    }
    patient: Tree = {
        "ParticipantObjectIDTypeCode": _code("2", "Patient Number", "RFC-3881"),
        "ParticipantObjectName": {TEXT: ""},
        "ParticipantObjectID": facts.patient or "unknown",
        "ParticipantObjectTypeCode": "1",
        "ParticipantObjectTypeCodeRole": "1",
    }
    return [study, patient]


def _base64(text: str) -> str:
    return base64.b64encode(text[:_LONGEST_TEXT].encode("utf-8", "replace")).decode()
