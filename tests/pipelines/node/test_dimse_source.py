"""DIMSE as a source: C-FIND and C-MOVE with Orthanc, dcmqrscp, and an archive with faults."""

import itertools
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.certificates import authority
from support.dicom_network import associate
from support.dicom_pacs import orthanc, query_archive, store_at
from support.node_in_process import NodeInProcess
from support.node_world import phantom
from support.ports import reserved_port
from support.query_archive import QueryArchive, query_archive_in_process
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.io.dicom_network import querying
from cuda_cyclegan.io.dicom_network.errors import ConnectionLostError
from cuda_cyclegan.io.dicom_network.limits import DEFAULT_WEB_LIMITS
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.pipelines.node import dimse_source
from cuda_cyclegan.pipelines.node.events import Held, Queued, Received, Trouble
from cuda_cyclegan.pipelines.node.fetching import connected
from cuda_cyclegan.pipelines.node.routes import Source
from cuda_cyclegan.pipelines.retries import Backoff

EVERY_STUDY = {"StudyDate": "19000101-"}


@contextmanager
def real_peer(kind: str, folder: Path, node: int) -> Generator[Peer]:
    """Run an archive of other people."""
    if kind == "Orthanc":
        anyone = {"DicomAlwaysAllowFind": True, "DicomAlwaysAllowMove": True}
        with orthanc(folder, {"NODE": node}, **anyone) as pacs:
            yield Peer("ORTHANC", "127.0.0.1", pacs.dicom_port)
    else:
        with query_archive(folder, {"NODE": node}) as port:
            yield Peer("ARCHIVE", "127.0.0.1", port)


@contextmanager
def fetching(folder: Path, port: int, source: Source, **of_route: Any) -> Generator[NodeInProcess]:
    """A node at a port, that fetches and has no callers."""
    world = NodeInProcess(folder, source=source, **of_route)
    world.settings = replace(world.settings, port=port)
    world.route = replace(world.route, callers=())
    with world:
        yield world


def polled(world: NodeInProcess, condition: Callable[[], object]) -> None:
    """Let the source be polled until something holds."""
    eventually(lambda: world.pass_time(31) or condition())


def poll_on(world: NodeInProcess, count: int) -> None:
    """Let so many more polls end."""
    fetcher = world.node._fetchers["NODE"]
    for _ in range(count):
        before = fetcher._next
        world.pass_time(31)
        eventually(lambda before=before: world.node.step() or fetcher._next > before)
    fetcher.thread.stop()
    fetcher.thread.join()


@pytest.fixture
def node_port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.mark.process
@pytest.mark.parametrize("kind", ["Orthanc", "dcmqrscp"])
def test_a_study_is_found_moved_and_translated(kind: str, node_port: int, tmp_path: Path) -> None:
    files = phantom(0).write(tmp_path / "source")
    with real_peer(kind, tmp_path / "pacs", node_port) as peer:
        store_at(peer.port, peer.title, files[:5])
        source = Source(peer, {**EVERY_STUDY, "ModalitiesInStudy": "MR"})
        with fetching(tmp_path, node_port, source) as world:
            world.with_route(destination=peer)
            world.pass_time(31)
            eventually(lambda: world.node._fetchers["NODE"]._listed)
            store_at(peer.port, peer.title, files[5:])  # which were on their way at the first poll
            polled(world, lambda: world.events(Queued))
            assert [one.images for one in world.events(Queued)] == [8]
            world.translate()
            world.wait_for_sends(1)
            # Its own result is found there, fetched once and left out.
            polled(world, lambda: sum(one.objects for one in world.events(Received)) == 16)
            received = len(world.events(Received))
            poll_on(world, 3)
            assert len(world.events(Queued)) == 1
            assert len(world.events(Received)) == received
            assert {one.caller for one in world.events(Received)} == {peer.title}
            assert not world.events(Trouble)


@pytest.mark.process
@pytest.mark.parametrize(("kind", "status"), [("Orthanc", "C000"), ("dcmqrscp", "A801")])
def test_a_peer_that_does_not_know_the_node_is_named(
    kind: str, status: str, node_port: int, tmp_path: Path
) -> None:
    files = phantom(0).write(tmp_path / "source")
    with real_peer(kind, tmp_path / "pacs", node_port) as peer:
        store_at(peer.port, peer.title, files)
        with fetching(tmp_path, node_port, Source(peer, EVERY_STUDY)) as world:
            world.with_route(title="OTHER")
            world.node.use({"OTHER": world.route})
            eventually(lambda: world.pass_time(31) or world.events(Trouble))
            [trouble] = world.events(Trouble)
            assert f"8 of 8 objects did not arrive; C-MOVE ended with status {status} (it " in (
                trouble.reason
            )
            assert "know the AE title to send to)" in trouble.reason
            assert not world.objects()


@pytest.fixture
def archive(node_port: int) -> Iterator[QueryArchive]:
    """An archive with one study, whose polls follow each other at once after a failure too."""
    with query_archive_in_process(node_port, phantom(0).datasets()) as found:
        yield found


@pytest.fixture
def world(
    archive: QueryArchive, node_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NodeInProcess]:
    """A node that fetches from the archive."""
    monkeypatch.setattr(Backoff, "lengthen", lambda _: None)
    with fetching(tmp_path, node_port, Source(archive.peer, EVERY_STUDY)) as found:
        yield found


def troubles(world: NodeInProcess) -> list[str]:
    return [one.reason.partition("ARCHIVE@")[2].partition(": ")[2] for one in world.events(Trouble)]


def all_arrive_once(world: NodeInProcess, archive: QueryArchive) -> None:
    """Wait until the study is queued as a whole, and no more is asked for."""
    polled(world, lambda: world.events(Queued))
    [queued] = world.events(Queued)
    assert (queued.images, queued.remark) == (8, "")
    asked = len(archive.asked)
    poll_on(world, 3)
    assert len(archive.asked) == asked
    assert len(world.objects()) == 8
    assert sum(one.objects for one in world.events(Received)) == 8


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (Peer("OTHER", "127.0.0.1", 0), "it does not recognise the called AE title"),
        (Peer("ARCHIVE", "127.0.0.1", 0), "it does not recognise the calling AE title"),
    ],
)
def test_a_wrong_ae_title_is_named(
    peer: Peer, reason: str, archive: QueryArchive, world: NodeInProcess
) -> None:
    peer = replace(peer, port=archive.port)
    route = replace(world.route, source=Source(peer, EVERY_STUDY))
    title = "NODE" if peer.title == "OTHER" else "UNKNOWN"
    world.node.use({title: replace(route, title=title)})
    eventually(lambda: world.pass_time(31) or world.events(Trouble))
    [trouble] = world.events(Trouble)
    assert trouble.reason.endswith(f"it rejected the association: {reason}")


def once(action: Callable[[Any], object]) -> Callable[..., None]:
    """An action that happens at the first call alone, or from the fourth sub-operation on."""
    done: list[bool] = []

    def hook(event: Any, at: int = 3) -> None:
        if at == 3 and not done:
            done.append(True)
            action(event)

    return hook


def test_a_peer_that_aborts_while_it_lists_is_asked_again(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    archive.finds = once(lambda event: event.assoc.abort())
    all_arrive_once(world, archive)
    assert troubles(world) == ["it aborted the association"]


def test_a_peer_that_aborts_while_it_moves_is_asked_for_the_rest(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    archive.moves = once(lambda event: event.assoc.abort())
    all_arrive_once(world, archive)
    assert troubles(world) == ["it aborted the association"]
    assert archive.asked[0] == ("SERIES", 1)
    assert archive.asked[1][0] == "IMAGE"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0xA702, "A702 (it cannot send the objects)"),
        (0xFE00, "FE00 (it was cancelled there)"),
        (0xC123, "C123 (a failure there)"),
    ],
)
def test_a_move_that_ends_early_is_named_and_completed(
    status: int, words: str, archive: QueryArchive, world: NodeInProcess
) -> None:
    ended: list[int] = []

    def move(_event: Any, at: int) -> int | None:
        if at < 3 or ended:
            return None
        ended.append(at)
        return status

    archive.moves = move
    all_arrive_once(world, archive)
    [trouble] = troubles(world)
    assert trouble.startswith(f"5 of 8 objects did not arrive; C-MOVE ended with status {words}")
    assert archive.asked == [("SERIES", 1), ("IMAGE", 5)]


def test_an_object_that_never_arrives_holds_the_study_whatever_the_peer_reports(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    lost = archive.datasets[2].SOPInstanceUID
    archive.lost = {lost}
    polled(world, lambda: world.events(Held))
    assert [one.gap for one in world.events(Held)] == [
        "7 images of the study received, 1 image not taken, the transfer broke off"
    ]
    assert troubles(world)[0] == "1 of 8 objects did not arrive; C-MOVE ended with status 0000"
    polled(world, lambda: archive.asked.count(("IMAGE", 1)) > 1)
    archive.lost = set()
    all_arrive_once(world, archive)


def test_failed_sub_operations_are_counted(archive: QueryArchive, world: NodeInProcess) -> None:
    archive.datasets[2].SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"  # which it does not propose
    polled(world, lambda: world.events(Held))
    assert troubles(world)[0] == (
        "1 of 8 objects did not arrive; "
        "C-MOVE ended with status B000 (with failures or warnings), 1 failed"
    )
    assert not world.events(Queued)


def test_a_study_that_the_source_cannot_send_delays_no_other(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    archive.lost = {archive.datasets[2].SOPInstanceUID}
    archive.datasets += phantom(1).datasets()
    polled(world, lambda: world.events(Queued))
    assert len(world.objects()) == 15
    [queued] = world.events(Queued)
    assert queued.images == 8


def test_a_series_that_the_source_cannot_send_delays_no_other(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    first = phantom(0)
    archive.lost = {archive.datasets[2].SOPInstanceUID}
    archive.datasets += replace(first, series=f"{first.study}.3").datasets()
    polled(world, lambda: len(world.objects()) == 15)
    assert archive.asked[:2] == [("SERIES", 1), ("SERIES", 1)]


def test_a_killed_node_holds_what_was_requested(
    archive: QueryArchive, world: NodeInProcess, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    archive.moves = once(lambda _: shutil.copytree(world.folder, killed / "node"))
    all_arrive_once(world, archive)
    world.stop()
    away = Source(replace(archive.peer, port=1), EVERY_STUDY)
    again = NodeInProcess(killed, source=away)
    again.settings = replace(again.settings, port=world.settings.port)
    with again:
        again.now += 3000  # which is more than ten times the quiet time
        again.pass_time(31)
        assert not again.events(Queued)
        assert len(again.objects()) == 3
        [held] = again.events(Held)
        assert held.gap.startswith("3 images of the study received, 5 images not taken")
        again.with_route(source=Source(archive.peer, EVERY_STUDY))
        all_arrive_late(again, archive)


def all_arrive_late(world: NodeInProcess, archive: QueryArchive) -> None:
    polled(world, lambda: world.events(Queued))
    [queued] = world.events(Queued)
    assert (queued.images, queued.remark) == (8, "")
    assert archive.asked[-1] == ("IMAGE", 5)


def test_a_study_that_grows_is_fetched_again(archive: QueryArchive, world: NodeInProcess) -> None:
    whole = list(phantom(0, 9).datasets())
    archive.datasets = whole[:8]
    polled(world, lambda: world.events(Queued))
    archive.datasets = whole
    polled(world, lambda: len(world.events(Queued)) == 2)
    assert [one.images for one in world.events(Queued)] == [8, 9]
    assert archive.asked == [("SERIES", 1), ("IMAGE", 1)]


def test_many_objects_are_requested_in_several_messages(
    archive: QueryArchive, world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dimse_source, "MOST_UIDS", 3)
    first, *others = archive.datasets
    archive.datasets = [first]
    polled(world, lambda: len(world.objects()) == 1)
    archive.datasets = [first, *others]
    polled(world, lambda: len(world.objects()) == 8)
    assert archive.asked == [("SERIES", 1), ("IMAGE", 3), ("IMAGE", 3), ("IMAGE", 1)]


def test_a_peer_that_ignores_the_modality_is_searched_by_series(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    source = Source(archive.peer, {**EVERY_STUDY, "ModalitiesInStudy": "CT"})
    world.with_route(source=source)
    poll_on(world, 3)
    assert archive.asked == []
    world.with_route(source=replace(source, filters={**EVERY_STUDY, "ModalitiesInStudy": "CT,MR"}))
    polled(world, lambda: len(world.objects()) == 8)


def test_a_key_that_the_peer_ignores_is_no_selection(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    archive.ignored = {"StudyDescription"}
    world.with_route(source=Source(archive.peer, {**EVERY_STUDY, "StudyDescription": "Brain*"}))
    poll_on(world, 3)
    assert troubles(world) == [
        "it does not return StudyDescription, so source-query cannot select by it"
    ]
    assert archive.asked == []


def test_other_objects_of_a_study_are_not_requested(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    archive.datasets[2].SOPClassUID = "1.2.840.10008.5.1.4.1.1.88.11"  # a report
    polled(world, lambda: len(world.objects()) == 7)
    poll_on(world, 3)
    assert archive.asked == [("IMAGE", 7)]
    assert not world.events(Trouble)


@pytest.mark.process
def test_a_list_is_limited(node_port: int, tmp_path: Path) -> None:
    with real_peer("dcmqrscp", tmp_path / "pacs", node_port) as peer:
        store_at(peer.port, peer.title, phantom(0).write(tmp_path / "source"))
        source = Source(peer, EVERY_STUDY, limits=replace(DEFAULT_WEB_LIMITS, listed=7))
        with fetching(tmp_path, node_port, source) as world:
            polled(world, lambda: world.events(Trouble))
            assert troubles(world) == ["it lists more than 7 in one search"]


def test_a_full_inbox_requests_nothing(archive: QueryArchive, world: NodeInProcess) -> None:
    world.with_settings(most=0)
    polled(world, lambda: world.events(Received))
    assert world.events(Received)[0].refusals == (("the inbox of the node is full", 1),)
    assert archive.asked == []
    world.with_settings(most=1 << 30)
    all_arrive_once(world, archive)


def test_the_source_may_send_only_what_was_requested(
    archive: QueryArchive, world: NodeInProcess
) -> None:
    answers: list[int] = []
    other = next(iter(phantom(1).datasets()))

    def send_others(_: Any) -> None:
        assert associate(world.node.port, calling="STRANGER").is_rejected
        association = associate(world.node.port, calling="ARCHIVE")
        answers.append(association.send_c_store(other).Status)
        association.release()

    archive.moves = once(send_others)
    all_arrive_once(world, archive)
    assert answers == [0x0124]
    assert associate(world.node.port, calling="ARCHIVE").is_rejected
    refusals = [one.refusals for one in world.events(Received) if one.refusals]
    assert refusals == [(("its study was not requested", 1),)]
    assert not world.events(Held)


def test_a_silent_peer_is_awaited(
    archive: QueryArchive, world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, enough = itertools.count(1), threading.Event()

    def waits(_: object) -> bool:
        if next(asked) == 3:
            enough.set()
        return True

    monkeypatch.setattr(querying, "_GLANCE_SECONDS", 0.01)
    monkeypatch.setattr(dimse_source._Patience, "waits", waits)
    archive.moves = once(lambda _: enough.wait(ENOUGH))
    all_arrive_once(world, archive)
    assert archive.asked == [("SERIES", 1)]


def test_patience_ends_without_an_object_or_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    now, changed, is_open = [0.0], [1.0], [True]
    monkeypatch.setattr(dimse_source.time, "monotonic", lambda: now[0])
    patience = dimse_source._Patience(lambda: changed[0], lambda: is_open[0])
    now[0] = dimse_source.LONGEST_SILENCE - 1
    assert patience.waits()
    changed[0] = 2.0
    assert patience.waits()
    now[0] += dimse_source.LONGEST_SILENCE - 1
    assert patience.waits()
    is_open[0] = False
    assert not patience.waits()
    is_open[0] = True
    now[0] += 1
    assert not patience.waits()


def test_a_stop_does_not_wait_for_a_move(archive: QueryArchive, world: NodeInProcess) -> None:
    begun, over = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        begun.set()
        over.wait(ENOUGH)

    archive.moves = once(wait)
    polled(world, begun.is_set)
    thread = world.node._fetchers["NODE"].thread._thread
    world.stop()
    assert not thread.is_alive()
    over.set()
    world.start()
    all_arrive_once(world, archive)


def of_another_study(answer: Any) -> None:
    if answer.QueryRetrieveLevel != "STUDY":
        answer.StudyInstanceUID = "1.2.3.4"


def with_a_wildcard(answer: Any) -> None:
    if answer.QueryRetrieveLevel == "SERIES":
        answer.SeriesInstanceUID = "*"


def without_uid(answer: Any) -> None:
    if answer.QueryRetrieveLevel == "STUDY":
        del answer.StudyInstanceUID


@pytest.mark.parametrize(
    ("rewrites", "reason"),
    [
        (of_another_study, "its answer to C-FIND has another StudyInstanceUID than requested"),
        (with_a_wildcard, "its answer to C-FIND has no SeriesInstanceUID"),
        (without_uid, "its answer to C-FIND has no StudyInstanceUID"),
    ],
)
def test_an_answer_that_widens_a_request_is_rejected(
    rewrites: Callable[[Any], None], reason: str, archive: QueryArchive, world: NodeInProcess
) -> None:
    archive.rewrites = rewrites
    polled(world, lambda: world.events(Trouble))
    assert troubles(world) == [reason]
    assert archive.asked == []


@pytest.mark.process
def test_a_source_is_asked_over_tls_if_the_route_says_so(tmp_path: Path) -> None:
    issue = authority(tmp_path / "ca")
    node = issue("node")
    with query_archive_in_process(0, (), issue("archive").server_context()) as archive:
        source = Source(archive.peer, uses_tls=True)
        with connected(source, "NODE", node) as link:
            link.echo()
        plain = connected(replace(source, uses_tls=False), "NODE", node)
        with pytest.raises(ConnectionLostError), plain:
            pass
