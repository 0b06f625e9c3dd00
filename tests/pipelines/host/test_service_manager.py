"""Messages to systemd, which a socket of the test receives."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from support.waiting import ENOUGH

from cuda_cyclegan.pipelines.host.service_manager import notify, service_of_manager


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(ENOUGH)
        listening.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_a_service_reports_start_life_and_end(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    posted = SimpleQueue[Callable[[], None]]()
    with service_of_manager(posted.put):
        assert manager.recv(99) == b"READY=1"
        for _ in range(2):
            posted.get(timeout=ENOUGH)()  # one at a time, as the socket holds ten messages only
            assert manager.recv(99) == b"WATCHDOG=1"
    assert manager.recv(99) == b"STOPPING=1"


def test_a_stuck_loop_gives_no_sign_of_life(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    posted: list[object] = []
    with service_of_manager(posted.append):
        assert manager.recv(99) == b"READY=1"
    assert manager.recv(99) == b"STOPPING=1"


def test_a_socket_of_the_abstract_namespace_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0cuda-cyclegan-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@cuda-cyclegan-test-{os.getpid()}")
        notify("READY=1")
        assert listening.recv(99) == b"READY=1"


def test_without_a_manager_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing" / "socket"))
    notify("READY=1")
