"""Peers that follow no rule: none of them stops the listener, or keeps others from it."""

import errno
import os
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pynetdicom.sop_class import MRImageStorage
from support.dicom_network import (
    LIMITS,
    Store,
    associate,
    associate_request,
    closed_by_peer,
    listening,
    pdu,
    raw,
)
from support.node_world import phantom
from support.waiting import ENOUGH

from cuda_cyclegan.io.dicom import bounded_reading
from cuda_cyclegan.io.dicom_network import commands
from cuda_cyclegan.io.dicom_network.commands import DimseStatus, Field
from cuda_cyclegan.io.dicom_network.connection import fragments
from cuda_cyclegan.io.dicom_network.errors import ProtocolError
from cuda_cyclegan.io.dicom_network.listener import Listener
from cuda_cyclegan.io.dicom_network.negotiation import AssociationRequest
from cuda_cyclegan.io.dicom_network.objects import ObjectFile
from cuda_cyclegan.io.dicom_network.storage_commitment import asked_for

Attack = Callable[[socket.socket], None]


def begin_association(link: socket.socket) -> None:
    link.sendall(associate_request())
    link.recv(65536)


def send_random(link: socket.socket) -> None:
    link.sendall(random.Random(1).randbytes(5000))


def send_web(link: socket.socket) -> None:
    link.sendall(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")


def promise_much(link: socket.socket) -> None:
    link.sendall(pdu(1, b"\0" * 100, 0xFFFFFFF0))


def stop_in_the_request(link: socket.socket) -> None:
    link.sendall(associate_request()[:50])
    link.shutdown(socket.SHUT_WR)


def send_a_broken_request(link: socket.socket) -> None:
    body = bytearray(associate_request()[6:])
    body[70:90] = b"\xff" * 20
    link.sendall(pdu(1, bytes(body)))


def promise_much_data(link: socket.socket) -> None:
    begin_association(link)
    link.sendall(pdu(4, b"\0" * 100, 0xFFFFFFF0))


def send_broken_items(link: socket.socket) -> None:
    begin_association(link)
    link.sendall(pdu(4, b"\xff\xff\xff\xff\x01\x03abc"))


def send_a_broken_command(link: socket.socket) -> None:
    begin_association(link)
    link.sendall(pdu(4, b"\0\0\0\x08\x01\x03garbag"))


def send_data_without_a_command(link: socket.socket) -> None:
    begin_association(link)
    link.sendall(pdu(4, b"\0\0\0\x08\x01\x02garbag"))


def ask_twice(link: socket.socket) -> None:
    begin_association(link)
    link.sendall(associate_request())


def piece(data: bytes, control: int, context: int = 1) -> bytes:
    """A PDU of one fragment. control: 1 for a command, and 2 more for the last of it."""
    return pdu(4, (len(data) + 2).to_bytes(4, "big") + bytes([context, control]) + data)


def command(field: int, **elements: int | str) -> bytes:
    """Return the command of a message that comes with a data set."""
    named = {getattr(commands, name.upper()): value for name, value in elements.items()}
    reported: dict[int, int | str] = {commands.FIELD: field, commands.MESSAGE: 7}
    return commands.encoded(reported | {commands.DATA_SET: commands.WITH_DATA_SET} | named)


def send_a_command_within_a_data_set(link: socket.socket) -> None:
    begin_association(link)
    link.sendall(piece(command(FIND), 3) + piece(b"some of it", 0) + piece(command(FIND), 3))


def send_an_endless_command(link: socket.socket) -> None:
    begin_association(link)
    with suppress(OSError):  # it may be cut off before the last
        link.sendall(piece(b"\0" * 16384, 1) * 5)


def send_endless_data(link: socket.socket) -> None:
    begin_association(link)
    with suppress(OSError):  # it may be cut off before the last
        link.sendall(piece(command(FIND), 3) + piece(b"\0" * 65536, 0) * 17)


def send_under_another_context(link: socket.socket) -> None:
    begin_association(link)
    link.sendall(piece(command(FIND), 3, context=99))


FIND = 0x20
ATTACKS = (
    send_random,
    send_web,
    promise_much,
    stop_in_the_request,
    send_a_broken_request,
    promise_much_data,
    send_broken_items,
    send_a_broken_command,
    send_data_without_a_command,
    ask_twice,
    send_a_command_within_a_data_set,
    send_an_endless_command,
    send_endless_data,
    send_under_another_context,
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_peer_that_breaks_the_rules_is_cut_off(tmp_path: Path, attack: Attack) -> None:
    with listening(tmp_path) as (store, port):
        with raw(port) as link:
            attack(link)
            closed_by_peer(link)
        association = associate(port)
        [sent] = list(phantom(0, 2).datasets())[:1]
        assert association.send_c_store(sent).Status == 0
        association.release()
    assert store.leftovers == []


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (command(FIND), DimseStatus.UNRECOGNISED),
        (command(Field.ACTION, action=1), DimseStatus.CLASS_NOT_SUPPORTED),
        (command(Field.STORE, sop_class=MRImageStorage), DimseStatus.NOT_UNDERSTOOD),
        (command(Field.STORE, sop_class="1.2.3", instance="1.2"), DimseStatus.CLASS_NOT_SUPPORTED),
        (command(Field.STORE, sop_class=MRImageStorage, instance="1.2"), DimseStatus.OTHER_CLASS),
    ],
    ids=["an unknown request", "commitment", "no instance", "another class", "another object"],
)
def test_impossible_request_is_answered_and_the_association_continues(
    tmp_path: Path, asked: bytes, status: DimseStatus
) -> None:
    with listening(tmp_path) as (store, port), raw(port) as link:
        begin_association(link)
        for _ in range(2):
            link.sendall(piece(asked, 3) + piece(b"", 2))
            [answer] = fragments(memoryview(link.recv(65536)[6:]))
            reported = commands.parsed(bytes(answer.data))
            assert commands.number(reported, commands.STATUS) == status
            assert commands.number(reported, commands.ANSWERED) == 7
    assert store.leftovers == []


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 0xA700), (errno.EIO, 0x0110)], ids=["full", "broken"]
)
@pytest.mark.parametrize("method", ["write", "finish"])
def test_a_disk_that_fails_is_reported_to_the_peer_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, number: int, status: int
) -> None:
    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with listening(tmp_path) as (store, port):
        association = associate(port)
        [first, second] = list(phantom(0, 2).datasets())[:2]
        with monkeypatch.context() as patch:
            patch.setattr(ObjectFile, method, failing)
            assert association.send_c_store(first).Status == status
        assert association.send_c_store(second).Status == 0
        association.release()
    assert store.leftovers == []


def test_an_object_of_empty_items_is_refused_while_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydicom takes a kilobyte for each item."""
    monkeypatch.setattr(bounded_reading, "_FEW_ITEMS", 1_000)
    is_discarded, discard = threading.Event(), ObjectFile.discard

    def watched(file: ObjectFile) -> None:
        discard(file)
        is_discarded.set()

    monkeypatch.setattr(ObjectFile, "discard", watched)
    item = struct.pack("<HHI", 0xFFFE, 0xE000, 0)
    offered = command(Field.STORE, sop_class=MRImageStorage, instance="1.2")
    with listening(tmp_path) as (store, port), raw(port) as link:
        begin_association(link)
        link.sendall(piece(offered, 3))
        for _ in range(3):
            link.sendall(piece(item * 1_000, 0))
        assert is_discarded.wait(ENOUGH)
        assert store.claimed == 0
        assert store.leftovers == []
        link.sendall(piece(item, 2))
        [answer] = fragments(memoryview(link.recv(65536)[6:]))
        reported = commands.parsed(bytes(answer.data))
        assert commands.number(reported, commands.STATUS) == DimseStatus.NOT_UNDERSTOOD


def test_claim_for_an_object_is_released(tmp_path: Path) -> None:
    with listening(tmp_path) as (store, port):
        [first, second] = list(phantom(0, 2).datasets())[:2]
        association = associate(port)
        store.most = len(first.PixelData)
        assert association.send_c_store(first).Status == 0xA700
        store.most = 1 << 30
        assert association.send_c_store(second).Status == 0
        association.release()
        store.wait_for_ends(1)
    assert store.claimed == 0
    assert store.leftovers == []


def test_peers_that_ask_for_nothing_are_cut_off_after_a_while(tmp_path: Path) -> None:
    limits = replace(LIMITS, request_seconds=0.5)
    with listening(tmp_path, limits) as (store, port), raw(port) as silent, raw(port) as slow:
        with suppress(OSError):  # it may have been cut off by now
            slow.sendall(associate_request()[:20])
        assert closed_by_peer(silent) == closed_by_peer(slow) == b""
        store.wait_until_turned_away(2)


def test_a_peer_that_says_nothing_more_is_cut_off_after_a_while(tmp_path: Path) -> None:
    limits = replace(LIMITS, idle_seconds=0.2)
    with listening(tmp_path, limits) as (store, port), raw(port) as idle:
        idle.sendall(associate_request())
        assert closed_by_peer(idle)[0] == 2
        store.wait_for_ends(1)


def test_a_peer_that_sends_a_byte_now_and_then_does_not_last(tmp_path: Path) -> None:
    limits = replace(LIMITS, request_seconds=0.5)
    with listening(tmp_path, limits) as (_, port), raw(port) as link:
        link.settimeout(0.05)
        assert any(was_cut_off_after(byte, link) for byte in associate_request())


def was_cut_off_after(byte: int, link: socket.socket) -> bool:
    try:
        link.sendall(bytes([byte]))
        return link.recv(100) == b""
    except TimeoutError:
        return False
    except (BrokenPipeError, ConnectionResetError):
        return True


def test_half_open_connections_do_not_keep_an_honest_peer_out(tmp_path: Path) -> None:
    limits = replace(LIMITS, waiting=8)
    with listening(tmp_path, limits) as (store, port), ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(raw(port))
        association = associate(port)
        [sent] = list(phantom(0, 2).datasets())[:1]
        assert association.send_c_store(sent).Status == 0
        association.release()
        store.wait_for_ends(1)


def test_a_connection_that_is_accepted_while_the_listener_closes_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_accepted, is_closed, admit = threading.Event(), threading.Event(), Listener._admit

    def late(listener: Listener, link: socket.socket, address: str) -> None:
        is_accepted.set()
        assert is_closed.wait(ENOUGH)
        admit(listener, link, address)

    monkeypatch.setattr(Listener, "_admit", late)
    store = Store(tmp_path)
    with (
        Listener("127.0.0.1", 0, store, LIMITS, store.note_turned_away) as listener,
        raw(listener.port) as link,
    ):
        assert is_accepted.wait(ENOUGH)
        listener.close()
        is_closed.set()
        with suppress(OSError):  # it may have been cut off by now
            link.sendall(associate_request())
        assert closed_by_peer(link) == b""


def test_a_dcmtk_client_that_is_turned_away_reports_it(tmp_path: Path) -> None:
    from support.dicom_judges import judge

    with listening(tmp_path) as (_, port):
        asked = [judge("echoscu"), "-aec", "ELSE", "127.0.0.1", str(port)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "Called AE Title Not Recognized" in done.stdout + done.stderr
        asked = [judge("echoscu"), "-aet", "SENDER", "-aec", "NODE", "127.0.0.1", str(port)]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 0


@given(st.binary(max_size=300))
def test_any_bytes_are_a_command_or_refused(data: bytes) -> None:
    with suppress(ProtocolError):
        found = commands.parsed(data)
        commands.number(found, commands.FIELD)
        commands.uid(found, commands.INSTANCE)


@given(st.binary(max_size=300))
def test_any_bytes_are_items_of_a_pdu_or_refused(data: bytes) -> None:
    with suppress(ProtocolError):
        taken = sum(len(fragment.data) + 6 for fragment in fragments(memoryview(data)))
        assert taken == len(data)


@given(st.binary(max_size=600), st.integers(0, 400))
def test_any_bytes_in_a_request_for_an_association_are_read_or_refused(
    data: bytes, place: int
) -> None:
    body = associate_request()[6:]
    with suppress(ProtocolError):
        AssociationRequest(body[:place] + data + body[place:]).agreed()


@given(st.binary(max_size=300))
def test_any_bytes_ask_for_commitment_or_are_not_understood(data: bytes) -> None:
    asked_for(data, "1.2.840.10008.1.2")
