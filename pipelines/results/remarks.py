"""Remarks for the user about an output folder, before a batch."""

from collections.abc import Iterator, Sequence

from ...io.writing import is_series
from .manifest import Manifest
from .record_folder import is_inside
from .resume import PlannedStudy


def remarks(manifest: Manifest, planned: Sequence[PlannedStudy]) -> Iterator[str]:
    """Yield remarks of one sentence each.

    manifest: manifest of the output folder, open. planned: studies planned in its folder.
    """
    output, record = manifest.output, manifest.record
    if manifest.remark:
        yield manifest.remark
    if is_inside(record) and any(is_series(each.study.format, each.target) for each in planned):
        yield (
            f"{output} holds not only results but also the record of them, {record}; leave that "
            "out when you send the folder."
        )
    if not manifest.entries and any(_is_occupied(study) for study in planned):
        yield (
            f"There is no record of what {output} holds, so none of it counts as made by this "
            f"program; if the folder was moved or renamed, put the record that lay beside it in "
            f"place of {record}."
        )
    if count := sum(study.differs for study in planned):
        results = f"{count} results" if count > 1 else "1 result"
        yield (
            f"{results} in {output}, of another model or other settings, will be replaced; choose "
            "another output folder to keep them."
        )


def _is_occupied(planned: PlannedStudy) -> bool:
    """Return whether a study is refused because of the output folder, not because of its inputs."""
    return planned.action == "refuse" and planned.study.obstacle is None
