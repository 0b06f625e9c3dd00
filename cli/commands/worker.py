"""`cuda-cyclegan worker`: a process a device that does the jobs of the queue."""

import signal
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ...engine.options import TUNING_SECONDS
from ...pipelines.errors import QueueLostError
from ..errors import Exit, complain, sentence, status, told
from ..options.queue import QueueOption
from ..options.translate import DEVICES, BatchSize, Tune, TuneSeconds, VramLimit
from ..options.values import checked_device, cuda_limits
from ..render.terminal.settings import flagged
from ..render.terminal.streams import say, settle
from ..render.terminal.text import counted, printable, seconds

if TYPE_CHECKING:
    from ...pipelines.jobs.queue.location import QueuePlace
    from ...pipelines.jobs.worker.messages import WorkerEvent, WorkerSettings

EXAMPLE = """\b
Examples:
  cuda-cyclegan worker
  cuda-cyclegan worker --device cuda:0,1 --until-empty
  cuda-cyclegan worker --queue postgresql://worker@dbhost/jobs
"""


def worker(
    queue: QueueOption = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:N[,M]",
            autocompletion=lambda: list(DEVICES),
            help="One process for each GPU named.",
        ),
    ] = "auto",
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when no job is left that may start now.")
    ] = False,
    tries: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Give a job up when this many workers died of it."),
    ] = 3,
    vram_limit: VramLimit = None,
    batch: BatchSize = "auto",
    tune: Tune = "full",
    tune_seconds: TuneSeconds = TUNING_SECONDS,
    yield_to_others: Annotated[
        bool,
        typer.Option(
            "--yield-to-others", help="Start no job while other programs use the GPU much."
        ),
    ] = False,
    yield_memory: Annotated[
        int, typer.Option(metavar="MIB", min=0, help="How much of its memory they may hold.")
    ] = 1024,
    yield_load: Annotated[
        int, typer.Option(metavar="PERCENT", min=0, help="How busy they may keep it.")
    ] = 20,
) -> None:
    """Do the jobs of the queue, until stopped.

    One process for each device keeps the model loaded from job to job. A worker takes over what a
    killed one left.

    SIGTERM or Ctrl-C: end after the jobs at hand; a second time: put them back and end at once.
    """
    asked = checked_device(device)
    limits = cuda_limits(vram_limit, tune, tune_seconds, batch)
    with told(verbose=False):
        from ...pipelines.jobs.queue.location import queue_place
        from ...pipelines.jobs.worker.crew import Crew
        from ...pipelines.jobs.worker.messages import Manners, WorkerSettings

        manners = Manners(yield_memory << 20, yield_load) if yield_to_others else None
        devices = _devices(asked)
        settings = WorkerSettings(until_empty, tries, manners, limits, sharing=len(devices))
        child = _Child(queue_place(queue), settings)
        crew = Crew(child, devices, _MODULES, _FINAL, _tell_death, _tell_stop)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                signal.signal(number, lambda asked, _: crew.stop(asked))
        raise typer.Exit(crew.run())


_FINAL = (Exit.DONE, Exit.USAGE)
_MODULES = ("cuda_cyclegan.cli.app", __name__, "cuda_cyclegan.pipelines.jobs.worker.process")


@dataclass(frozen=True, slots=True)
class _Child:
    """What each process runs."""

    place: "QueuePlace"
    settings: "WorkerSettings"

    def __call__(self, device: str) -> None:
        settle()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from ...pipelines.jobs.worker.crew import SHAKEN
        from ...pipelines.jobs.worker.process import work

        try:
            end = work(self.place, device, self.settings, _Log(device))
        except QueueLostError as error:
            complain(f"worker for {device}: {error}")
            sys.exit(Exit.SOME_FAILED)  # the crew tries again, later and later
        except Exception as error:
            complain(f"worker for {device}: {sentence(error)}")
            sys.exit(status(error))
        if end == "empty":
            _log(f"{device}: no job is left that may start now")
        sys.exit(SHAKEN if end == "shaken" else Exit.DONE)


@dataclass(frozen=True, slots=True)
class _Log:
    """One line an event; names of studies stay in the queue, where only its owner reads them."""

    device: str

    def __call__(self, event: "WorkerEvent") -> None:
        from ...pipelines.jobs.worker.messages import (
            JobEnded,
            JobStarted,
            TuningBegan,
            TuningEnded,
            Waiting,
        )
        from ...pipelines.progress.events import Remark

        match event:
            case JobStarted(job):
                self._say(f"{job} started")
            case JobEnded(job, None):
                self._say(f"{job} given up: too many workers died of it")
            case JobEnded(job, row) if row is not None:
                kind = f": {row.failure.kind}" if row.failure else ""
                self._say(f"{job} {row.status}{kind}, {seconds(row.seconds)} s")
            case Waiting(reason):
                self._say(flagged(reason or "waiting for jobs that may start"))
            case Remark(text):
                self._say(text)
            case TuningBegan():
                self._say("tuning: trying plans of the convolutions on this GPU")
            case TuningEnded(spent, plans):
                self._say(f"tuning done: {counted(plans, 'plan')} kept, {seconds(spent)} s")
            case _:
                pass

    def _say(self, text: str) -> None:
        _log(f"{self.device}: {printable(text)}")


def _devices(asked: str) -> list[str]:
    """One device a process; without numbers, every card that can be used."""
    from ...engine.devices import choose_device

    _, _, numbers = asked.partition(":")
    if numbers:
        named = [f"cuda:{number}" for number in dict.fromkeys(numbers.split(","))]
        return [device for device in named if choose_device(device)]
    if choose_device(asked).kind == "cpu":
        return ["cpu"]
    from ...engine.probe.cards import OLDEST_CAPABILITY, cuda_devices

    usable = [card for card in cuda_devices() if card.capability >= OLDEST_CAPABILITY]
    return [f"cuda:{card.index}" for card in usable]


def _tell_death(device: str, status: int) -> None:
    why = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    _log(f"{device}: the worker ended ({why}); starting another")


def _tell_stop(number: int) -> None:
    name = signal.Signals(number).name
    _log(f"{name}: ending after the jobs at hand; once more: at once")


def _log(text: str) -> None:
    say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}", sys.stderr)
