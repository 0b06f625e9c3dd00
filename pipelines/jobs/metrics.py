"""Metrics for Prometheus: jobs by state, seconds by stage, failures by cause, GPU memory, disks."""

import shutil
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.probe.gpus import cuda_devices
from ..errors import ConfigError, QueueError
from ..report.report import StudyReport
from .queue.job import OPEN, STATES
from .queue.location import QueuePlace
from .queue.queue import QueueLink

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX = "cuda_cyclegan"


class JobMetrics:
    """Metrics of a queue and of the studies that this process had; thread-safe.

    place: address of the queue, which each scrape reads. folders: folders whose disks count,
    besides those of the results of open jobs.
    """

    def __init__(self, place: QueuePlace, folders: Sequence[Path] = ()) -> None:
        from prometheus_client import CollectorRegistry
        from prometheus_client import Counter as Total

        self.registry = CollectorRegistry()
        self._link, self._folders = QueueLink(place), folders
        self._reading = threading.Lock()
        self._studies = Total(
            f"{PREFIX}_studies", "Studies by outcome", ["outcome"], registry=self.registry
        )
        self._failures = Total(
            f"{PREFIX}_failures", "Failures by cause", ["cause"], registry=self.registry
        )
        self._seconds = Total(
            f"{PREFIX}_stage_seconds", "Work by stage", ["stage"], registry=self.registry
        )
        self.registry.register(self)

    def count(self, outcome: str) -> None:
        """Count a study. outcome: such as `translated`, `failed` or `sent`."""
        self._studies.labels(outcome).inc()

    def add(self, row: StudyReport | None) -> None:
        """Count a study that ended; None is one that failed permanently."""
        self.count("failed permanently" if row is None else row.status)
        if row is None:
            return
        if row.failure:
            self._failures.labels(row.failure.kind).inc()
        for stage, seconds in row.stages.items():
            self._seconds.labels(stage).inc(seconds)

    def describe(self) -> "list[Metric]":
        """Return nothing: what `collect` finds is known only then."""
        return []

    def collect(self) -> "Iterator[Metric]":
        """Read queue, GPUs and disks."""
        from prometheus_client.core import GaugeMetricFamily as Gauge

        up = Gauge(f"{PREFIX}_queue_up", "Whether the queue answers")
        jobs = Gauge(f"{PREFIX}_jobs", "Jobs of the queue by state", labels=["state"])
        workers = Gauge(f"{PREFIX}_workers", "Living workers of the queue")
        paused = Gauge(f"{PREFIX}_paused", "Whether no job may start")
        folders = {str(folder) for folder in self._folders}
        with self._reading:
            try:
                queue = self._link.queue()
                states: Counter[str] = Counter(dict.fromkeys(STATES, 0))
                for batch in queue.batches():
                    states.update(batch.jobs)
                    if batch.work.output and any(batch.jobs.get(state) for state in OPEN):
                        folders.add(batch.work.output)
                for state, count in states.items():
                    jobs.add_metric([state], count)
                workers.add_metric([], queue.workers())
                paused.add_metric([], queue.is_paused())
                up.add_metric([], 1)
            except QueueError:
                self._link.close()
                up.add_metric([], 0)
        yield from (up, jobs, workers, paused, *_gpu_memory(), _free_disk(folders))


def _gpu_memory() -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily as Gauge

    used = Gauge(f"{PREFIX}_gpu_memory_used_bytes", "GPU memory in use", labels=["device"])
    total = Gauge(f"{PREFIX}_gpu_memory_bytes", "GPU memory", labels=["device"])
    for gpu in cuda_devices():
        name = f"cuda:{gpu.index}"
        total.add_metric([name], gpu.total_bytes)
        if gpu.free_bytes is not None:
            used.add_metric([name], gpu.total_bytes - gpu.free_bytes)
    yield from (used, total)


def _free_disk(folders: set[str]) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily as Gauge

    free = Gauge(f"{PREFIX}_disk_free_bytes", "Free bytes of a disk", labels=["folder"])
    for folder in sorted(folders):
        place = Path(folder)
        # A folder of results is made by its first job.
        there = next((each for each in (place, *place.parents) if each.is_dir()), None)
        if there is not None:
            free.add_metric([folder], shutil.disk_usage(there).free)
    return free


@contextmanager
def serving(metrics: JobMetrics, host: str, port: int) -> Generator[int]:
    """Serve metrics over HTTP for the block; yields the port. Raises ConfigError.

    port: 0 takes a free one.
    """
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry=metrics.registry)
    except OSError as error:
        raise ConfigError(
            f"Metrics cannot be served at {host}:{port} ({error.strerror or error}); choose "
            "another address with setting metrics."
        ) from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
