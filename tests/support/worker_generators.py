"""Generators that worker processes open by name; a shared folder says what happens in them."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.numerics_models import FunctionGenerator
from support.waiting import eventually

from cuda_cyclegan.engine.devices import Device, open_generator
from cuda_cyclegan.engine.errors import CudaError, EngineError
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.options import Precision, Progress
from cuda_cyclegan.pipelines.results import storing

LONG = 600.0
LET_GO = "let go"
LOSS = CudaError("cuStreamSynchronize", "ECC error", "start again", is_sticky=True)


@dataclass(frozen=True)
class Opener:
    """Opener of an identity in a worker; picklable.

    folder: where each call leaves a file named by its process. refuse: does not open at all.
    opens: how many processes may open it.
    broken: how many openings, of all processes together, end their process as kill -9 does.
    deaths: how many calls, of all processes together, end their process as kill -9 does.
    losses: how many calls find that the card is gone. brightest: patches with a mean above this
    end their process too, and with a mean above `losing` they end the card. seconds: that every
    call takes. together: how many processes must have a study before any may compute. holding: how
    many calls, of all processes together, get on before the others wait for `let_go`.
    recording_late: results are recorded then, too.
    """

    folder: Path
    refuse: bool = False
    opens: float = float("inf")
    broken: int = 0
    deaths: int = 0
    losses: int = 0
    brightest: float = float("inf")
    losing: float = float("inf")
    seconds: float = 0.0
    together: int = 1
    holding: int | None = None
    recording_late: bool = False

    @contextmanager
    def __call__(self, *_: object) -> Iterator[FunctionGenerator]:
        if self.refuse or len(list(self.folder.glob("open *"))) >= self.opens:
            raise EngineError("The card fell off the bus.")
        if self._is_due("broken", self.broken):
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"open {os.getpid()}").touch()
        files_at = storing.files_at

        def late(target: Path) -> list[Path]:
            eventually((self.folder / LET_GO).exists)
            return files_at(target)

        if self.recording_late:
            storing.files_at = late
        yield FunctionGenerator(self._run)

    def _run(self, patches: FloatArray) -> FloatArray:
        time.sleep(self.seconds)
        (self.folder / f"has a study {os.getpid()}").touch()
        eventually(lambda: len(list(self.folder.glob("has a study *"))) >= self.together)
        if self.holding is not None and not self._is_due("passed", self.holding):
            eventually((self.folder / LET_GO).exists, LONG)
        (self.folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        if self._is_due("death", self.deaths):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_due("loss", self.losses):
            raise LOSS
        if float(patches.mean()) > self.losing:
            (self.folder / f"lost {os.getpid()}").touch()
            raise LOSS
        if float(patches.mean()) > self.brightest:
            os.kill(os.getpid(), signal.SIGKILL)
        return patches

    def _is_due(self, what: str, times: int) -> bool:
        for number in range(times):
            try:
                (self.folder / f"{what} {number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False

    def let_go(self) -> None:
        """Let all get on that wait, in whichever process."""
        (self.folder / LET_GO).touch()

    def processes(self) -> set[str]:
        """Return the processes that have translated something."""
        return {file.name.partition("-")[0] for file in self.folder.glob("*-*")}


@dataclass(frozen=True)
class WrongOpener:
    """Opener of networks on the CPU, in a worker, whose results are off by a factor; picklable."""

    factor: float

    @contextmanager
    def __call__(
        self,
        network: Network,
        device: Device,
        patch: Triple,
        precision: Precision,
        progress: Progress,
    ) -> Iterator[FunctionGenerator]:
        with open_generator(network, device, precision, patch, progress) as right:
            yield FunctionGenerator(lambda patches: right(patches) * np.float32(self.factor))
