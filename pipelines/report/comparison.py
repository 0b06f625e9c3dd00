"""Joining of the reports of several runs of one batch, and comparison of two batches."""

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from ...engine.probe.gpus import Energy
from ..errors import ReportFileError
from ..settings import ResolvedOptions, TranslateOptions
from ..stopwatch import NOT_ALWAYS, STAGES, Stage
from .codec import StoredReport, read_report
from .report import BatchReport, StudyReport, Use


@dataclass(frozen=True, slots=True)
class StudyPair:
    """Study that both batches translated.

    first, second: its row in each.
    """

    first: StudyReport
    second: StudyReport


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a second batch with a first, over the studies that both translated.

    first, second: both reports. pairs: studies with the same name and number of voxels. unmatched:
    number of studies of either without a partner. differences: conditions that differ, by name.
    """

    first: StoredReport
    second: StoredReport
    pairs: tuple[StudyPair, ...]
    unmatched: tuple[int, int]
    differences: Mapping[str, tuple[str, str]]

    @property
    def is_whole(self) -> bool:
        """Whether both batches translated the same studies, so that their times are comparable."""
        return bool(self.pairs) and self.unmatched == (0, 0)

    @property
    def wall(self) -> tuple[float, float]:
        """Seconds of wall time that each batch took in all."""
        return self.first.batch.seconds, self.second.batch.seconds

    @property
    def speedup(self) -> float | None:
        """Speedup of the second batch by wall time; None unless `is_whole`."""
        return _ratio(*self.wall) if self.is_whole else None

    @property
    def rate(self) -> float | None:
        """Ratio of the second batch's throughput, in voxels/s of wall time, to the first's."""
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
        """Return seconds of work on the pairs by stage in each batch, added up as in `work`."""
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
    """Match the studies of two reports by name, or by scan if their results have other names."""
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


def _spelled_overlap(options: TranslateOptions) -> str:
    shares = options.overlap if isinstance(options.overlap, tuple) else (options.overlap,)
    return " x ".join(f"{share:g}" for share in shares if share is not None)


def _by_scan(rows: Collection[StudyReport]) -> dict[Path, StudyReport]:
    """Return studies by scan, without scans of several studies."""
    several = Counter(row.source for row in rows)
    return {row.source: row for row in rows if several[row.source] == 1}


def conditions(stored: StoredReport) -> dict[str, str]:
    """Return the conditions of a batch by name, as text."""
    batch, machine = stored.batch, stored.machine
    options = batch.options
    return {
        "model": f"{batch.model.name} ({batch.model.sha256[:12]})",
        "device": batch.device,
        "precision": options.precision or "",
        "inference": options.inference or "patches",
        "patch": " x ".join(map(str, options.patch or ())),
        "overlap": _spelled_overlap(options),
        "blend": options.blend or "",
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
    """Return the further outputs of the batch, which took time too."""
    translated = batch.translated()
    previews = ["previews"] if any(row.preview for row in translated) else []
    seams = ["seam scores"] if any(row.seams for row in translated) else []
    cycles = ["cycle errors"] if any(row.cycle for row in translated) else []
    flips = sorted({row.spread.flips for row in translated if row.spread})
    spreads = [f"spread of {count} flips" for count in flips]
    return ", ".join([*previews, *seams, *cycles, *spreads, *_verification(batch)])


def _verification(batch: BatchReport) -> list[str]:
    """Return what was computed again on the CPU, if anything was."""
    places = [row.verified.places for row in batch.translated() if row.verified]
    if not places:
        return []
    is_whole = batch.options.inference == "volume"
    return ["verification" if is_whole else f"verification of {max(places)} patches"]


def _ratio(first: float, second: float) -> float | None:
    return first / second if first and second else None


def _peak(rows: list[StudyReport]) -> int | None:
    return max((row.peak_memory.bytes for row in rows if row.peak_memory), default=None)


def report_so_far(
    file: Path, model: str, options: ResolvedOptions, output: Path
) -> BatchReport | None:
    """Return the stored report of earlier runs; None if there is no file, or an empty one.

    A batch comprises all results of one model with the same settings in one folder; model: its
    hash. Raises ReportFileError for a file with other content, which must not be lost.
    """
    if not file.exists() or not (file.is_dir() or file.stat().st_size):
        return None
    try:
        found = read_report(file).batch
    except ReportFileError as error:
        raise ReportFileError(
            f"{file} cannot be continued as a report of this batch ({error}); name "
            "another file with setting report, or move it away."
        ) from error
    earlier = found.options
    others = {
        "another model": found.model.sha256 != model,
        "other settings": earlier.precision is None
        or earlier.resolved().fingerprint() != options.fingerprint(),
        "another output folder": _absolute(found.output) != _absolute(output),
    }
    if what := [each for each, differs in others.items() if differs]:
        raise ReportFileError(
            f"{file} is the report of another batch, of {found.started} by model "
            f"{found.model.name} into {found.output}, with {' and '.join(what)}; name another file "
            "with setting report, or move it away."
        )
    return found


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100


def joined(earlier: BatchReport, now: BatchReport, planned: Sequence[str]) -> BatchReport:
    """Return the report of both runs. planned: names of all studies of this run.

    A study that this run kept or did not reach has its row of the earlier run if it was done there,
    also if it was not part of this run. Seconds are the sums of both runs.
    """
    before = {row.name: row for row in earlier.studies if row.is_done}
    own = {row.name: row for row in now.studies}
    rows = {name: _newest(before.get(name), own.get(name), earlier.seconds) for name in planned}
    others = [row for name, row in before.items() if name not in rows]
    known = [row for row in rows.values() if row]
    if not others and not any(_is_unchanged(before.get(name), own.get(name)) for name in rows):
        return now
    return replace(
        now,
        device=", ".join(dict.fromkeys(filter(None, (earlier.device, now.device)))),
        started=earlier.started,
        seconds=earlier.seconds + now.seconds,
        use=_sum(earlier.use, now.use),
        energy=_both(earlier.energy, now.energy),
        studies=(*known, *others),
        not_reached=len(rows) - len(known),
        runs=earlier.runs + now.runs,
    )


def _is_unchanged(before: StudyReport | None, now: StudyReport | None) -> bool:
    """Return whether the earlier run's row describes how the result was made."""
    return before is not None and (now is None or now.status in ("up to date", "interrupted"))


def _newest(
    before: StudyReport | None, now: StudyReport | None, later: float
) -> StudyReport | None:
    """Return the row that describes how the result was made. later: seconds before this run."""
    if now is None or before is None:
        return before or (now and _moved(now, later))
    if not _is_unchanged(before, now):
        return _moved(now, later)
    return replace(
        before,
        preview=now.preview or before.preview,
        drawn=now.drawn,
        cycle=now.cycle or before.cycle,
        maps=now.maps,
        sidecars=now.sidecars,
        spread=now.spread or before.spread,
        source_content=now.source_content or before.source_content,
        output_content=now.output_content or before.output_content,
    )


def _moved(now: StudyReport, later: float) -> StudyReport:
    when = {stage: (start + later, stop + later) for stage, (start, stop) in now.when.items()}
    return replace(now, when=when)


def of_shards(parts: Sequence[BatchReport], count: int) -> BatchReport:
    """Return the report of all shards of a batch that have ended at least once.

    parts: a report of each, the newest last. count: number of all studies; those of which no shard
    has reported count as not reached. Seconds are the sums of all shards.
    """
    last = parts[-1]
    rows = sorted((row for part in parts for row in part.studies), key=lambda row: row.name)
    return replace(
        last,
        device=", ".join(dict.fromkeys(part.device for part in parts if part.device)),
        started=min(part.started for part in parts),
        seconds=math.fsum(part.seconds for part in parts),
        use=reduce(_sum, (part.use for part in parts)),
        energy=reduce(_both, (part.energy for part in parts)),
        studies=tuple(rows),
        skipped=tuple(dict.fromkeys(skip for part in parts for skip in part.skipped)),
        ignored=sum(part.ignored for part in parts),
        not_reached=max(0, count - len(rows)),
        runs=sum(part.runs for part in parts),
    )


def _both(first: Energy | None, second: Energy | None) -> Energy | None:
    """Return the energy of both runs; None if one did not measure it."""
    if first is None or second is None:
        return None
    return Energy(first.joules + second.joules, first.seconds + second.seconds)


def _sum(first: Use, second: Use) -> Use:
    return Use(
        wall=first.wall + second.wall,
        busy=first.busy + second.busy,
        computing=first.computing + second.computing,
        devices=max(first.devices, second.devices),
    )
