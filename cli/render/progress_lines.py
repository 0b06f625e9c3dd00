"""Progress as plain lines, one per study, for logs and pipes; fewer with --quiet."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...pipelines.events import BatchStarted, DeviceOpened, Event, Remark, StudyDone, Tuning
from .terminal import print_line, print_sentences
from .text import counted, flagged, memory, printable, printable_lines, scaled, seconds

if TYPE_CHECKING:
    from ...pipelines.report.report import Failure, StudyReport
    from ...pipelines.results.resume import PlannedStudy


class PlainLines:
    """Listener that prints a batch's events on stderr."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._done = self._total = 0
        self._tuning_lines: set[str] = set()

    def __call__(self, event: Event) -> None:
        print_sentences(self._lines(event), sys.stderr)
        if isinstance(event, StudyDone) and event.trace and self._verbose:
            print_line(printable_lines(event.trace), sys.stderr)

    def _lines(self, event: Event) -> Iterator[str]:
        match event:
            case Remark(text):
                yield f"note: {printable(text)}"
            case BatchStarted(planned):
                self._total = len(planned)
                if not self._quiet:
                    yield opening_line(planned)
            case Tuning(_, share):
                line = tuning_line(share)
                if not self._quiet and line not in self._tuning_lines:  # layers may come one by one
                    self._tuning_lines.add(line)
                    yield line
            case DeviceOpened(device, note):
                if not self._quiet:
                    yield device_line(device, note)
            case StudyDone(row):
                self._done += 1
                if row.status == "failed" or not self._quiet:
                    yield f"[{self._done}/{self._total}] {study_line(row)}"
            case _:
                pass


def device_line(device: str, note: str | None) -> str:
    """Name the device that computes, with the reason if it was chosen automatically."""
    return f"Device: {device}" + (f" ({note})" if note else "")


def tuning_line(share: float) -> str:
    """Report start, with a share of 0 or little, and end of the measurement of tactics."""
    if share < 1:
        return (
            "Tuning: measuring tactics of the convolutions on this GPU (once; --tune sets the "
            "level)"
        )
    return "Tuning: done and stored for later starts"


def opening_line(planned: "tuple[PlannedStudy, ...]") -> str:
    """Count studies that are translated, translated again with the reason, kept, or refused."""
    due = [plan for plan in planned if plan.action == "translate"]
    again = Counter(plan.reason for plan in due if plan.reason)
    parts = [f"{len(due)} to translate"]
    parts += [f"{count} of them again because {reason}" for reason, count in again.items()]
    actions = Counter(plan.action for plan in planned)
    if kept := actions["keep"] + actions["preview"] + actions["sidecar"]:
        parts.append(f"{kept} up to date")
    if actions["preview"]:
        parts.append(f"{counted(actions['preview'], 'preview')} to draw from existing files")
    if actions["sidecar"]:
        parts.append(f"{counted(actions['sidecar'], 'sidecar')} to write")
    if actions["refuse"]:
        parts.append(f"{actions['refuse']} rejected")
    return f"{counted(len(planned), 'study', 'studies')}: {', '.join(parts)}"


def study_line(row: "StudyReport") -> str:
    """Return one study's outcome on one line."""
    name = printable(row.name)
    match row.status:
        case "translated":
            rate = scaled(row.voxels_per_second or 0)
            peak = f", peak {memory(row.peak_memory.bytes)}" if row.peak_memory else ""
            again = f" (again: {row.due})" if row.due else ""
            several = f", {row.volumes} volumes" if row.volumes > 1 else ""
            spent = f"{seconds(row.seconds)} s, {rate} voxels/s{peak}"
            return f"translated {name}{again}{several}: {spent}"
        case "failed":
            return f"failed {name}: {failure_text(row.failure)}"
        case "up to date" if row.drawn:
            return f"up to date {name}: preview drawn"
        case "up to date" | "interrupted":
            return f"{row.status} {name}"


def failure_text(failure: "Failure | None") -> str:
    """Return class and reason of a failure; empty if there is none."""
    return f"{failure.kind}: {printable(flagged(failure.reason))}" if failure else ""
