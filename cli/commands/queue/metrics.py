"""Option `--metrics` of services."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ....pipelines.errors import check_installed
from ....pipelines.option import Effect
from ...options.help_panels import REPORTS
from ...options.values import wrong_value
from ...render.service_log import log

if TYPE_CHECKING:
    from ....pipelines.jobs.metrics import JobMetrics
    from ....pipelines.jobs.queue.location import QueuePlace

MetricsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at this address, such as 127.0.0.1:9477.",
        rich_help_panel=REPORTS,
    ),
    Effect.OPENS,
]
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[^:\s]+):(\d{1,5})")


@contextmanager
def metrics_at(
    address: str, place: "QueuePlace", folders: Sequence[Path] = ()
) -> "Generator[JobMetrics | None]":
    """Serve metrics for the block if an address is given. Raises BadParameter or ConfigError."""
    if not address:
        yield None
        return
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) >= 1 << 16:
        raise wrong_value("--metrics", f"{address!r} is not HOST:PORT such as 127.0.0.1:9477.")
    from ....pipelines.jobs import metrics

    check_installed("prometheus-client", "Metrics need", "metrics")
    kept = metrics.JobMetrics(place, folders)
    host = found[1].removeprefix("[").removesuffix("]")
    with metrics.serving(kept, host, int(found[2])) as port:
        log(f"metrics at http://{found[1]}:{port}/metrics")
        yield kept
