"""From what a user asks for to one job a study."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...engine.model.model_file import Model, load_model
from ...io.discovery import images_sha256
from ...io.files.disk import takes_name
from ...io.search import Skipped
from ...io.volume import Study
from ..cycle.back_model import back_model
from ..decisions import check_every_volume, check_spread, with_inference
from ..errors import OutputFolderError
from ..request import Request, Search
from ..settings import CycleCheck
from .links import refused_link
from .queue.job import StudyJob
from .queue.state import NOT_RECORDED


@dataclass(frozen=True, slots=True)
class Submission:
    """The jobs of a request, what among its inputs is no study, and studies that cannot be done.

    refused: names of studies and why, in words. skipped: paths and reasons. models: hashes by which
    results of the model are recorded. words: what they are to say of it. established: by what it is
    known how it computes, in words. made: the channels that each study becomes. holds_files_only:
    as of a search.
    """

    jobs: tuple[StudyJob, ...]
    skipped: tuple[Skipped, ...]
    refused: dict[str, str]
    models: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    established: str = NOT_RECORDED
    made: tuple[str, ...] = ("",)
    holds_files_only: bool = False


def jobs_of(request: Request, search: Search | None = None) -> Submission:
    """Check a request against its model, and find its studies; reads no scan and needs no device.

    What a device must be able to do is judged by the worker. search: what finds its studies;
    `request.search` without. Raises ModelFileError, PatchShapeError, SettingsError,
    OutputFolderError or ScanError.
    """
    if not takes_name(request.output):
        raise OutputFolderError(
            f"{request.output} has a name that is too long for its disk; choose a shorter one."
        )
    model = load_model(request.model)
    check_spread(model, request.options)
    check_every_volume(request.options)
    decided = with_inference(model, request.options)
    model.network.graph.check_patch(decided.patch or model.card.patch)
    options = replace(decided, cycle_check=_cycle_check(model, request))
    found = (search or request.search)(model)
    stored = Counter(file for series in found.series for file in set(series.files))
    found_jobs = (
        StudyJob(
            study=str(study.name),
            files=tuple(os.path.abspath(file) for file in study.files),  # noqa: PTH100
            output=os.path.abspath(request.output),  # noqa: PTH100
            model=os.path.abspath(request.model),  # noqa: PTH100
            model_sha256=model.sha256,
            options=options,
            listed=_listed(study),
            images=_images(study, stored),
            incomplete=study.incomplete,
            mirrored=tuple(map(str, study.mirrored)),
            others=tuple(map(str, study.other_results)) if study.mirrored else (),
        )
        for study in found.studies
        if study.obstacle is None
    )
    # A link that was named is followed, wherever it leads.
    any_link = replace(options, links="all")
    jobs = tuple(replace(job, options=any_link) if refused_link(job) else job for job in found_jobs)
    refused = {str(study.name): study.obstacle.reason for study in found.studies if study.obstacle}
    card = model.card
    established, made = card.established.in_words, card.output_channels
    return Submission(
        jobs,
        found.skipped,
        refused,
        model.known_as,
        card.words,
        established,
        made,
        found.holds_files_only,
    )


def _listed(study: Study) -> tuple[tuple[str, int], ...]:
    """The folders of all its scans, each once."""
    return tuple({str(at): when for scan in study.channels for at, when in scan.listed}.items())


def _images(study: Study, stored: "Mapping[Path, int]") -> tuple[str, ...]:
    """Which images of its files are each of its scans, if some file holds several series.

    stored: how many series have a file.
    """
    if all(stored.get(file, 0) < 2 for file in study.files):
        return ()
    return tuple(map(images_sha256, study.channels))


def _cycle_check(model: Model, request: Request) -> CycleCheck | None:
    """As asked for, with a path that is the same everywhere, and the model that is meant."""
    back = back_model(model, request.options)
    if back is None or request.options.cycle_check is None:
        return None
    path = os.path.abspath(request.options.cycle_check.model)  # noqa: PTH100
    return replace(request.options.cycle_check, model=path, sha256=back.sha256)
