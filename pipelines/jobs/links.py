"""Links among the files of a job: a sender may put one there between submission and work."""

import os
from pathlib import Path, PurePosixPath

from ...io.links import LinkRule
from ...io.search import Skipped
from .queue.job import StudyJob


def refused_link(job: StudyJob) -> Skipped | None:
    """The first link on the way to the job's files, below its inputs, that may not be followed."""
    if job.options.links == "all":
        return None
    root = _inputs_of(job)
    rule = LinkRule.among(job.options.links, [root])
    for file in map(Path, job.files):
        below = (place for place in (*reversed(file.parents), file) if place.is_relative_to(root))
        for place in below:
            if place != root and place.is_symlink() and (refusal := rule.refusal(place)):
                return Skipped(place, refusal)
    return None


def _inputs_of(job: StudyJob) -> Path:
    """The folder that all inputs shared: a study lies below the results as it lay below that.

    Of scans in several folders it is the one that these share, which lies within the inputs.
    """
    folder = Path(os.path.commonpath([os.path.dirname(file) for file in job.files]))  # noqa: PTH120
    above = PurePosixPath(job.mirrored_name).parent.parts
    if folder.parts[len(folder.parts) - len(above) :] != above:
        return folder
    return Path(*folder.parts[: len(folder.parts) - len(above)])
