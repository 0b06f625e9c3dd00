"""Node from arriving objects to confirmed results, through all disturbances."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pydicom import Dataset
from pydicom.uid import RLELossless
from pynetdicom import evt
from pynetdicom.sop_class import MRImageStorage, StorageCommitmentPushModel
from support import queue_postgres
from support.dicom_network import archive, associate
from support.dicom_phantoms import PATIENT, PATIENT_ID
from support.node_in_process import DAY, NodeInProcess, associations
from support.node_world import phantom
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.engine.model.calibration import ResultReference, UsualMeasure
from cuda_cyclegan.engine.model.model_file import encode_model, load_model
from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.pipelines.jobs.queue import claims
from cuda_cyclegan.pipelines.jobs.queue.batch_name import BatchPattern
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue, open_queue
from cuda_cyclegan.pipelines.jobs.summary import report_of, suspicion_of
from cuda_cyclegan.pipelines.node import submission
from cuda_cyclegan.pipelines.node.events import (
    Emptied,
    Failed,
    LeftOut,
    NodeEvent,
    NotSent,
    Queued,
    Received,
    Reported,
    Resumed,
    SendingAbandoned,
    Sent,
    SeriesTranslated,
    Trouble,
    TurnedAway,
)
from cuda_cyclegan.pipelines.node.folder import status_of
from cuda_cyclegan.pipelines.node.records import SeriesRecord
from cuda_cyclegan.pipelines.node.submission import LOOK_SECONDS, SELDOM_SECONDS
from cuda_cyclegan.pipelines.request import Request
from cuda_cyclegan.pipelines.results.manifest import Manifest


def slices(count: int = 8, number: int = 0) -> list[Any]:
    """The first slices of a series of twelve."""
    return list(phantom(number, 12).datasets())[:count]


def instances(held: list[Any]) -> Counter[str]:
    return Counter(str(one.SOPInstanceUID) for one in held)


def test_a_series_pushed_five_times_is_translated_and_sent_once(world: NodeInProcess) -> None:
    with archive(port=world.destination) as (_, held):
        for _ in range(2):
            assert world.send(slices()) == [0] * 8
        world.queue_up()
        world.send(slices())
        world.queue_up()
        world.translate()
        world.send(slices())
        world.queue_up()
        world.wait_for_sends(1)
        world.send(slices())
        world.queue_up()
        world.translate()
    assert len(world.events(Queued)) == 1
    assert set(instances(held).values()) == {1}
    assert len(held) == 8
    assert [event.known for event in world.events(Received)] == [0, 8, 8, 8, 8]


def test_slices_in_any_order_over_three_associations_are_one_series(world: NodeInProcess) -> None:
    sent = slices()
    first, second = (associate(world.node.port, MRImageStorage) for _ in range(2))
    for at in (7, 2, 5):
        assert first.send_c_store(sent[at]).Status == 0
    first.release()
    for at in (0, 6):
        assert second.send_c_store(sent[at]).Status == 0
    eventually(lambda: associations() == 1)
    world.pass_time(1000)
    assert world.events(Queued) == []  # one of them is not over
    second.release()
    world.wait_until_over()
    world.pass_time(20)
    world.send([sent[at] for at in (3, 1, 4)])
    world.pass_time(20)
    assert world.events(Queued) == []  # it was not quiet for long enough
    world.pass_time(11)
    [queued] = world.events(Queued)
    assert queued.images == 8


def test_the_studies_of_a_night_are_one_batch_of_their_route(world: NodeInProcess) -> None:
    world.now = datetime(2026, 11, 27, 23, 59, 30).timestamp()
    for number in range(2):
        world.send(slices(number=number))
        world.queue_up()
    with open_queue(world.place) as queue:
        [count] = queue.batches()
        assert (count.name, count.jobs) == ("node NODE", {"queued": 2})
        assert {row.route for row in queue.jobs(count.batch)} == {"NODE"}
        world.with_route(batch=BatchPattern("CT of %Y"))
        world.send(slices(number=2))
        world.queue_up()
        assert {count.name[:6] for count in queue.batches()} == {"node N", "CT of "}


def test_a_clock_that_is_set_back_holds_up_no_study(world: NodeInProcess) -> None:
    world.send(slices())
    world.pass_time(-3600)
    assert world.states() == []
    world.queue_up()
    assert world.states() == ["queued"]


def test_objects_in_an_unavailable_inbox_are_queued_and_emptied_later(
    world: NodeInProcess,
) -> None:
    """The inbox's disk may not be mounted, for instance."""
    inbox, away = world.folder / "inbox", world.folder / "away"
    world.send(slices())
    inbox.rename(away)
    world.queue_up()
    assert [str(inbox) in event.reason for event in world.events(Trouble)] == [True]
    away.rename(inbox)
    world.with_route()  # tries at once again
    world.queue_up()
    assert [queued.images for queued in world.events(Queued)] == [8]
    with archive(port=world.destination):
        world.translate()
        world.wait_for_sends(1)
    inbox.rename(away)
    world.pass_time(30 * DAY)
    assert world.events(Emptied) == []
    away.rename(inbox)
    world.with_route()
    world.pass_time(1)
    assert (len(world.events(Emptied)), world.objects()) == (1, [])


def test_a_study_whose_sender_asks_for_commitment_is_complete_at_once(
    world: NodeInProcess,
) -> None:
    sent = slices()
    association = associate(
        world.node.port,
        MRImageStorage,
        StorageCommitmentPushModel,
        evt_handlers=[(evt.EVT_N_EVENT_REPORT, lambda _: (0, None))],
    )
    for one in sent:
        assert association.send_c_store(one).Status == 0
    world.node.step()
    assert world.events(Queued) == []
    asked = Dataset()
    asked.TransactionUID = "1.2.3.4"
    item = Dataset()
    item.ReferencedSOPClassUID = sent[0].SOPClassUID
    item.ReferencedSOPInstanceUID = sent[0].SOPInstanceUID
    asked.ReferencedSOPSequence = [item]
    model = StorageCommitmentPushModel
    status, _ = association.send_n_action(asked, 1, model, "1.2.840.10008.1.20.1.1")
    assert status.Status == 0
    eventually(lambda: world.node.step() or world.events(Queued))
    eventually(lambda: world.events(Reported))  # a release that meets its answer waits for ever
    association.release()
    world.wait_until_over()


def test_one_study_that_cannot_be_examined_does_not_hold_others_up(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine = submission.jobs_of

    def fail(request: Request) -> Any:
        bad = phantom(1).series.encode() + b".1"
        if any(bad in file.read_bytes() for place in request.inputs for file in place.iterdir()):
            raise ZeroDivisionError
        return examine(request)

    monkeypatch.setattr(submission, "jobs_of", fail)
    for number in range(3):
        world.send(slices(number=number))
    world.queue_up()
    assert len(world.events(Queued)) == 2
    assert [event.reason for event in world.events(LeftOut)] == [
        "it cannot be examined (ZeroDivisionError)"
    ]


def test_the_status_shows_why_a_job_waits(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "DEFER_SECONDS", 0.0)
    world.send(slices())
    world.queue_up()
    with open_queue(world.place) as queue:
        [job] = queue.jobs("", ["queued"])
    with Manifest(Path(job.asked["output"])):
        world.translate()
        assert world.states() == ["queued"]
        assert "Another run is writing" in world.series()[0].reason
    assert world.events(Failed) == []
    world.translate()
    [one] = world.series()
    assert one.state == "sending"
    assert "Another run" not in one.reason  # perhaps already that nobody listens there


def test_a_series_that_grows_is_translated_again_and_that_is_said(world: NodeInProcess) -> None:
    with archive(port=world.destination) as (_, held):
        world.send(slices(8))
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
        world.send(slices(12)[8:])
        world.queue_up()
        world.translate()
        world.wait_for_sends(2)
    assert [(event.images, event.before) for event in world.events(Queued)] == [(8, 0), (12, 8)]
    assert sorted(Counter(one.SeriesInstanceUID for one in held).values()) == [8, 12]
    assert set(instances(held).values()) == {1}


@pytest.mark.slow
def test_a_result_that_was_not_sent_when_its_series_grew_is_not_sent_any_more(
    world: NodeInProcess,
) -> None:
    world.send(slices(8))
    world.queue_up()
    world.translate()
    world.send(slices(12)[8:])
    world.queue_up()
    with archive(port=world.destination) as (_, held):
        world.translate()
        world.wait_for_sends(1)
    assert len(held) == 12


def test_a_result_whose_first_object_is_on_its_way_when_its_series_grows_is_sent_as_a_whole(
    world: NodeInProcess,
) -> None:
    """The same holds if the association breaks off after that object."""
    arrives, has_grown = Event(), Event()

    def status(_: Any) -> int:
        arrives.set()
        assert has_grown.wait(ENOUGH)
        return 0

    def aborts(_: Any) -> bool:
        return len(held) == 1 and not world.events(NotSent)

    world.send(slices(8))
    world.queue_up()
    with archive(port=world.destination, status=status, aborts=aborts) as (_, held):
        world.translate()
        assert arrives.wait(ENOUGH)
        world.send(slices(12)[8:])
        world.queue_up()
        has_grown.set()
        eventually(lambda: world.events(NotSent))
        assert [one.images for one in world.series()] == [8, 12], "the first one is not forgotten"
        world.translate()
        world.wait_for_sends(2)
    assert sorted(Counter(one.SeriesInstanceUID for one in held).values()) == [8, 12]


def test_a_job_whose_series_grew_meanwhile_is_cancelled(world: NodeInProcess) -> None:
    world.send(slices(8))
    world.send(slices(number=1))
    world.queue_up()
    world.send(slices(12)[8:])
    world.queue_up()
    with open_queue(world.place) as queue:
        rows = [row for event in world.events(Queued) for row in queue.jobs(event.job)]
    grown, *others = [row.state for row in rows]
    assert (grown, set(others)) == ("cancelled", {"queued"})
    assert world.states() == ["queued", "queued"]


def another_series() -> list[Any]:
    """Return another series of the study of `slices`."""
    first = phantom(0)
    return list(replace(first, series=f"{first.series}.9").datasets())


def test_a_result_that_is_sent_while_its_study_is_looked_at_again_stays_sent(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(slices())
    world.queue_up()
    world.translate()
    world.send(another_series())
    examine = submission.jobs_of

    def slowly(request: Request) -> Any:
        eventually(lambda: world.events(Sent))
        return examine(request)

    monkeypatch.setattr(submission, "jobs_of", slowly)
    with archive(port=world.destination) as (_, held):
        world.queue_up()
    assert world.states() == ["sent", "queued"]
    assert set(instances(held).values()) == {1}


def test_a_result_that_is_sent_while_the_queue_is_looked_into_stays_sent(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(slices())
    world.queue_up()
    world.translate()
    world.send(another_series())
    world.queue_up()
    ask = Queue.jobs

    def slowly(queue: Queue, batch: str) -> Any:
        eventually(lambda: world.events(Sent))
        return ask(queue, batch)

    monkeypatch.setattr(Queue, "jobs", slowly)
    with archive(port=world.destination) as (_, held):
        world.translate()
        assert world.states()[0] == "sent"
        world.wait_for_sends(2)
    assert set(instances(held).values()) == {1}


def test_a_pacs_that_is_down_for_a_day_gets_all_of_it_once(world: NodeInProcess) -> None:
    world.send(slices())
    world.queue_up()
    world.translate()
    eventually(lambda: world.events(NotSent))
    world.pass_time(DAY)
    assert world.states() == ["sending"]
    assert "nothing answers" in status_of(world.folder).studies[0].series[0].reason
    with archive(port=world.destination) as (_, held):
        world.wait_for_sends(1)
    assert set(instances(held).values()) == {1}
    assert len(held) == 8


class Heard(list[NodeEvent]):
    """Events of a node, which waits at each of one kind until something is done."""

    def __init__(self, kind: type[Any], do: Callable[[], object]) -> None:
        super().__init__()
        self._kind, self._do = kind, do

    def append(self, event: NodeEvent) -> None:
        if isinstance(event, self._kind):
            self._do()
        super().append(event)


def only_series(world: NodeInProcess) -> SeriesRecord:
    return status_of(world.folder).studies[0].series[0]


def test_why_a_result_was_not_sent_is_on_record_before_it_is_reported(tmp_path: Path) -> None:
    reasons: list[str] = []
    world = NodeInProcess(tmp_path)
    world.reported = Heard(NotSent, lambda: reasons.append(only_series(world).reason))
    with world:
        world.send(slices())
        world.queue_up()
        world.translate()
        eventually(lambda: world.events(NotSent))
    assert "nothing answers" in reasons[0]


def test_the_outcome_of_a_job_is_on_record_before_it_is_reported(tmp_path: Path) -> None:
    states: list[str] = []
    world = NodeInProcess(tmp_path)
    world.reported = Heard(SeriesTranslated, lambda: states.append(only_series(world).state))
    with world:
        world.send(slices())
        world.queue_up()
        world.translate()
    assert states == ["sending"]


def test_a_result_is_judged_when_its_job_ends(tmp_path: Path) -> None:
    """Alone, by the results of the model's reference set, which have far more detail."""
    world = NodeInProcess(tmp_path)
    model = load_model(world.route.request.model)
    results = ResultReference(12, (0.5, 0.75, 2.0), (UsualMeasure("detail", 9.0, 0.1),))
    content = encode_model(
        replace(model.card, results=results),
        model.network,
        model.reference_input,
        model.reference_output,
    )
    world.route.request.model.write_bytes(content)
    with world:
        world.send(slices())
        world.queue_up()
        world.translate()
        [event] = world.events(SeriesTranslated)
        [one] = world.series()
        with open_queue(world.place) as queue:
            [row] = queue.jobs(one.job)
    assert row.reference == results
    assert "detail" in event.suspicion
    assert event.suspicion == suspicion_of(row).note


def test_a_study_is_not_queued_before_its_arrival_is_reported(tmp_path: Path) -> None:
    world = NodeInProcess(tmp_path)
    # as where its thread gets no processor
    world.reported = Heard(Received, lambda: world.pass_time(1000))
    with world:
        world.send(slices())
        world.queue_up()
    assert [type(event) for event in world.reported] == [Received, Queued]


def with_undelivered(world: NodeInProcess) -> None:
    """A result that no destination took within the hour of its route."""
    world.with_route(retry=3600.0)
    world.send(slices())
    world.queue_up()
    world.translate()
    eventually(lambda: world.events(NotSent))
    world.pass_time(10 * DAY)
    eventually(lambda: world.node.step() or world.events(SendingAbandoned))


def test_delivery_tried_as_long_as_the_route_states_is_abandoned(world: NodeInProcess) -> None:
    with_undelivered(world)
    assert world.states() == ["undelivered"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_abandoned_delivery_is_sent_untranslated_once_its_route_has_longer(
    world: NodeInProcess, is_restarted: bool
) -> None:
    with_undelivered(world)
    if is_restarted:
        world.stop()
        world.start()
    world.node.step()
    assert world.states() == ["undelivered"]
    with archive(port=world.destination) as (_, held):
        world.with_route(retry=30 * DAY)
        world.wait_for_sends(1)
    assert set(instances(held).values()) == {1}
    assert len(held) == 8
    assert len(world.events(Queued)) == len(world.events(Resumed)) == 1


@pytest.mark.slow
def test_abandoned_and_removed_delivery_is_not_tried_again(world: NodeInProcess) -> None:
    with_undelivered(world)
    world.pass_time(31 * DAY)
    assert world.events(Emptied)
    world.with_route(retry=365 * DAY)
    world.node.step()
    assert world.states() == ["undelivered"]


@pytest.mark.slow
def test_the_loss_of_the_queues_server_is_said_once_for_all_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    monkeypatch.setattr("cuda_cyclegan.pipelines.node.node.AGAIN_SECONDS", 0.0)
    with queue_postgres.server() as server:
        world = NodeInProcess(tmp_path, queue=server.url)
        with world, archive(port=world.destination):
            for number in range(2):
                world.send(slices(number=2 * number))
                world.queue_up()
                server.kill()
                world.send(slices(number=2 * number + 1))
                for _ in range(3):
                    world.queue_up()
                assert len(world.events(Trouble)) == number + 1
                server.start()
                world.queue_up()
                world.translate()
                world.wait_for_sends(2 * number + 2)


def several_results(world: NodeInProcess, count: int = 3) -> None:
    """Results that are to be sent, of which the first one goes first."""
    for number in range(count):
        world.send(slices(number=number))
        world.queue_up()
        world.translate()


@pytest.mark.slow
def test_an_object_at_which_its_destination_breaks_off_holds_up_no_other_result(
    world: NodeInProcess,
) -> None:
    several_results(world)
    study = str(slices()[0].StudyInstanceUID)
    with archive(port=world.destination, aborts=lambda one: one.StudyInstanceUID == study):
        world.wait_for_sends(2)
        eventually(lambda: len(of_results(world)) > 1)
        # Later a further try may say that nothing answers.
        assert world.states() == ["sending", "sent", "sent"]
        assert [one.reason for one in world.series()] == ["it aborted the association", "", ""]


def of_results(world: NodeInProcess) -> list[NotSent]:
    """Return the reports on results that could not be sent, without those on their destination."""
    return [event for event in world.events(NotSent) if event.what.startswith("NODE/")]


def damage_by_an_empty_file(file: Path) -> None:
    file.write_bytes(b"")


def damage_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def damage_by_half_a_file(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.process
@pytest.mark.parametrize(
    "damage",
    [
        damage_by_half_a_file,
        pytest.param(damage_by_an_empty_file, marks=pytest.mark.slow),
        pytest.param(damage_by_a_folder, marks=pytest.mark.slow),
    ],
)
def test_a_result_that_is_damaged_on_disk_holds_up_no_other(
    world: NodeInProcess, damage: Callable[[Path], None]
) -> None:
    several_results(world, 2)
    [place] = [one.place for one in world.series()[:1]]
    study = world.node.store.studies()[0].study
    [file] = world.folder.glob(f"results/*/*/{study.partition('/')[2]}/{place}/0001.dcm")
    damage(file)
    with archive(port=world.destination) as (_, held):
        world.wait_for_sends(1)
        eventually(lambda: of_results(world))
    assert world.states() == ["sending", "sent"]
    assert len(held) == 15  # all but the damaged one
    [reason] = {event.reason for event in of_results(world)}
    assert "damaged" in reason or "cannot be read" in reason


def test_an_object_that_is_confirmed_is_not_sent_again(world: NodeInProcess) -> None:
    refused: list[str] = []

    def status(dataset: Any) -> int:
        if dataset.InstanceNumber == 4 and not refused:
            refused.append(str(dataset.SOPInstanceUID))
            return 0xA700
        return 0

    with archive(port=world.destination, status=status) as (_, held):
        world.send(slices())
        world.queue_up()
        world.translate()
        eventually(lambda: refused and world.events(NotSent))
        world.stop()
        world.start()
        world.wait_for_sends(1)
    counts = instances(held)
    assert counts.pop(refused[0]) == 2
    assert set(counts.values()) == {1}
    assert len(counts) == 7


def test_an_object_whose_confirmation_was_lost_has_the_same_identifier_again(
    world: NodeInProcess,
) -> None:
    with archive(port=world.destination) as (_, held):
        world.send(slices())
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
        [place] = [one.place for one in world.series()]
        world.stop()
        world.query("UPDATE series SET state = 'sending'")
        name = f"{world.query('SELECT study FROM study')[0][0]}/{place}"
        for one in held[:3]:
            world.query("INSERT INTO confirmed VALUES (?, ?)", name, str(one.SOPInstanceUID))
        world.start()
        world.wait_for_sends(2)
    assert sorted(instances(held).values()) == [1, 1, 1, 2, 2, 2, 2, 2]


def test_a_study_is_removed_a_while_after_its_result_was_confirmed(world: NodeInProcess) -> None:
    with archive(port=world.destination) as (_, held):
        world.send(slices())
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
        world.pass_time(DAY - 60)
        assert len(world.objects()) == 8
        world.pass_time(60)
        assert world.events(Emptied)
        assert world.objects() == []
        assert list(world.folder.glob("results/*/*/*.dcm")) == []
        world.stop()
        world.start()
        world.send(slices())
        world.queue_up()
        world.node.step()
        assert len(world.events(Queued)) == 1  # it is known, and gone once more
        assert world.objects() == []
        world.send(slices(12))
        world.queue_up()
        world.translate()
        world.wait_for_sends(2)
    assert [(event.images, event.before) for event in world.events(Queued)] == [(8, 0), (12, 8)]
    assert set(instances(held).values()) == {1}


def test_unsent_result_stays(world: NodeInProcess) -> None:
    world.send(slices())
    world.queue_up()
    world.translate()
    world.pass_time(3 * DAY)
    assert len(world.objects()) == 8


def test_a_study_without_a_volume_is_reported_and_removed(world: NodeInProcess) -> None:
    world.send(slices(3))
    world.queue_up()
    [message] = world.events(LeftOut)
    assert "only 3 slices" in message.reason
    world.pass_time(DAY + 1)
    assert world.objects() == []


def test_a_route_takes_what_its_filters_say(tmp_path: Path) -> None:
    with NodeInProcess(tmp_path) as world:
        request = replace(world.route.request, filters=Choice(modalities=frozenset({"CT"})))
        world.with_route(request=request)
        world.send(slices())
        world.queue_up()
        assert world.events(Queued) == []
        assert "excluded by setting modality" in world.events(LeftOut)[0].reason


def test_a_failed_job_is_reported_and_goes_on_when_it_is_queued_again(world: NodeInProcess) -> None:
    world.send(slices())
    world.queue_up()
    with open_queue(world.place) as queue:
        job = world.series()[0].job
        queue.cancel(job)
        world.pass_time(LOOK_SECONDS)
        assert world.states() == ["failed"]
        queue.retry(job)
        world.pass_time(LOOK_SECONDS)
        assert world.states() == ["failed"]  # of those it is asked seldom
        world.pass_time(SELDOM_SECONDS)
        assert world.states() == ["queued"]
    with archive(port=world.destination) as (_, held):
        world.translate()
        world.wait_for_sends(1)
    assert len(held) == 8


@pytest.mark.slow
def test_a_queue_that_does_not_answer_holds_nothing_up_but_jobs(world: NodeInProcess) -> None:
    private = world.folder.parent / "private"
    private.mkdir(mode=0o777)
    private.chmod(0o777)  # which the queue refuses
    assert world.send(slices()) == [0] * 8
    world.queue_up()
    assert "Other users can write" in world.events(Trouble)[0].reason
    private.chmod(0o700)
    eventually(lambda: world.node.step() or world.events(Queued))


def test_a_full_inbox_refuses_until_there_is_space(world: NodeInProcess) -> None:
    world.with_settings(most=3000)
    statuses = world.send(slices())
    assert statuses[0] == 0
    assert set(statuses[1:]) == {0xA700}
    world.with_settings(most=1 << 30)
    assert world.send(slices()) == [0] * 8
    assert len(world.objects()) == 8


def test_an_object_that_would_exceed_the_inbox_is_refused_while_it_arrives(
    world: NodeInProcess,
) -> None:
    """One object begun below the limit could be of any size."""
    [large, *_] = replace(phantom(0), rows=256, columns=256).datasets()
    world.with_settings(most=100_000)
    assert world.send([large]) == [0xA700]
    assert list(world.folder.glob("incoming/*")) == []
    assert world.send(slices()) == [0] * 8, "what was refused takes no room"
    world.with_settings(most=1 << 30)
    assert world.send([large]) == [0]


def test_a_disk_without_its_reserve_refuses(world: NodeInProcess) -> None:
    world.with_settings(reserve=1 << 62)
    assert set(world.send(slices())) == {0xA700}
    assert world.objects() == []


def test_jobs_know_when_their_files_came_and_their_results_went(world: NodeInProcess) -> None:
    with archive(port=world.destination):
        world.send(slices())
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
        world.node.step()
    with open_queue(world.place) as queue:
        [row] = queue.jobs(world.series()[0].job)
    assert row.transfers.keys() == {"receive", "send"}
    stages = list(report_of([row]).studies[0].stages)
    assert stages[0] == "receive"
    assert stages[-1] == "send"


def test_nothing_that_the_node_says_or_keeps_beside_the_objects_names_the_patient(
    world: NodeInProcess,
) -> None:
    with archive(port=world.destination):
        world.send(slices())
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
    names = [str(path.relative_to(world.folder)) for path in world.folder.rglob("*")]
    world.stop()
    records = [path.read_bytes().decode("latin-1") for path in world.folder.glob("node.db*")]
    said = f"{world.reported} {records} {status_of(world.folder)} {names}"
    for secret in (PATIENT, "Jane", PATIENT_ID, phantom(0).study, "plain MR", "Roe"):
        assert secret not in said


def test_damaged_records_are_reported(world: NodeInProcess) -> None:
    world.stop()
    (world.folder / "node.db").write_bytes(b"\0" * 100)
    world.start()
    [trouble] = world.events(Trouble)
    assert "node.db is damaged" in trouble.reason


def test_other_files_in_the_inbox_are_skipped(world: NodeInProcess) -> None:
    world.send(slices())
    [study] = {path.parent for path in world.objects()}
    for folder in (study.parent.parent, study.parent, study):
        (folder / ".nfs000000000123").write_bytes(b"left by a file system")
    world.stop()
    world.start()
    world.pass_time(1000)
    [queued] = world.events(Queued)
    assert queued.images == 8


@pytest.mark.parametrize("is_restarted", [False, True])
def test_object_omitted_by_a_route_is_taken_once_it_changes(
    world: NodeInProcess, is_restarted: bool
) -> None:
    usual = world.route.request
    world.with_route(request=replace(usual, filters=Choice(modalities=frozenset({"CT"}))))
    world.send(slices())
    world.queue_up()
    left_out = world.events(LeftOut)
    assert len(left_out) == 1
    assert world.events(Queued) == []
    if is_restarted:
        world.stop()
        world.route = replace(world.route, request=usual)
        world.start()
    else:
        world.with_route(request=usual)
    world.pass_time(1000)
    [queued] = world.events(Queued)
    assert queued.images == 8
    assert world.events(LeftOut) == left_out


def test_omission_is_reported_once_however_often_it_is_sent(world: NodeInProcess) -> None:
    strict = replace(world.route.request, filters=Choice(modalities=frozenset({"CT"})))
    world.with_route(request=strict)
    world.send(slices())
    world.queue_up()
    [looked] = [record.looked for record in world.node.store.studies()]
    world.send(slices())
    world.queue_up()
    assert len(world.events(LeftOut)) == 1
    assert [record.looked for record in world.node.store.studies()] == [looked]


def test_a_series_that_comes_in_another_encoding_is_known(world: NodeInProcess) -> None:
    """The series comes from an archive next to the scanner, or from two, while its job waits."""
    packed = slices()
    for one in packed:
        one.compress(RLELossless, generate_instance_uid=False)
    with archive(port=world.destination) as (_, held):
        world.send(slices())
        world.queue_up()
        assert world.send(packed, RLELossless) == [0] * 8
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
    assert [event.known for event in world.events(Received)] == [0, 8]
    assert len(world.events(Queued)) == 1
    assert len(held) == 8


def test_titles_that_are_not_known_are_reported_as_they_came(world: NodeInProcess) -> None:
    for _ in range(3):
        assert not associate(world.node.port, MRImageStorage, calling="sender").is_established
    associate(world.node.port, MRImageStorage, called="node")
    eventually(lambda: len(world.events(TurnedAway)) == 2)
    assert [event.titles for event in world.events(TurnedAway)] == [
        "sender to NODE",
        "SENDER to node",
    ]


def test_stored_files_are_private(world: NodeInProcess) -> None:
    world.send(slices())
    paths = [world.folder, *world.folder.rglob("*")]
    assert len(paths) > 8
    for path in paths:
        assert path.stat().st_mode & 0o077 == 0, path
