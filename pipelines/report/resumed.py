"""One report of a batch that took several runs: what the file tells of the earlier ones stays."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...engine.probe.gpus import Energy
from ..errors import ReportFileError
from ..settings import TranslateSettings
from .codec import read_report
from .report import BatchReport, StudyReport, Use


def report_so_far(
    file: Path, model: str, settings: TranslateSettings, output: Path
) -> BatchReport | None:
    """What earlier runs stored of this batch; None if there is no file, or an empty one.

    A batch is all that one model with the same settings makes in one folder; model: its hash.
    Raises ReportFileError for a file of something else, which nobody wants to lose.
    """
    if not file.exists() or not (file.is_dir() or file.stat().st_size):
        return None
    try:
        found = read_report(file).batch
    except ReportFileError as error:
        raise ReportFileError(
            f"{file} is there and cannot be continued as a report of this batch ({error}); name "
            "another file with setting report, or move it away."
        ) from error
    made = found.options
    others = {
        "another model": found.model.sha256 != model,
        "other settings": made.precision is None or made.settings() != settings,
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
    """The report of both runs. planned: the names of all studies that this run was to do.

    A study that this run kept, or did not come to, has its row of the earlier run if it was done
    there, also if this run was not asked for it. Seconds are of both runs together.
    """
    before = {row.name: row for row in earlier.studies if row.is_done}
    own = {row.name: row for row in now.studies}
    rows = {name: _newest(before.get(name), own.get(name), earlier.seconds) for name in planned}
    others = [row for name, row in before.items() if name not in rows]
    known = [row for row in rows.values() if row]
    if not others and not any(_stays(before.get(name), own.get(name)) for name in rows):
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


def _stays(before: StudyReport | None, now: StudyReport | None) -> bool:
    """Whether the earlier run's row tells how the result came about."""
    return before is not None and (now is None or now.status in ("up to date", "interrupted"))


def _newest(
    before: StudyReport | None, now: StudyReport | None, later: float
) -> StudyReport | None:
    """The row that tells how the result came about; later: seconds until this run began."""
    if now is None or before is None:
        return before or (now and _moved(now, later))
    if not _stays(before, now):
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


def _both(first: Energy | None, second: Energy | None) -> Energy | None:
    """Of both runs; None where one did not count it."""
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
