"""Results count as sent once each object is confirmed; one without an answer stops no other."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.dicom_network import archive
from support.node_in_process import DAY, NodeInProcess
from support.node_world import phantom
from support.waiting import eventually
from support.web_server import (
    FAILED,
    Answer,
    Archive,
    Asked,
    Reply,
    WebServer,
    item,
    receipt,
    web_server,
)

from cuda_cyclegan.io.dicom_network.web import WebPeer
from cuda_cyclegan.pipelines.node import delivery, periodic_thread
from cuda_cyclegan.pipelines.node.events import NotSent, SendingAbandoned, Sent

pytestmark = pytest.mark.process


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeInProcess]:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(periodic_thread, "POLL_SECONDS", 0.02)
    with NodeInProcess(tmp_path) as found:
        yield found


def translated(world: NodeInProcess, number: int = 0) -> None:
    """Have a result of twelve objects to be sent."""
    world.send(phantom(number, 12).datasets())
    world.queue_up()
    world.translate()


def over_the_web(world: NodeInProcess, answer: Answer) -> AbstractContextManager[WebServer]:
    """A server at the destination, to which the route sends from now on."""
    world.with_route(destination=WebPeer(f"http://127.0.0.1:{world.destination}/dicom-web"))
    return web_server(answer, world.destination)


def reason(world: NodeInProcess) -> str:
    [one] = world.series()
    return one.reason


class Forgetful:
    """A storage SCP that stores the third object but breaks off, and rejects what it has."""

    def __init__(self, status: int = 0x0111) -> None:
        self.copies = Counter[str]()
        self._status = status

    def answer(self, dataset: Any) -> int:
        uid = str(dataset.SOPInstanceUID)
        return self._status if self.copies[uid] > 1 else 0

    def aborts(self, dataset: Any) -> bool:
        self.copies[str(dataset.SOPInstanceUID)] += 1
        return self.copies.total() == 3


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_duplicate_of_what_was_sent_before_is_confirmed(
    is_restarted: bool, world: NodeInProcess
) -> None:
    peer = Forgetful()
    with archive(port=world.destination, status=peer.answer, aborts=peer.aborts):
        translated(world)
        if is_restarted:
            eventually(lambda: world.node.step() or world.events(NotSent))
            world.stop()
            world.start()
        world.wait_for_sends(1)
    assert sorted(peer.copies.values()) == [1] * 11 + [2]
    assert world.states() == ["sent"]


def test_a_duplicate_of_what_was_never_sent_is_not_confirmed(world: NodeInProcess) -> None:
    with archive(port=world.destination, status=0x0111):
        translated(world)
        eventually(lambda: world.node.step() or len(world.events(NotSent)) > 3)
    assert world.states() == ["sending"]
    [first, *_] = world.events(NotSent)
    assert "8 of 12 objects (0001.dcm" in first.reason
    assert first.reason.endswith("it answered C-STORE with status 0111")


def test_an_object_that_fails_for_good_holds_back_no_other(world: NodeInProcess) -> None:
    tries = Counter[int]()

    def status(dataset: Any) -> int:
        tries[int(dataset.InstanceNumber)] += 1
        return 0xC000 if dataset.InstanceNumber in (3, 7) else 0

    with archive(port=world.destination, status=status):
        translated(world)
        eventually(lambda: world.node.step() or len(world.events(NotSent)) > 1)
        once = {number for number, count in tries.items() if count == 1}
        assert once == {*range(1, 13)} - {3, 7}
        assert reason(world) == (
            "2 of 12 objects (0003.dcm, 0007.dcm): it answered C-STORE with status C000"
        )
        world.pass_time(8 * DAY)
        eventually(lambda: world.node.step() or world.events(SendingAbandoned))
    assert world.states() == ["undelivered"]
    assert "0003.dcm" in world.events(SendingAbandoned)[0].reason


def test_objects_at_which_a_destination_always_breaks_off_come_last(world: NodeInProcess) -> None:
    stored = set[int]()

    def aborts(dataset: Any) -> bool:
        return dataset.InstanceNumber in (2, 5) or bool(stored.add(dataset.InstanceNumber))

    with archive(port=world.destination, aborts=aborts):
        translated(world)
        eventually(lambda: world.node.step() or len(stored) == 10)
    assert world.states() == ["sending"]


def test_objects_wait_if_those_before_them_are_all_refused(world: NodeInProcess) -> None:
    seen: list[int] = []

    def status(dataset: Any) -> int:
        seen.append(dataset.InstanceNumber)
        return 0xA700

    with archive(port=world.destination, status=status):
        translated(world)
        eventually(lambda: world.node.step() or len(seen) >= 16)
    assert seen[:16] == [*range(1, 13), *range(1, 5)]
    assert "8 of 12 objects" in world.events(NotSent)[0].reason


def test_a_warning_is_on_record_with_the_result(world: NodeInProcess) -> None:
    with archive(
        port=world.destination, status=lambda one: 0xB007 if one.InstanceNumber < 3 else 0
    ):
        translated(world)
        world.wait_for_sends(1)
    assert reason(world) == world.events(Sent)[0].remark == "2 stored with warning B007"
    assert world.states() == ["sent"]


LIES: dict[str, Callable[[Asked], Reply | bytes | None]] = {
    "empty answers": lambda _: Reply(),
    "a login page": lambda _: Reply(body=b"<html>", media="text/html"),
    "a redirect": lambda _: Reply(307, headers={"Location": "http://localhost/"}),
    "hanging up": lambda _: None,
}


@pytest.mark.parametrize("name", LIES)
def test_nothing_is_sent_or_removed_without_a_confirmation(name: str, world: NodeInProcess) -> None:
    with over_the_web(world, LIES[name]) as server:
        translated(world)
        eventually(lambda: world.node.step() or len(world.events(NotSent)) > 2)
        assert world.states() == ["sending"]
        world.pass_time(8 * DAY)
        eventually(lambda: world.node.step() or world.events(SendingAbandoned))
        world.pass_time(2 * DAY)
    assert world.states() == ["undelivered"]
    assert reason(world)
    assert server.asked
    assert len(world.objects()) == 12


def test_a_lost_answer_over_the_web_is_settled_by_a_search(world: NodeInProcess) -> None:
    held, posts = Archive(), Counter[str]()

    def answer(one: Asked) -> Reply | None:
        if one.method == "POST":
            posts[one.instance] += 1
        reply = held.answer(one)
        return None if posts.total() == 3 and one.method == "POST" else reply

    with over_the_web(world, answer):
        translated(world)
        world.wait_for_sends(1)
    assert set(posts.values()) == {1}
    assert len(held.held) == 12


def test_a_lost_answer_is_settled_by_a_failure_without_a_search(world: NodeInProcess) -> None:
    held, posts = Archive(), Counter[str]()

    def answer(one: Asked) -> Reply | None:
        if one.method == "GET":
            return Reply(404)
        posts[one.instance] += 1
        if posts[one.instance] > 1:
            return receipt(FAILED, item(one.instance, _00081197=45070), status=409)
        reply = held.answer(one)
        return None if posts.total() == 3 else reply

    with over_the_web(world, answer):
        translated(world)
        world.wait_for_sends(1)
    assert sorted(posts.values()) == [1] * 11 + [2]


def test_object_that_a_server_shows_only_later_is_not_sent_again(world: NodeInProcess) -> None:
    """A server may answer 202 and store later."""
    held, posts = Archive(), Counter[str]()

    def answer(one: Asked) -> Reply:
        if one.method == "POST":
            posts[one.instance] += 1
            held.keep(one.content)
            return Reply(202)
        return held.found(one) if len(posts) == 12 else Reply(204)

    with over_the_web(world, answer):
        translated(world)
        world.wait_for_sends(1)
    assert set(posts.values()) == {1}
