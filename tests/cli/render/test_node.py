"""Lines of a node's log and of `node --status`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_cyclegan.cli.render.node import line_of, status_json, status_lines
from cuda_cyclegan.pipelines.node import events
from cuda_cyclegan.pipelines.node.folder import NodeStatus
from cuda_cyclegan.pipelines.node.records import SeriesRecord, StudyRecord
from cuda_cyclegan.pipelines.timestamps import iso_time

REFUSALS = (("the disk of the node is full", 3), ("its header is damaged", 1))
UNTIL = 1795713205.3
SERIES = "T1TOT2/20261122-1/1/series-0001"
TOLD = {
    events.Received("T1TOT2", "CT1", 3, 0, (), 2048, 1.5, ""): (
        "T1TOT2 from CT1: 3 objects, 2.05 kB in 1.50 s"
    ),
    events.Received("T1TOT2", "CT1", 1, 2, REFUSALS, 2048, 1.5, "it aborted the association"): (
        "T1TOT2 from CT1: 1 object, 2 already known, 3 refused (the disk of the node is full), 1 "
        "refused (its header is damaged), 2.05 kB in 1.50 s; the association was aborted: it "
        "aborted the association"
    ),
    events.TurnedAway("10.0.0.1", "", "it sent no request", 1): (
        "rejected 10.0.0.1: it sent no request"
    ),
    events.TurnedAway("10.0.0.1", "", "it sent no request", 9): (
        "rejected 10.0.0.1 (9 times): it sent no request"
    ),
    events.TurnedAway("10.0.0.1", "ct1 to T1TOT2", "the title is not known", 2): (
        "rejected ct1 to T1TOT2 from 10.0.0.1 (2 times): the title is not known"
    ),
    events.Queued(SERIES, "b/00001", 20, 0): f"{SERIES}: 20 images, queued as b/00001",
    events.Queued(SERIES, "b/00002", 24, 20): (
        f"{SERIES}: 24 images, 20 when it was translated before; queued again as b/00002"
    ),
    events.Queued(SERIES, "b/00003", 20, 0, "the source was incomplete: 20 images"): (
        f"{SERIES}: 20 images, queued as b/00003; the source was incomplete: 20 images"
    ),
    events.Held("S", "20 images of the study received", UNTIL): (
        f"S: held until {iso_time(UNTIL)} or until the missing images arrive: 20 images of the "
        "study received"
    ),
    events.LeftOut("S", "excluded by setting modality"): "S: excluded by modality",
    events.SeriesTranslated(SERIES): f"{SERIES}: translated",
    events.SeriesTranslated(SERIES, "its result is suspicious: match 0.5"): (
        f"{SERIES}: translated; its result is suspicious: match 0.5"
    ),
    events.Failed(SERIES, "damaged"): f"{SERIES}: failed: damaged",
    events.Sent(SERIES, "PACS@host:104", 20, 1.5): (
        f"{SERIES}: 20 objects sent to PACS@host:104, 1.50 s"
    ),
    events.NotSent("PACS@host:104", "nothing answers", 30.4): (
        "PACS@host:104: not sent: nothing answers; again in 30 s"
    ),
    events.CommitmentRequested(SERIES, "PACS@host:104", 20, 0): (
        f"{SERIES}: storage commitment of 20 objects requested from PACS@host:104"
    ),
    events.CommitmentRequested(SERIES, "PACS@host:104", 1, 2): (
        f"{SERIES}: storage commitment of 1 object requested from PACS@host:104 again, as no "
        "report came to 2 requests"
    ),
    events.NotCommitted(SERIES, "1 of 8 objects (0001.dcm): it is lost"): (
        f"{SERIES}: sent again: 1 of 8 objects (0001.dcm): it is lost"
    ),
    events.ReportRefused("T1TOT2", "PACS", "its transaction is not known"): (
        "T1TOT2: storage commitment report of PACS refused: its transaction is not known"
    ),
    events.SendingAbandoned(SERIES, "nothing answers"): (
        f"{SERIES}: sending abandoned: nothing answers; to send it again, set a longer retry in "
        "its route"
    ),
    events.Resumed(SERIES): f"{SERIES}: queued to be sent again because its route now has a "
    "longer retry",
    events.Reported("T1TOT2", "PACS@host:104", 8, 8): (
        "T1TOT2: storage commitment for 8 objects of PACS@host:104: all are stored"
    ),
    events.Reported("T1TOT2", "CT1", 7, 8): (
        "T1TOT2: storage commitment for 8 objects of CT1: 7 are stored"
    ),
    events.NotReported("T1TOT2", "CT1", "it left"): (
        "T1TOT2: the storage commitment report was not sent to CT1: it left"
    ),
    events.Emptied("S"): "S: removed from the inbox",
    events.Trouble("the disk is\nfull"): "the disk is\\nfull",
}


@pytest.mark.parametrize("event", TOLD, ids=lambda event: type(event).__name__)
def test_an_event_is_a_line(event: events.NodeEvent) -> None:
    assert line_of(event) == TOLD[event]


def test_each_kind_of_event_is_reported() -> None:
    assert {type(event) for event in TOLD} == set(events.NodeEvent.__args__)


def study(name: str, *series: SeriesRecord, emptied: float = 0.0) -> StudyRecord:
    left_out = ("lower setting min-slices to accept it",)
    return StudyRecord(name, "", 20, 1.0, 2.0, 1, series, left_out, emptied)


def test_the_status_lists_what_is_held_and_incomplete() -> None:
    remark = "the source was incomplete: 20 images of the study received, 1 image not taken"
    series = SeriesRecord("a", 1, "", 20, "b/1", "k", "sent", remark=remark)
    held = replace(
        study("R/2"), left_out=(), refused=2, broke_off=True, held=UNTIL - 60, until=UNTIL
    )
    status = NodeStatus(Path("node"), True, (study("R/1", series), held), (), 4096, {})
    lines = list(status_lines(status, 1, 200))
    assert f"incomplete: R/1/1/a: {remark}" in lines
    assert (
        "held: R/2: 20 images of the study received, 2 images not taken, the transfer broke off; "
        f"until {iso_time(UNTIL)} or 'node --release'"
    ) in lines
    assert "Kept: 2 studies, 4.10 kB; all examined, 1 held" in lines
    one, other = json.loads(status_json(status, 1))["studies"]
    assert one["series"][0]["remark"] == remark
    assert (one["held"], one["until"], one["broke_off"]) == (None, None, False)
    assert (other["held"], other["until"]) == (iso_time(UNTIL - 60), iso_time(UNTIL))


def test_the_status_lists_what_is_not_sent_and_why() -> None:
    failed = SeriesRecord("a", 1, "", 20, "b/1", "k", "failed", "use a smaller setting patch")
    sending = SeriesRecord("b", 1, "", 9, "b/2", "k", "sending")
    sent = SeriesRecord("c", 1, "", 9, "b/3", "k", "sent")
    studies = (study("R/1", failed, sending, sent), study("R/2", sent, emptied=3.0))
    status = NodeStatus(Path("node"), True, studies, (), 4096, {"R/1/1/b": 4})
    lines = [" ".join(line.split()) for line in status_lines(status, 1, 200) if "─" not in line]
    assert lines == [
        "series images state",
        "R/1/1/a 20 failed",
        "R/1/1/b 9 sending, 4 confirmed",
        "failed: R/1/1/a: use a smaller patch",
        "skipped: R/1: lower min-slices to accept it",
        "4 series: 1 failed, 1 sending, 2 sent",
        "Kept: 1 study, 4.10 kB; all examined",
        "The node is running.",
        "1 worker is running.",
    ]
