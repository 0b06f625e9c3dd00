"""Many studies in one process: nothing piles up. benchmarks/soak_on_a_card.py does 500."""

import gc
import os
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import SimpleITK
from support.batch_world import scan, tiny_model
from support.waiting import eventually

from cuda_cyclegan.pipelines.events import Event, StudyDone
from cuda_cyclegan.pipelines.request import Request
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.translate import open_job, run_job

STUDIES = 60
SETTLED = 20
"""Studies after which caches and pools have their size."""

MEASURED = 30

SLACK, SLACK_BYTES = 3, 6 << 20
"""Usual variation of a process of this size."""


def descriptors() -> set[tuple[str, str]]:
    """Each with what it is of."""
    found = set[tuple[str, str]]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            found.add((link.name, str(link.readlink())))
    return found


def threads() -> set[threading.Thread]:
    """Return the threads without those of pools that the process keeps, which start on demand."""
    kept = ("pack", "in parallel")
    return {thread for thread in threading.enumerate() if not thread.name.startswith(kept)}


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "preview"), [(".nii.gz", True), (".nrrd", False)])
def test_descriptors_threads_and_memory_stay_level(
    tmp_path: Path, suffix: str, preview: bool
) -> None:
    for number in range(STUDIES):
        scan_of(tmp_path / "scans" / f"{number:02}{suffix}", number)
    seen: list[tuple[int, int, int]] = []

    def listen(event: Event) -> None:
        if isinstance(event, StudyDone):
            seen.append((len(descriptors()), len(threads()), resident()))

    model = tiny_model(tmp_path / "model.safetensors")
    options = TranslateOptions(preview=preview, seam_score=True)
    inputs, output = (tmp_path / "scans",), tmp_path / "results"
    job = open_job(Request(inputs, model, output, device="cpu", options=options))
    before = descriptors(), threads()
    report = run_job(job, listen)
    assert len(report.translated()) == STUDIES
    settled, late = seen[SETTLED : STUDIES - SETTLED], seen[STUDIES - SETTLED :]
    for index in (0, 1):
        assert max(row[index] for row in late) <= max(row[index] for row in settled) + SLACK
    assert min(row[2] for row in late) < max(row[2] for row in settled) + SLACK_BYTES

    def left() -> tuple[set[tuple[str, str]], set[threading.Thread]]:
        return descriptors() - before[0], threads() - before[1]

    eventually(lambda: left() == (set(), set()), evidence=left)  # threads end behind their results


MOST_BYTES_A_STUDY = 8 << 10
"""Limit of what stays of a study: its row and its moments have some 2 KB, and its scan as stored
has 12 KB.
"""


@pytest.mark.slow
def test_study_leaves_nothing_but_its_row(tmp_path: Path) -> None:
    """Memory is counted by Python, which knows each array and nothing of what the system keeps."""
    for number in range(SETTLED + MEASURED):
        scan_of(tmp_path / "scans" / f"{number:02}.nii.gz", number)
    held: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, StudyDone):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])

    model = tiny_model(tmp_path / "model.safetensors")
    request = Request(
        (tmp_path / "scans",),
        model,
        tmp_path / "results",
        device="cpu",
        options=TranslateOptions(seam_score=True),
    )
    job = open_job(request)
    gc.freeze()  # else each collection goes through all that other tests have loaded
    tracemalloc.start()
    try:
        assert len(run_job(job, listen).translated()) == SETTLED + MEASURED
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    # Of the studies beside it, more or less is under way at a time: the least of some is compared.
    before, behind = min(held[SETTLED - 5 : SETTLED]), min(held[-6:-1])
    assert behind - before < MOST_BYTES_A_STUDY * (MEASURED - 1)


def scan_of(path: Path, seed: int) -> None:
    """A scan of two patches along one axis."""
    if path.name.endswith(".nii.gz"):
        scan(path, seed, (24, 16, 16))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    voxels = np.random.default_rng(seed).integers(0, 1000, (16, 16, 24)).astype(np.int16)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels), str(path))
