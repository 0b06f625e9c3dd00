"""Progress as a live display of two bars: the batch, and the current study."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from ...pipelines.events import (
    BatchStarted,
    DeviceOpened,
    Event,
    Pace,
    Remark,
    StudyDone,
    Tuning,
    Worked,
)
from .progress_lines import device_line, opening_line, tuning_line
from .tables import shortened
from .terminal import broken
from .text import duration, printable, printable_lines, scaled

WIDEST = 120
ECHO = "^C"
"""Text that a terminal adds after the bars; on a full line it would scroll them out of reach."""


class LiveProgress:
    """Context manager that draws on a terminal from the start of a batch until `__exit__`.

    The names of failed studies stay on the screen above the bars; reasons and successful studies
    are shown at the end.
    """

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._width = min(console.width - len(ECHO), WIDEST)
        self._name_width = max(12, self._width // 3)
        self._pace = Pace()
        self._shown = ""
        self._tuning: Tuning | None = None
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}", markup=False, justify="right"),
            TextColumn("{task.fields[speed]}", markup=False, justify="right"),
            console=Console(file=console.file, width=self._width),
            transient=True,
            expand=True,
        )
        self._batch = self._progress.add_task("Studies", count="", speed="", total=None)
        self._study = self._progress.add_task("", count="", speed="", total=None, visible=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Worked):
            return
        self._pace.handle(event)
        match event:
            case Remark(text):
                self._print_sentence(f"note: {printable(text)}")
            case BatchStarted(planned):
                self._print_sentence(opening_line(planned))
                self._progress.start()  # not before, as a question may have to be answered
            case Tuning(_, share):
                if share == 1:
                    self._print_sentence(tuning_line(share))
                self._tuning = event if share < 1 else None
            case DeviceOpened(device, note):
                self._print_sentence(device_line(device, note))
            case StudyDone(row, trace):
                if row.failure:
                    kind = row.failure.kind
                    width = self._console.width - len(ECHO) - len("failed : ") - len(kind)
                    self._print_sentence(f"failed {shortened(printable(row.name), width)}: {kind}")
                if trace and self._verbose:
                    self._progress.console.print(Text(printable_lines(trace)))
            case _:
                pass
        self._draw()

    def _draw(self) -> None:
        pace = self._pace
        left = f"{duration(pace.seconds_left)} left" if pace.seconds_left is not None else ""
        self._progress.update(
            self._batch,
            completed=pace.done,
            total=pace.total,
            count=f"{pace.done}/{pace.total}",
            speed=left,
        )
        if self._tuning:
            self._draw_tuning(self._tuning)
            return
        if pace.study != self._shown:
            self._shown = pace.study
            name = shortened(printable(pace.study), self._name_width)
            self._progress.reset(self._study, total=None)
            self._progress.update(self._study, description=name, visible=True)
        done, total = pace.patches
        rate = pace.patches_per_second
        self._progress.update(
            self._study,
            completed=done,
            total=total or None,
            count=f"{_volume(pace)}{done}/{total} {pace.unit}" if total else "",
            speed=f"{scaled_rate(rate)} {pace.unit}/s" if rate else "",
        )

    def _draw_tuning(self, tuning: Tuning) -> None:
        self._shown = ""
        self._progress.update(
            self._study,
            description=shortened("Tuning this GPU (once)", self._name_width),
            visible=True,
            completed=tuning.share,
            total=1,
            count=shortened(tuning.what, self._width // 2),
            speed="",
        )

    def _print_sentence(self, sentence: str) -> None:
        """Print above the bars, over the full width of the terminal."""
        for line in broken(sentence, self._console.width - len(ECHO)):
            self._progress.console.print(Text(line), soft_wrap=True)


def _volume(pace: Pace) -> str:
    """Return which volume of a series is in progress."""
    at, count = pace.volume
    return f"volume {at} of {count}, " if count > 1 else ""


def scaled_rate(rate: float) -> str:
    """Format patches per second, also if one takes many seconds."""
    return scaled(rate) if rate >= 100 else f"{rate:.3g}"
