"""Peers that follow no rule: none of them stops the listener, or keeps others from it."""

import random
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dicom_network import (
    LIMITS,
    associate,
    associate_request,
    closed_by_peer,
    listening,
    pdu,
    raw,
)
from support.node_world import phantom

from cuda_cyclegan.io.dicom_network import commands
from cuda_cyclegan.io.dicom_network.connection import fragments
from cuda_cyclegan.io.dicom_network.errors import ProtocolError
from cuda_cyclegan.io.dicom_network.negotiation import AssociationRequest
from cuda_cyclegan.io.dicom_network.storage_commitment import asked_for

Attack = Callable[[socket.socket], None]


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
    link.sendall(associate_request())
    link.recv(65536)
    link.sendall(pdu(4, b"\0" * 100, 0xFFFFFFF0))


def send_broken_items(link: socket.socket) -> None:
    link.sendall(associate_request())
    link.recv(65536)
    link.sendall(pdu(4, b"\xff\xff\xff\xff\x01\x03abc"))


def send_a_broken_command(link: socket.socket) -> None:
    link.sendall(associate_request())
    link.recv(65536)
    link.sendall(pdu(4, b"\0\0\0\x08\x01\x03garbag"))


def send_data_without_a_command(link: socket.socket) -> None:
    link.sendall(associate_request())
    link.recv(65536)
    link.sendall(pdu(4, b"\0\0\0\x08\x01\x02garbag"))


def ask_twice(link: socket.socket) -> None:
    link.sendall(associate_request())
    link.recv(65536)
    link.sendall(associate_request())


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


def test_a_dcmtk_client_that_is_turned_away_says_so(tmp_path: Path) -> None:
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
