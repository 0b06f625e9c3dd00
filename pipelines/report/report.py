"""Reports of a study and of a batch, and the class of an exception that ended a study."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ...engine.errors import EngineError
from ...engine.model.calibration import ResultReference
from ...engine.probe.gpus import Energy
from ...io.errors import DiskFullError, ScanError, UnsupportedScanError, WriteError, unexpected
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
from ..study.figures import CycleError, Measures, SeamScore, SpreadFigures, Verified

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
"""Cause of a failure: the scan (the first three), the machine, or this program ("internal")."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a study: the class, one line, and the stage in which it stopped.

    kind: that class. reason: that line. passes: whether the study may succeed later unchanged, such
    as when a disk has free space again.
    """

    kind: FailureClass
    reason: str
    stage: Stage | None
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a scan or a result, by its bytes only.

    files: number of files. bytes: total size. sha256: hash of a single file; for several, the hash
    of the sorted lines of their hashes, so that neither their names nor their order counts.
    """

    files: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StudyReport:
    """Row of one study.

    name: its path below the output folder. due: reason why an older result was made again, if there
    was one. seconds: time in which some stage worked on it; stages: seconds of each stage reached.
    Reading includes hashing the input, writing includes hashing the output, finishing includes
    preview, seam score and verification. when: start and end of each stage, in seconds from the
    start of the batch, if recorded. voxels: voxels of the source grid. peak_memory: peak while it
    was in flight, including concurrent work. preview: picture next to the result, if requested.
    notes: notes for the user on how the study was read. source: the file, or the first of several.
    output: path of the result, made or not. status: outcome. tiles: number of translated patches.
    seams: seam score, if requested. verified: outcome of a second computation, if requested. cycle:
    cycle error between scan and reconstruction, if known. failure: reason why there is no result.
    drawn: whether a preview was drawn of a result that was up to date. source_content,
    output_content: contents of the scan and of the result, without its preview and its sidecars;
    None if not known. maps, sidecars: paths of those next to the result. spread: TTA spread, if it
    was measured. volumes: number of source volumes that were translated one by one, into one
    result; voxels and patches are those of all. measures: cheap measures of the result against the
    scan, if they were taken.
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
    measures: Measures | None = None

    def __repr__(self) -> str:
        reason = f": {self.failure.reason}" if self.failure else f" in {self.seconds:.1f} s"
        return f"StudyReport({self.name}: {self.status}{reason})"

    @property
    def warning(self) -> str:
        """Warning for the study's picture; empty for most."""
        return self.cycle.warning if self.cycle else ""

    @property
    def is_done(self) -> bool:
        """Whether the study has a result that is up to date."""
        return self.status in ("translated", "up to date")

    @property
    def disagreement(self) -> float | None:
        """Mean disagreement of the model's networks; None if it computes none."""
        return self.measures.disagreement if self.measures else None

    @property
    def in_flight(self) -> tuple[float, float] | None:
        """Start of the first and end of the last work; None if that was not recorded."""
        if not self.when:
            return None
        starts, stops = zip(*self.when.values(), strict=True)
        return min(starts), max(stops)

    @property
    def voxels_per_second(self) -> float | None:
        """Source voxels per second of the study; None unless it was translated."""
        return _rate(self.voxels, self.seconds) if self.status == "translated" else None


@dataclass(frozen=True, slots=True)
class ModelName:
    """Model that a batch ran.

    name: name in its model card. path: path of its file. sha256: hash of the file. established:
    evidence that verifies its computation, in words. results: measures of the results of its
    reference set, if it was calibrated with one.
    """

    name: str
    path: Path
    sha256: str
    established: str = "not recorded"
    results: ResultReference | None = None

    @property
    def is_unproven(self) -> bool:
        """Whether only the user's word supports that it computes the same as its training code."""
        return self.established == "unproven"


@dataclass(frozen=True, slots=True)
class Skip:
    """Input that looks like a scan or was requested, and is not a study.

    missed: whether it may contain unread scans, so that the request is not completely done. path:
    its path. reason: reason in words. kind: rule by which it is skipped; empty for all else.
    """

    path: Path
    reason: str
    missed: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """Use of the seconds of a batch.

    wall: from the first work on any study to the last. busy: sum over all stages of all studies.
    computing: time in which a device ran the network, summed over all devices. devices: number of
    devices.
    """

    wall: float
    busy: float
    computing: float
    devices: int

    @property
    def overlap(self) -> float:
        """Average number of concurrent stages; 1 if nothing overlapped."""
        return self.busy / self.wall if self.wall else 0.0

    @property
    def computing_share(self) -> float:
        """Share of the wall time in which the devices ran the network.

        Of several processes that share a device, each also counts the time in which it waits for
        the others, so that the share is then an upper bound.
        """
        whole = self.wall * self.devices
        return min(1.0, self.computing / whole) if whole else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class BatchReport:
    """Rows of a batch, and the conditions under which they were made.

    options: without a precision if several workers chose it, each for its device. started: ISO 8601
    with zone. ignored: number of files of other kinds among the inputs. not_reached: number of
    studies that had not reached the network when the batch was interrupted. model: model that was
    run. device: device in words. output: the folder. seconds: wall time. use: use of those seconds.
    studies: their rows, in order. skipped: inputs that are not studies. runs: number of program
    runs of the batch so far; their seconds are summed. command: words of the command line of the
    last run, without passwords; none without a command line. energy: energy of the GPUs meanwhile,
    None if not measured.
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

    def __repr__(self) -> str:
        found = Counter(row.status for row in self.studies)
        counts = ", ".join(f"{count} {status}" for status, count in found.items())
        return f"BatchReport({self.output}: {counts or 'no study'} in {self.seconds:.1f} s)"

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the batch before its last study."""
        return self.not_reached > 0 or self.count("interrupted") > 0

    @property
    def failures(self) -> tuple[StudyReport, ...]:
        """Failed rows."""
        return tuple(row for row in self.studies if row.status == "failed")

    def count(self, status: StudyStatus) -> int:
        """Return the number of rows with this status."""
        return sum(row.status == status for row in self.studies)

    @property
    def previews_drawn(self) -> int:
        """Number of results that were up to date and got a preview."""
        return sum(row.drawn for row in self.studies)

    def translated(self) -> tuple[StudyReport, ...]:
        """Return the rows that were made in this run."""
        return tuple(row for row in self.studies if row.status == "translated")

    def by_start(self) -> list[tuple[tuple[float, float], StudyReport]]:
        """Return the recorded times of studies with their rows, ordered by start."""
        rows = ((interval, row) for row in self.studies if (interval := row.in_flight))
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
        """Source voxels of translated studies per second of wall time with any study in flight."""
        return _rate(sum(row.voxels for row in self.translated()), self.use.wall)

    def shared_joules(self) -> dict[str, float]:
        """Return the energy by study name, apportioned by time in the network.

        Empty if it is not known.
        """
        spent = {row.name: row.stages["infer"] for row in self.studies if "infer" in row.stages}
        computing = sum(spent.values())
        if self.energy is None or not computing:
            return {}
        return {name: self.energy.joules * part / computing for name, part in spent.items()}

    @property
    def worst_seam(self) -> float | None:
        """Largest seam score of any study."""
        scores = [row.seams.worst for row in self.studies if row.seams]
        return max((score for score in scores if score is not None), default=None)

    @property
    def worst_verified(self) -> float | None:
        """Largest error of any study that was verified."""
        return max((row.verified.error for row in self.studies if row.verified), default=None)

    @property
    def cycles(self) -> tuple[CycleError, ...]:
        """Cycle errors of all studies for which they are known."""
        return tuple(row.cycle for row in self.studies if row.cycle)

    @property
    def worst_spread(self) -> float | None:
        """Largest mean deviation of any study whose TTA spread was measured."""
        return max((row.spread.deviation for row in self.studies if row.spread), default=None)

    @property
    def worst_disagreement(self) -> float | None:
        """Largest mean disagreement of the model's networks on any study; None without any."""
        found = (row.disagreement for row in self.studies)
        return max((value for value in found if value is not None), default=None)

    @property
    def peak_memory(self) -> PeakMemory | None:
        """Largest peak of any study."""
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

    volume: volume of a series that was in progress, in words; empty if there is only one.
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
        reason = unexpected(error)
    if volume and stage != "write":
        reason = f"In {volume}: {reason}"
    return Failure(kind, " ".join(reason.split()), stage, isinstance(error, _PASSING))


def _memory_advice() -> str:
    limit = address_space_limit()
    if limit is None:
        return "There is not enough memory for this study; close other programs."
    return (
        "There is not enough memory for this study, because this program may use only "
        f"{limit / 2**30:.1f} GiB of address space; raise that limit (ulimit -v)."
    )


def _class(error: Exception) -> FailureClass:
    for kind, errors in _CLASSES.items():
        if isinstance(error, errors):
            return kind
    return "internal"
