"""A user's command that runs after failures, such as a mail or a request to a web server."""

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeAlias

Report: TypeAlias = Callable[[str], None]

PREFIX = "CUDA_CYCLEGAN_"
LONGEST_SECONDS = 60.0
"""Seconds after which the command is killed."""


class FailureHook:
    """Command that runs once for all failures of a while; thread-safe.

    command: for the shell; "" runs none. names: of everything that is counted. failures: those of
    which one is a reason to run. gather: seconds after the first failure until the command runs,
    unless `run_now` is called before. report: callback for a sentence if the command fails.
    """

    def __init__(
        self,
        command: str,
        names: Collection[str],
        failures: Collection[str],
        gather: float,
        report: Report,
    ) -> None:
        self._command, self._names, self._failures = command, names, failures
        self._gather, self._report = gather, report
        self._counts = Counter[str]()
        self._timer: threading.Timer | None = None
        self._lock, self._running = threading.Lock(), threading.Lock()

    def count(self, name: str) -> None:
        """Count one of the names, such as `failed`."""
        with self._lock:
            self._counts[name] += 1
            if self._command and name in self._failures and self._timer is None:
                self._timer = threading.Timer(self._gather, self._run)
                self._timer.daemon = True
                self._timer.start()

    def run_now(self) -> threading.Thread | None:
        """Run the command now if something failed since the last time; return the thread."""
        timer = self._timer
        if timer is None:
            return None
        timer.cancel()
        thread = threading.Thread(target=self._run, name="failure hook", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Run the command if something failed since the last time, and wait until none runs."""
        if thread := self.run_now():
            thread.join()
        with self._running:  # by a thread that the end of the program would not wait for
            pass

    def _run(self) -> None:
        with self._running:
            with self._lock:
                if self._timer is None:
                    return  # another thread ran it
                counts, self._counts, self._timer = self._counts, Counter[str](), None
            self._run_with(counts)

    def _run_with(self, counts: Counter[str]) -> None:
        variables = {f"{PREFIX}{name.upper()}": str(counts[name]) for name in self._names}
        # The queue's URL may contain a password.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
        try:
            done = subprocess.run(
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environment, **variables},
                timeout=LONGEST_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._report(f"Setting on-failure: the command failed ({type(error).__name__})")
            return
        if done.returncode:
            self._report(f"Setting on-failure: the command ended with status {done.returncode}")
