"""Metrics of a queue and of a process, as Prometheus scrapes them."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.queue_jobs import NORMAL, jobs

from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.jobs.metrics import JobMetrics, serving
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.report.report import Failure, StudyReport

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"


@pytest.fixture
def place(tmp_path: Path) -> QueuePlace:
    return queue_place(str(tmp_path / "private" / "queue.db"))


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_a_scrape_has_jobs_by_state_disks_and_what_ended(place: QueuePlace, tmp_path: Path) -> None:
    with open_queue(place, create=True) as queue:
        batch = queue.submit(jobs(tmp_path, 3, output=str(tmp_path / "out")), NORMAL).batch
        queue.hold(f"{batch}/00001")
    metrics = JobMetrics(place, [tmp_path])
    failure = Failure("unreadable", "It is empty.", "read")
    stages = {"read": 1.0, "infer": 2.5}
    metrics.add(StudyReport("a", Path(), Path(), "translated", stages=stages))  # pyright: ignore[reportArgumentType]
    metrics.add(StudyReport("b", Path(), Path(), "failed", failure=failure))
    metrics.add(None)
    with serving(metrics, "127.0.0.1", 0) as port:
        found = scraped(port)
        assert found['cuda_cyclegan_jobs{state="queued"}'] == 2
        assert found['cuda_cyclegan_jobs{state="waiting"}'] == 1
        assert found['cuda_cyclegan_jobs{state="failed"}'] == 0
        assert found["cuda_cyclegan_queue_up"] == 1
        assert found["cuda_cyclegan_workers"] == 0
        assert found['cuda_cyclegan_studies_total{outcome="translated"}'] == 1
        assert found['cuda_cyclegan_studies_total{outcome="failed permanently"}'] == 1
        assert found['cuda_cyclegan_failures_total{cause="unreadable"}'] == 1
        assert found['cuda_cyclegan_stage_seconds_total{stage="infer"}'] == 2.5
        for folder in (tmp_path, tmp_path / "out"):
            assert found[f'cuda_cyclegan_disk_free_bytes{{folder="{folder}"}}'] > 0


def test_a_queue_that_does_not_answer_is_a_metric_too(place: QueuePlace) -> None:
    with open_queue(place, create=True):
        pass
    metrics = JobMetrics(place)
    with serving(metrics, "127.0.0.1", 0) as port:
        assert scraped(port)["cuda_cyclegan_queue_up"] == 1
        assert place.file
        aside = place.file.rename(place.file.with_name("aside"))
        place.file.mkdir()
        metrics._link.close()
        assert scraped(port)["cuda_cyclegan_queue_up"] == 0
        place.file.rmdir()
        aside.rename(place.file)
        assert scraped(port)["cuda_cyclegan_queue_up"] == 1


def test_a_port_in_use_is_named(place: QueuePlace) -> None:
    with (
        reserved_port() as port,
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match=f"127.0.0.1:{port}"),
        serving(JobMetrics(place), "127.0.0.1", port),
    ):
        pass


def test_the_dashboard_asks_for_metrics_that_there_are(place: QueuePlace) -> None:
    metrics = JobMetrics(place)
    metrics.add(StudyReport("b", Path(), Path(), "failed", failure=Failure("write", "x", None)))
    known = {family.name for family in metrics.registry.collect()}
    known |= {f"{name}_total" for name in known}
    board = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"cuda_cyclegan_\w+", target["expr"])
    }
    assert asked
    assert asked <= known
