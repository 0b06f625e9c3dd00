"""What became of a study and of a batch, and the class of an exception that ended a study."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ...engine.errors import EngineError
from ...engine.probe.gpus import Energy
from ...io.errors import DiskFullError, ScanError, UnsupportedScanError, WriteError
from ..errors import (
    OccupiedError,
    OutputFolderAwaitedError,
    OutputFolderError,
    PreparationError,
    SettingsError,
    VerificationError,
)
from ..host.memory import PeakMemory, address_space_limit, is_out_of_memory
from ..host.thread_limits import NO_MORE_THREADS, is_out_of_threads
from ..settings import TranslateOptions
from ..stopwatch import NOT_ALWAYS, STAGES, Stage
from ..study.figures import CycleError, SeamScore, SpreadFigures, Verified

StudyStatus: TypeAlias = Literal["translated", "up to date", "failed", "interrupted"]
FailureClass: TypeAlias = Literal[
    "unreadable",
    "unsupported",
    "preparation",
    "engine",
    "memory",
    "occupied",
    "write",
    "internal",
]
"""Whose fault it was: the scan's (the first three), the machine's, or, "internal", ours."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a study has no result: the class, one line, and the stage in which it stopped.

    kind: that class. reason: that line. passes: whether it may go well later with nothing about
    the study changed, as when a disk has room again.
    """

    kind: FailureClass
    reason: str
    stage: Stage | None
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """What a scan or a result consists of, by its bytes alone.

    files: how many. bytes: in all. sha256: of a single file, its hash; of several, the hash of the
    sorted lines of their hashes, so that neither their names nor their order counts.
    """

    files: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StudyReport:
    """One study's row.

    name: its place below the output folder. due: why an older result was made anew, if there was
    one. seconds: in which some stage worked on it; stages: the parts of it that were reached.
    Reading includes hashing the input, writing includes hashing the output, finishing includes
    preview, seam score and verification. when: first and last moment of each stage, in seconds from
    the start of the batch, where that was recorded. voxels: of the source grid. peak_memory: while
    it was under way, with whatever was worked on beside it. preview: the picture beside the result,
    if one was asked for. notes: what a user should know about how the study was taken. source: the
    file, or the first of several. output: path of the result, made or not. status: what became of
    it. tiles: how many were translated. seams: their score, if it was asked for. verified: what a
    second computation came to, if it was asked for. cycle: how near the result comes back to the
    scan, where that is known. failure: why there is no result. drawn: whether
    a preview was drawn of a result that was up to date. source_content, output_content: the bytes
    of the scan and of the result, without its preview and its sidecars; None where they are not
    known. maps, sidecars: those beside the result. spread: what it comes to, if it was measured.
    volumes: how many of the source were translated one by one, into one result; voxels and tiles
    are those of all.
    """

    name: str
    source: Path
    output: Path
    status: StudyStatus
    due: str | None = None
    seconds: float = 0.0
    stages: Mapping[Stage, float] = field(default_factory=dict[Stage, float])
    when: Mapping[Stage, tuple[float, float]] = field(
        default_factory=dict[Stage, tuple[float, float]]
    )
    voxels: int = 0
    tiles: int = 0
    peak_memory: PeakMemory | None = None
    preview: Path | None = None
    seams: SeamScore | None = None
    verified: Verified | None = None
    failure: Failure | None = None
    notes: tuple[str, ...] = ()
    drawn: bool = False
    source_content: Content | None = None
    output_content: Content | None = None
    cycle: CycleError | None = None
    maps: tuple[Path, ...] = ()
    sidecars: tuple[Path, ...] = ()
    spread: SpreadFigures | None = None
    volumes: int = 1

    @property
    def warning(self) -> str:
        """Warning for the study's picture; empty for most."""
        return self.cycle.warning if self.cycle else ""

    @property
    def is_done(self) -> bool:
        """Whether the study has a result that is up to date."""
        return self.status in ("translated", "up to date")

    @property
    def under_way(self) -> tuple[float, float] | None:
        """Start of the first and end of the last work; None if that was not recorded."""
        if not self.when:
            return None
        starts, stops = zip(*self.when.values(), strict=True)
        return min(starts), max(stops)

    @property
    def voxels_per_second(self) -> float | None:
        """Source voxels by the study's seconds; None unless it was translated."""
        return _rate(self.voxels, self.seconds) if self.status == "translated" else None


@dataclass(frozen=True, slots=True)
class ModelName:
    """Which model a batch ran.

    name: of its card. path: of its file. sha256: of the file. established: by what it is known how
    it computes, in words.
    """

    name: str
    path: Path
    sha256: str
    established: str = "not recorded"

    @property
    def is_unproven(self) -> bool:
        """Whether nothing but a user's word says that it computes what its training did."""
        return self.established == "unproven"


@dataclass(frozen=True, slots=True)
class Skip:
    """Something among the inputs that looks like a scan or was asked for, and is not a study.

    missed: whether there may be scans behind it, so that what was asked for is not all done. path:
    where it lies. reason: why, in words. kind: rule by which it is passed over; empty for all else.
    """

    path: Path
    reason: str
    missed: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """Use of the seconds of a batch.

    wall: from the first work on any study to the last. busy: of all stages of all studies
    together. computing: in which a device ran the network, of all devices together.
    """

    wall: float
    busy: float
    computing: float
    devices: int

    @property
    def overlap(self) -> float:
        """Stages that were at work at a time, on average; 1 where nothing overlapped."""
        return self.busy / self.wall if self.wall else 0.0

    @property
    def computing_share(self) -> float:
        """Share of the wall time in which the devices ran the network."""
        return self.computing / (self.wall * self.devices) if self.wall and self.devices else 0.0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch's rows, and the conditions that they were made under.

    options: without a precision where that was left to several workers, each for its device.
    started: ISO 8601 with zone. ignored: how many files of other kinds lay among the inputs.
    not_reached: studies that the network had not begun with when the batch was interrupted. model:
    that was run. device: in words. output: the folder. seconds: of wall time. use: of those
    seconds. studies: their rows, in order. skipped: what is no study. runs: of the program that the
    batch took so far; their seconds count together. command: the words that were typed for the last
    of them, without passwords; none where no command line asked. energy: of the cards meanwhile,
    None where that is not counted.
    """

    model: ModelName
    options: TranslateOptions
    device: str
    output: Path
    started: str
    seconds: float
    use: Use
    studies: tuple[StudyReport, ...]
    skipped: tuple[Skip, ...]
    ignored: int = 0
    not_reached: int = 0
    runs: int = 1
    command: tuple[str, ...] = ()
    energy: Energy | None = None

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the batch before its last study."""
        return self.not_reached > 0 or self.count("interrupted") > 0

    @property
    def failures(self) -> tuple[StudyReport, ...]:
        """The failed rows."""
        return tuple(row for row in self.studies if row.status == "failed")

    def count(self, status: StudyStatus) -> int:
        """Return the number of rows with this status."""
        return sum(row.status == status for row in self.studies)

    @property
    def previews_drawn(self) -> int:
        """Number of results that were up to date and got a preview."""
        return sum(row.drawn for row in self.studies)

    def translated(self) -> tuple[StudyReport, ...]:
        """The rows that were made in this run."""
        return tuple(row for row in self.studies if row.status == "translated")

    def by_start(self) -> list[tuple[tuple[float, float], StudyReport]]:
        """Return the recorded times of studies with their rows, ordered by start."""
        rows = ((interval, row) for row in self.studies if (interval := row.under_way))
        return sorted(rows, key=lambda pair: pair[0])

    def stages(self) -> dict[Stage, float]:
        """Return seconds per stage over translated studies; some stages only if there were any."""
        rows = self.translated()
        spent: dict[Stage, float] = {}
        for stage in STAGES:
            seconds = math.fsum(row.stages.get(stage, 0.0) for row in rows)
            if seconds or stage not in NOT_ALWAYS:
                spent[stage] = seconds
        return spent

    @property
    def voxels_per_second(self) -> float | None:
        """Source voxels of the translated studies by the wall time in which any was under way."""
        return _rate(sum(row.voxels for row in self.translated()), self.use.wall)

    def shared_joules(self) -> dict[str, float]:
        """Return the energy by study name, apportioned by time in the network.

        Empty where it is not known.
        """
        spent = {row.name: row.stages["infer"] for row in self.studies if "infer" in row.stages}
        computing = sum(spent.values())
        if self.energy is None or not computing:
            return {}
        return {name: self.energy.joules * part / computing for name, part in spent.items()}

    @property
    def worst_seam(self) -> float | None:
        """The largest seam score of any study."""
        scores = [row.seams.worst for row in self.studies if row.seams]
        return max((score for score in scores if score is not None), default=None)

    @property
    def worst_verified(self) -> float | None:
        """The largest error of any study that was verified."""
        return max((row.verified.error for row in self.studies if row.verified), default=None)

    @property
    def cycles(self) -> tuple[CycleError, ...]:
        """The cycle errors of all studies where they are known."""
        return tuple(row.cycle for row in self.studies if row.cycle)

    @property
    def worst_spread(self) -> float | None:
        """The largest mean deviation of any study whose spread was measured."""
        return max((row.spread.deviation for row in self.studies if row.spread), default=None)

    @property
    def peak_memory(self) -> PeakMemory | None:
        """The largest peak of any study."""
        peaks = [row.peak_memory for row in self.studies if row.peak_memory]
        return max(peaks, key=lambda peak: peak.bytes, default=None)


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if amount and seconds else None


_CLASSES: dict[FailureClass, tuple[type[Exception], ...]] = {
    "write": (WriteError, OutputFolderError),
    "unsupported": (UnsupportedScanError,),
    "unreadable": (ScanError,),
    "preparation": (PreparationError,),
    "engine": (EngineError, SettingsError, VerificationError),
    "occupied": (OccupiedError,),
    "memory": (MemoryError,),
}


_PASSING = (DiskFullError, OutputFolderAwaitedError)


def failure_of(error: Exception, stage: Stage | None, volume: str = "") -> Failure:
    """Return the class and message of an exception in this stage.

    volume: of a series that was being made, in words; empty where there is but one.
    """
    kind = _class(error)
    reason = str(error)
    if kind == "internal" and is_out_of_memory(error):
        kind = "memory"
    if kind == "memory":
        reason = _memory_advice()
    if kind == "internal" and is_out_of_threads(error):
        kind, reason = "memory", NO_MORE_THREADS
    if kind == "internal":
        reason = (
            f"{type(error).__name__}: {error}; this looks like a fault of the program, please "
            "report it with what setting verbose prints."
        )
    if volume and stage != "write":
        reason = f"In {volume}: {reason}"
    return Failure(kind, " ".join(reason.split()), stage, isinstance(error, _PASSING))


def _memory_advice() -> str:
    limit = address_space_limit()
    if limit is None:
        return "There is not enough memory for this study; close other programs."
    return (
        "There is not enough memory for this study, as this program may have no more than "
        f"{limit / 2**30:.1f} GiB of address space; raise that limit (ulimit -v)."
    )


def _class(error: Exception) -> FailureClass:
    for kind, errors in _CLASSES.items():
        if isinstance(error, errors):
            return kind
    return "internal"
