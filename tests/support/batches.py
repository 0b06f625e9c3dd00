"""Batches at work on networks that tests make up."""

from collections.abc import Sequence

from cuda_cyclegan.pipelines.results.manifest import Manifest
from cuda_cyclegan.pipelines.results.resume import PlannedStudy
from cuda_cyclegan.pipelines.run.batch import Batch
from cuda_cyclegan.pipelines.run.networks import Networks
from cuda_cyclegan.pipelines.run.pipe_worker import PipeWorker
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.shared_batch import SharedBatch
from cuda_cyclegan.pipelines.run.source import BatchStudies, JobKind, ListSource
from cuda_cyclegan.pipelines.run.worker import Worker


def batch_here(
    kind: JobKind,
    planned: Sequence[PlannedStudy],
    manifest: Manifest,
    networks: Networks,
    concurrency: Concurrency,
    processes: Sequence[PipeWorker] = (),
) -> Batch:
    """A batch in this process, and in these if it loses its device."""
    studies = BatchStudies(planned)
    source = ListSource(kind, studies, manifest)
    worker = Worker(networks, source, lambda: concurrency, studies.outcomes)
    opened = [process.name for process in processes]

    def take_over(why: str) -> SharedBatch:
        source.reclaim(why)
        return SharedBatch(studies, processes, manifest, opened=opened)

    return Batch(studies, worker, take_over)
