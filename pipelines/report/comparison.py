"""Two batches beside each other: the same studies, and how the second went against the first."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..stopwatch import NOT_ALWAYS, STAGES, Stage
from .codec import StoredReport
from .report import BatchReport, StudyReport


@dataclass(frozen=True, slots=True)
class StudyPair:
    """One study in both batches.

    first, second: its row in each.
    """

    first: StudyReport
    second: StudyReport


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second batch against the first, over the studies that both translated.

    pairs: studies of one name and as many voxels. unmatched: how many of either have no partner.
    differences: conditions that are not the same, by name.
    """

    first: StoredReport
    second: StoredReport
    pairs: tuple[StudyPair, ...]
    unmatched: tuple[int, int]
    differences: Mapping[str, tuple[str, str]]

    @property
    def is_whole(self) -> bool:
        """Whether each batch translated all that the other did, so that their times compare."""
        return bool(self.pairs) and self.unmatched == (0, 0)

    @property
    def wall(self) -> tuple[float, float]:
        """Seconds of wall time that each batch took in all."""
        return self.first.batch.seconds, self.second.batch.seconds

    @property
    def speedup(self) -> float | None:
        """How many times as fast the second was, by wall time; None unless `is_whole`."""
        return _ratio(*self.wall) if self.is_whole else None

    @property
    def rate(self) -> float | None:
        """How many times as many voxels the second translated in a second of wall time."""
        rates = self.first.batch.voxels_per_second, self.second.batch.voxels_per_second
        return _ratio(rates[1] or 0.0, rates[0] or 0.0)

    @property
    def work(self) -> tuple[float, float]:
        """Seconds of work on the pairs in each batch, added up although studies overlap in time."""
        return (
            math.fsum(pair.first.seconds for pair in self.pairs),
            math.fsum(pair.second.seconds for pair in self.pairs),
        )

    def stages(self) -> dict[Stage, tuple[float, float]]:
        """Seconds of work on the pairs by stage in each batch, added up as in `work`."""
        return {
            stage: (
                math.fsum(pair.first.stages.get(stage, 0.0) for pair in self.pairs),
                math.fsum(pair.second.stages.get(stage, 0.0) for pair in self.pairs),
            )
            for stage in STAGES
            if stage not in NOT_ALWAYS
            or any(stage in {*p.first.stages, *p.second.stages} for p in self.pairs)
        }

    @property
    def peaks(self) -> tuple[int | None, int | None]:
        """Largest peak memory of the pairs in each batch, in bytes."""
        return _peak([p.first for p in self.pairs]), _peak([p.second for p in self.pairs])


def compare(first: StoredReport, second: StoredReport) -> Comparison:
    """Match the studies of two reports by name, or by scan where their results have other names."""
    ones = {row.name: row for row in first.batch.translated()}
    others = {row.name: row for row in second.batch.translated()}
    before, after = (_by_scan(rows.values()) for rows in (ones, others))
    same_scan = {row.name: after[scan] for scan, row in before.items() if scan in after}
    found = ((row, others.get(name) or same_scan.get(name)) for name, row in ones.items())
    pairs = tuple(
        StudyPair(row, other) for row, other in found if other and other.voxels == row.voxels
    )
    before, after = conditions(first), conditions(second)
    return Comparison(
        first,
        second,
        pairs,
        (len(ones) - len(pairs), len(others) - len(pairs)),
        {
            name: (before.get(name, ""), after.get(name, ""))
            for name in {**before, **after}
            if before.get(name) != after.get(name)
        },
    )


def _by_scan(rows: Collection[StudyReport]) -> dict[Path, StudyReport]:
    """The studies of scans that only one of them was made of."""
    several = Counter(row.source for row in rows)
    return {row.source: row for row in rows if several[row.source] == 1}


def conditions(stored: StoredReport) -> dict[str, str]:
    """Under what a batch ran, in words by name."""
    batch, machine = stored.batch, stored.machine
    options = batch.options
    return {
        "model": f"{batch.model.name} ({batch.model.sha256[:12]})",
        "device": batch.device,
        "precision": options.precision or "",
        "inference": options.inference or "patches",
        "patch": " x ".join(map(str, options.patch or ())),
        "overlap": f"{options.overlap:g}",
        "blend": options.blend,
        **({} if options.volume_index is None else {"volume": str(options.volume_index)}),
        **({"volume": "all"} if options.every_volume else {}),
        **({} if options.nan_to is None else {"NaN taken as": f"{options.nan_to:g}"}),
        **({} if options.output_type is None else {"voxel type": options.output_type}),
        **({"channels": "resampled"} if options.resample_channels else {}),
        "extras": _extras(batch),
        "host": machine.host,
        "system": machine.system,
        "cores": str(machine.cores),
        "memory": f"{(machine.memory_bytes or 0) / 2**30:.1f} GiB",
        "cuda-cyclegan": stored.program,
        **{name: number or "not installed" for name, number in stored.libraries.items()},
    }


def _extras(batch: BatchReport) -> str:
    """What the batch made besides its results, which took time too."""
    made = batch.translated()
    previews = ["previews"] if any(row.preview for row in made) else []
    seams = ["seam scores"] if any(row.seams for row in made) else []
    cycles = ["cycle errors"] if any(row.cycle for row in made) else []
    flips = sorted({row.spread.flips for row in made if row.spread})
    spreads = [f"spread of {count} flips" for count in flips]
    return ", ".join([*previews, *seams, *cycles, *spreads])


def _ratio(first: float, second: float) -> float | None:
    return first / second if first and second else None


def _peak(rows: list[StudyReport]) -> int | None:
    return max((row.peak_memory.bytes for row in rows if row.peak_memory), default=None)
