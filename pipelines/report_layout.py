"""The batch report's file as records, in the order of its fields, which are a promise to scripts.

Numbers are plain seconds, bytes and voxels. Undecodable bytes of a path stand as lone surrogates,
as Python's file functions take them. Fields with a default may be missing: they are derived, or
earlier versions had none of them.
"""

from typing import Annotated, Literal, TypeAlias, TypedDict

from msgspec import Meta, Struct

from ..engine.options import Precision
from .report.report import FailureClass, Status
from .settings import Blend
from .stopwatch import Stage

SCHEMA = "cuda-cyclegan/translate-report/1"
"""Raised when a field changes its meaning or goes; new fields may come without it."""

_LARGEST = 10**15
"""No time, count or size is beyond it; what is would break plots and quotients."""

Amount: TypeAlias = Annotated[float, Meta(ge=0, le=_LARGEST)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_LARGEST)]
Extent: TypeAlias = Annotated[int, Meta(ge=1, le=_LARGEST)]


class Moments(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Seconds from the start of the batch to a stage's first moment and to its last."""

    start: Amount
    stop: Amount

    def __post_init__(self) -> None:
        if self.stop < self.start:
            raise ValueError("must be a start and an end")


class StageSeconds(TypedDict, total=False):
    """Seconds of the stages that were reached; copy is to and from a card."""

    read: Amount
    prepare: Amount
    copy: Amount
    infer: Amount
    blend: Amount
    finish: Amount
    write: Amount


class StageMoments(TypedDict, total=False):
    """When the stages were at work that were reached; studies overlap in time."""

    read: Moments
    prepare: Moments
    copy: Moments
    infer: Moments
    blend: Moments
    finish: Moments
    write: Moments


class SeamLayout(Struct, frozen=True):
    """Seam scores, null without borders along an axis."""

    d: Amount | None = None
    h: Amount | None = None
    w: Amount | None = None
    worst: Amount | None = None


class StudyLayout(Struct, frozen=True, kw_only=True, rename={"failure": "class"}):
    """One study.

    name: place of the result below the output folder. source: the file, or the first of several.
    output: path of the result, made or not. class, reason: of a failure, the latter in one
    sentence. failed_in: its stage, or null if it came before the first. due: why an older result
    was made anew. notes: how the study was taken, such as that it was resampled. seconds: in which
    a stage worked on it; waiting for another study is left out. voxels: of the source, 0 unless
    translated, as tiles are. voxels_per_second: by `seconds`. peak_host_bytes: largest resident
    memory of the process while the study, and others beside it, were under way; null if there was
    no work. peak_counts_from: "run" where the system keeps only one mark. preview: path of the
    picture beside the result.
    """

    name: str
    source: str
    output: str
    status: Status
    failure: FailureClass | None = None
    reason: str | None = None
    failed_in: Stage | None = None
    due: str | None = None
    notes: tuple[str, ...] = ()
    seconds: Amount
    stages: StageSeconds
    when: StageMoments | None = None
    voxels: Count
    voxels_per_second: float | None = None
    tiles: Count
    peak_host_bytes: Count | None = None
    peak_counts_from: Literal["study", "run"] | None = None
    preview: str | None = None
    seam_score: SeamLayout | None = None

    def __post_init__(self) -> None:
        if self.status == "failed" and None in (self.failure, self.reason):
            raise ValueError("must have a class and a reason, since it failed")


class ProgramLayout(Struct, frozen=True, kw_only=True):
    """Which program wrote the file."""

    name: str = "cuda-cyclegan"
    version: str


class MachineLayout(Struct, frozen=True):
    """Where the batch ran. cores: usable ones. memory_bytes: in all."""

    host: str
    system: str
    cores: Count
    memory_bytes: Count


class ModelLayout(Struct, frozen=True):
    """Which model the batch ran. sha256: of the file."""

    name: str
    path: str
    sha256: str


class SettingsLayout(Struct, frozen=True):
    """What was chosen. patch: [D, H, W]. volume_index: null if none was chosen.

    sha256: of all the others, which together with the model's decides whether a result is up to
    date.
    """

    patch: tuple[Extent, Extent, Extent]
    overlap: Amount
    blend: Blend
    precision: Precision
    volume_index: Count | None = None
    keep_private: bool = False
    sha256: str = ""


class UseLayout(Struct, frozen=True):
    """What the seconds were used for.

    wall_seconds: from the first work on a study to the last. busy_seconds: of all stages.
    computing_seconds: in which the devices ran the network. overlap: busy by wall.
    computing_share: of each device's wall seconds.
    """

    wall_seconds: Amount = 0.0
    busy_seconds: Amount = 0.0
    computing_seconds: Amount = 0.0
    devices: Count = 0
    overlap: Amount = 0.0
    computing_share: Amount = 0.0


class TotalsLayout(Struct, frozen=True, kw_only=True):
    """Counts of studies; stages to tiles of the translated; peaks and worst seam score of all.

    voxels_per_second: by wall_seconds.
    """

    studies: Count = 0
    translated: Count = 0
    up_to_date: Count = 0
    failed: Count = 0
    interrupted: Count = 0
    not_reached: Count
    stages: StageSeconds = {}
    voxels: Count = 0
    voxels_per_second: float | None = None
    tiles: Count = 0
    peak_host_bytes: Count | None = None
    peak_counts_from: Literal["study", "run"] | None = None
    worst_seam_score: Amount | None = None


class SkipLayout(Struct, frozen=True):
    """What looks like a scan, or was asked for, and is none.

    missed: scans may lie behind it, as behind a link that is not followed.
    """

    path: str
    reason: str
    missed: bool = False


class ReportLayout(Struct, frozen=True, kw_only=True):
    """The file. device: in words. output: the folder. started: ISO 8601 with zone.

    libraries: versions of python and of `report_json.LIBRARIES`, null if missing. seconds: of wall
    time in all. interrupted: whether a signal ended the batch. studies: in order. ignored: how many
    files of other kinds lay in the folders.
    """

    schema: str = SCHEMA
    program: ProgramLayout
    libraries: dict[str, str | None]
    machine: MachineLayout
    device: str
    model: ModelLayout
    settings: SettingsLayout
    output: str
    started: str
    seconds: Amount
    interrupted: bool = False
    use: UseLayout = UseLayout()
    totals: TotalsLayout
    studies: tuple[StudyLayout, ...]
    skipped: tuple[SkipLayout, ...]
    ignored: Count
