"""A worker process a device, replaced when it dies."""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, TypeAlias, cast

SHAKEN = 75
"""A child's exit status when it only wants to begin afresh."""

UNKNOWN = 255
"""A child's exit status as `multiprocessing` tells it when what it was forked from is killed."""

LEAVE: Final = signal.SIGUSR2
"""Tells a child to put its job back and end, where SIGTERM lets it finish the job. Not a second
SIGTERM: a service manager may send one to every process besides ours.
"""

HEALTHY_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 60.0
TICK_SECONDS = 0.2

Target: TypeAlias = Callable[[str], None]
"""What a child runs, given its device; it must be possible to pickle."""


class Member:
    """One device's process, and when its successor may start.

    The process holds one end of a pipe, so that its own end is known without the process that it
    was forked from, which may be killed and then tells nothing more.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.status: int | None = None
        self._process: BaseProcess | None = None
        self._end: Connection | None = None
        self._started = 0.0
        self._pause = 0.0
        self._due = 0.0

    def start_if_due(self, target: Target) -> None:
        """Start the process unless it runs, or its predecessor died a moment ago."""
        if self.runs or time.monotonic() < self._due:
            return
        self._started = time.monotonic()
        context = multiprocessing.get_context("forkserver")
        end, its_end = context.Pipe(duplex=False)
        self._end = cast("Connection", end)
        process = context.Process(
            target=_run, args=(target, self.device, its_end), name=self.device
        )
        with its_end, suppress(OSError, EOFError):  # which process it was forked from is killed
            process.start()
            self._process = process

    def just_ended(self) -> int | None:
        """The exit status, once; negative is a signal's number, and `UNKNOWN` is one untold."""
        if self._end is None or not self._end.poll():
            return None
        status = self._process.exitcode if self._process else UNKNOWN
        if status is None:
            return None
        self._end.close()
        if self._process:
            self._process.close()
        self._process = self._end = None
        if status == SHAKEN or time.monotonic() - self._started > HEALTHY_SECONDS:
            self._pause = 0.0
        self._due = time.monotonic() + self._pause
        self._pause = min(max(2 * self._pause, 0.25), LONGEST_PAUSE_SECONDS)
        return status

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self._process and self._process.pid and self._end and not self._end.poll():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    @property
    def runs(self) -> bool:
        """Whether the process has not ended yet."""
        return self._end is not None

    @property
    def sentinels(self) -> "list[Connection | int]":
        """What becomes ready when the process ends; nothing while there is none."""
        if self._end is None:
            return []
        if self._process and self._end.poll():
            return [self._process.sentinel]  # it is gone, and its exit status is to be told
        return [self._end]


def _run(target: Target, device: str, _end: Connection) -> None:
    target(device)


class Crew:
    """One member a device, forked from a process that has imported what they need, so that a
    successor is at work at once. That process does nothing else: it has no device, and the threads
    that libraries start on import wait there and hold no lock. If it is killed, the members go on,
    and the next one to start is forked from a new one.

    modules: what is imported there. final: exit statuses after which a member is not replaced.
    died: told of every other. stopping: told of the signal when a stop is passed on.
    """

    def __init__(
        self,
        target: Target,
        devices: Sequence[str],
        modules: Sequence[str],
        final: Collection[int],
        died: Callable[[str, int], None],
        stopping: Callable[[int], None],
    ) -> None:
        _prepare_to_fork(modules)
        self._target = target
        self._members = [Member(device) for device in devices]
        self._final = final
        self._died, self._told = died, stopping
        self._asked: deque[int] = deque()
        self._stopping = False

    def stop(self, number: int) -> None:
        """Let all members end after their jobs, and start no new ones; asked again, at once.

        For a signal's handler, which may stand in the middle of anything: `run` acts upon it.
        """
        self._asked.append(number)

    def run(self) -> int:
        """Keep the crew complete until every member ended for good; the worst exit status."""
        while not all(member.status is not None for member in self._members):
            while self._asked:
                self._pass_on(self._asked.popleft())
            for member in self._members:
                self._care_for(member)
            wait([end for member in self._members for end in member.sentinels], TICK_SECONDS)
        return max(member.status or 0 for member in self._members)

    def _pass_on(self, number: int) -> None:
        self._told(number)
        order = LEAVE if self._stopping else signal.SIGTERM
        self._stopping = True
        for member in self._members:
            member.tell(order)

    def _care_for(self, member: Member) -> None:
        if member.status is not None:
            return
        status = member.just_ended()
        if status is not None:
            if status in self._final:
                member.status = status
                return
            if not self._stopping:
                self._died(member.device, status)
        if self._stopping and not member.runs:
            member.status = 0
        elif not self._stopping:
            member.start_if_due(self._target)


def _prepare_to_fork(modules: Sequence[str]) -> None:
    """Start the process to fork from, so that neither Ctrl-C nor a closed terminal ends it."""
    multiprocessing.set_forkserver_preload(list(modules))
    ignored = signal.SIGHUP, signal.SIGINT  # which a new process inherits
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    forkserver.ensure_running()
    for number, handler in before.items():
        signal.signal(number, handler)
