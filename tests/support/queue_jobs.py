"""Jobs for a queue, without any scan behind them."""

from pathlib import Path

from cuda_cyclegan.pipelines.jobs.queue.database import Database
from cuda_cyclegan.pipelines.jobs.queue.job import StudyJob
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.settings import TranslateOptions

NORMAL = SchedulingClass("normal")


def jobs(folder: Path, count: int, **choices: object) -> list[StudyJob]:
    submitted: list[StudyJob] = []
    for number in range(count):
        file = folder / f"{number:03}.nii"
        if not file.exists():
            file.touch()
        submitted.append(study_job(file, **choices))
    return submitted


def study_job(file: Path, **choices: object) -> StudyJob:
    fields = {"study": file.name, "files": (str(file),), "output": "/results", **choices}
    return StudyJob(
        **fields,  # pyright: ignore[reportArgumentType]
        model="/model.safetensors",
        model_sha256="0" * 64,
        options=TranslateOptions(patch=(16, 16, 16), overlap=0.25, blend="gaussian"),
    )


def states(queue: Queue, batch: str) -> list[str]:
    return [row.state for row in queue.jobs(batch)]


def pass_time(tables: Database, seconds: float) -> None:
    """Move all times of the jobs into the past, as the database's clock cannot be moved."""
    names = ("submitted", "changed", "due", "started", "ended")
    moved = ", ".join(f"{name} = {name} - {int(seconds * 1000)}" for name in names)
    with tables.writing() as transaction:
        transaction.change(f"UPDATE {{jobs}} SET {moved}")
