"""Audit trail that is sent to a syslog server: each message at least once."""

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import pytest
from support.audit_trails import codes
from support.certificates import authority

from cuda_cyclegan.io.dicom_network import syslog
from cuda_cyclegan.io.dicom_network.syslog import SyslogServer
from cuda_cyclegan.io.dicom_network.tls import Certificates
from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.pipelines.node import audit_messages, audit_sender, delivery
from cuda_cyclegan.pipelines.node.audit_files import AuditFiles, trail_files
from cuda_cyclegan.pipelines.node.audit_sender import POSITION, AuditSender, audit_trail
from cuda_cyclegan.pipelines.node.events import NodeEvent, Trouble

pytestmark = pytest.mark.process
Issue = Callable[[str], Certificates]


class Receiver:
    """Syslog server of RFC 5425. is_away: whether it closes connections without reading."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context, self.is_away, self.data = context, False, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = SyslogServer("127.0.0.1", self.listener.getsockname()[1])
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()

    def serve(self) -> None:
        while True:
            try:
                plain, _ = self.listener.accept()
            except OSError:
                return
            with suppress(OSError), closing(plain):
                if self.is_away:
                    continue
                with self.context.wrap_socket(plain, server_side=True) as link:
                    data = b""
                    while piece := link.recv(1 << 16):
                        data += piece
                    self.data += data
                    link.unwrap()

    def messages(self) -> list[bytes]:
        """Messages by their octet counts."""
        found, rest = list[bytes](), self.data
        while rest:
            size, _, rest = rest.partition(b" ")
            found.append(rest[: int(size)])
            rest = rest[int(size) :]
        return found


class World:
    """Trail with a sender, whose thread is not started; `events` are those of both."""

    def __init__(self, folder: Path, server: SyslogServer, files: Certificates) -> None:
        self.folder, self.events = folder, list[NodeEvent]()
        folder.mkdir()
        self.now = 86400.0 * 20000
        self.trail = AuditFiles(folder, ["NODE"], self.events.append, lambda: self.now)
        self.server, self.files = server, files

    def record(self, count: int = 1) -> None:
        for _ in range(count):
            self.trail.record(audit_messages.activity(["NODÉ"], starts=True))
        self.write()

    def write(self) -> None:
        self.trail._thread.close()
        while self.trail.write():
            pass

    def sender(self) -> AuditSender:
        """Return a sender, as after a restart."""
        emit = self.events.append
        return AuditSender(self.folder, self.server, self.files, self.trail, ["NODE"], emit)

    def troubles(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Trouble)]


@pytest.fixture(scope="module")
def issue(tmp_path_factory: pytest.TempPathFactory) -> Issue:
    return authority(tmp_path_factory.mktemp("certificates") / "ca")


@pytest.fixture
def receiver(issue: Issue) -> Iterator[Receiver]:
    with closing(Receiver(issue("syslog").server_context())) as found:
        yield found


@pytest.fixture
def world(
    tmp_path: Path, receiver: Receiver, issue: Issue, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(syslog, "_REFUSAL_SECONDS", 0.05)
    return World(tmp_path / "audit", receiver.server, issue("node"))


def test_each_message_is_sent_once_across_restarts(world: World, receiver: Receiver) -> None:
    world.record(3)
    for _ in range(2):
        world.sender().close()
    assert len(receiver.messages()) == 3
    world.now += 86400.0
    world.record()
    world.sender().close()
    assert len(receiver.messages()) == 4
    assert not world.troubles()
    assert json.loads((world.folder / POSITION).read_text())["file"] == "20241005.jsonl"
    head, _, document = receiver.messages()[0].partition(b"\xef\xbb\xbf")
    priority, moment, host, name, process, kind, data = head.decode().split()
    assert (priority, name, kind, data) == ("<85>1", "cuda-cyclegan", "DICOM+RFC3881", "-")
    assert host == socket.gethostname()
    assert moment == "2024-10-04T00:00:00.000+00:00"
    assert process == str(os.getpid())
    root = ElementTree.fromstring(document)
    assert root.tag == "AuditMessage"
    assert root[1].attrib["AlternativeUserID"] == "AETITLES=NODÉ"


def test_messages_are_sent_in_batches(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_sender, "_BATCH", 2)
    world.record(5)
    sender = world.sender()
    assert sender.send_pending()
    assert len(receiver.messages()) == 2
    sender.close()
    assert len(receiver.messages()) == 5


def test_messages_wait_while_the_server_is_away(world: World, receiver: Receiver) -> None:
    world.record(2)
    sender, receiver.is_away = world.sender(), True
    assert not sender.send_pending()
    assert not sender.send_pending()
    for trouble in world.troubles():  # the system may name the break in several ways
        assert trouble.startswith(f"the audit trail is not sent to {world.server}: ")
        assert trouble.endswith(f"; its messages stay in {world.folder} and are sent later")
    assert world.troubles()
    assert not (world.folder / POSITION).exists()
    receiver.is_away = False
    assert sender.send_pending()
    assert len(receiver.messages()) == 2


def test_a_server_with_a_strangers_certificate_gets_nothing(
    world: World, receiver: Receiver, tmp_path: Path
) -> None:
    world.record()
    receiver.context = authority(tmp_path / "other")("stranger").server_context()
    sender = world.sender()
    for _ in range(2):
        assert not sender.send_pending()
    world.write()
    assert codes(world.folder) == ["110100/110120/0", "110113/110126/4"]
    assert not receiver.data
    assert "its certificate is not trusted" in world.troubles()[0]


def test_damaged_lines_and_lines_in_progress_are_not_sent(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_sender, "_BATCH", 1)
    world.record()
    [file] = trail_files(world.folder)
    line = file.read_bytes()
    file.write_bytes(b"{}\n\xff\n[1\n" + b"[" * 100_000 + b"\n" + line + line[:-1])
    sender = world.sender()
    sender.close()
    assert len(receiver.messages()) == 1
    assert world.troubles() == [f"a line of {file} is damaged, and is not sent"] * 4
    with file.open("ab") as more:
        more.write(b"\n")
    sender.close()
    assert len(receiver.messages()) == 2


def test_a_removed_file_is_reported(world: World, receiver: Receiver) -> None:
    world.record()
    world.sender().close()
    trail_files(world.folder)[0].unlink()
    world.now += 86400.0
    world.record()
    world.sender().close()
    assert len(receiver.messages()) == 2
    [trouble] = world.troubles()
    assert "20241004.jsonl is gone: any messages of it that were not sent" in trouble


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"file": "a", "offset": "b"}'])
def test_a_damaged_position_is_reported(world: World, receiver: Receiver, content: str) -> None:
    world.record()
    (world.folder / POSITION).write_text(content)
    sender = world.sender()
    assert not sender.send_pending()
    assert f"{POSITION} is damaged; remove it to send the whole trail again" in world.troubles()[0]
    (world.folder / POSITION).unlink()
    assert sender.send_pending()
    assert len(receiver.messages()) == 1


def test_the_stop_message_is_sent_too(tmp_path: Path, receiver: Receiver, issue: Issue) -> None:
    events, folder = list[NodeEvent](), tmp_path / "audit"
    with audit_trail(folder, receiver.server, issue("node"), ["NODE"], events.append, lambda: 0.0):
        pass
    assert len(receiver.messages()) == 2
    assert codes(folder) == ["110100/110120/0", "110100/110121/0"]
    assert not events


def test_a_position_that_cannot_be_stored_is_reported(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise WriteError("sent.json was not written: the disk is full.")

    world.record()
    sender = world.sender()
    with monkeypatch.context() as full:
        full.setattr(audit_sender, "whole_file", fail)
        full.setattr(delivery, "FIRST_PAUSE", 100.0)
        sender = world.sender()
        assert not sender.send_pending()
        assert not sender.send_pending()  # after a pause only
    assert len(receiver.messages()) == 1
    [trouble] = world.troubles()
    assert "sent.json was not written: the disk is full." in trouble
    assert world.sender().send_pending()
    assert len(receiver.messages()) == 2  # twice rather than never
