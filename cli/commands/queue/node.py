"""`cuda-cyclegan node`: receives scans over the network, queues them, and sends the results."""

import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ....pipelines.errors import ConfigError, QueueError, check_installed
from ....pipelines.host.failure_hook import FailureHook
from ....pipelines.host.service_manager import service_of_manager
from ....pipelines.option import Effect
from ...errors import FOR_THE_USER, Exit, errors_reported
from ...options.config import named_config
from ...options.queue import LogFileOption, LogFormatOption, OnFailureOption, QueueOption
from ...options.routes import routes_of
from ...options.values import checked_file, parsed_size, wrong_value
from ...render.service_log import log
from ...render.terminal import columns_of, print_line
from ...render.text import as_config_keys, counted, printable
from ...signals import handling_stop_signals
from .metrics import MetricsOption, metrics_at

if TYPE_CHECKING:
    from ....io.dicom_network.tls import Certificates
    from ....pipelines.jobs.queue.location import QueuePlace
    from ....pipelines.node.events import NodeEvent
    from ....pipelines.node.node import NodeSettings
    from ....pipelines.node.routes import Route

EXAMPLE = """\b
Examples, with routes in your cuda-cyclegan.toml or in the file named:
  cuda-cyclegan node --check
  cuda-cyclegan --config node.toml node --folder /var/lib/cuda-cyclegan
  cuda-cyclegan node --status
  cuda-cyclegan node --release T1TOT2/20261126-1f2e3d4c5b6a7988
"""

GATHER_SECONDS = 600.0
"""Time for which failures are gathered for one run of the failure hook."""

_COUNTED = {
    "Queued": "queued",
    "SeriesTranslated": "translated",
    "Sent": "sent",
    "Failed": "failed",
    "SendingAbandoned": "undelivered",
}
"""Names under which events are counted for the failure hook."""
_FAILURES = ("failed", "undelivered")

STEP_SECONDS = 0.25
"""Interval between two checks for pending work."""


def node(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for received scans, results and the node's state.  [default: a folder in "
            "your home]",
        ),
        Effect.WRITES,
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on; 0.0.0.0 listens on all interfaces."
        ),
        Effect.OPENS,
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=65535, help="Port to listen on; 0 chooses a free one."
        ),
        Effect.OPENS,
    ] = 11112,
    queue: QueueOption = None,
    associations: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=1000, help="Maximum number of simultaneous associations."
        ),
        Effect.OPENS,
    ] = 32,
    inbox_limit: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Maximum disk space for received scans."),
        Effect.OPENS,
    ] = "200GiB",
    reserve: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Disk space to keep free, besides that for results still to be written.",
        ),
        Effect.OPENS,
    ] = "1GiB",
    tls_certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS: certificate of this node."),
        Effect.OPENS,
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS: private key of this node."),
        Effect.OPENS,
    ] = None,
    tls_trusted: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS: trusted root certificates of all peers."),
        Effect.OPENS,
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the audit trail, a file a day."),
        Effect.WRITES,
    ] = None,
    audit_syslog: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]", help="Send the audit trail to this syslog server over TLS, too."
        ),
        Effect.OPENS,
    ] = "",
    status: Annotated[
        bool,
        typer.Option("--status", help="Show received and sent studies, and exit."),
        Effect.HARMLESS,
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="With --status: print JSON."),
        Effect.HARMLESS,
    ] = False,
    release: Annotated[
        str | None,
        typer.Option(
            metavar="STUDY|ROUTE",
            help="Translate a study that --status shows as held in its present state, or all held "
            "studies of a route, and exit.",
        ),
        Effect.RELEASES,
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check each route's model, and each destination with C-ECHO, and exit.",
        ),
        Effect.HARMLESS,
    ] = False,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="ROUTE",
            help="Send a synthetic series to the route's destination, fetch it back, and stop.",
        ),
        Effect.ROUTES,
    ] = None,
    log_to: LogFileOption = None,
    log_format: LogFormatOption = "text",
    on_failure: OnFailureOption = "",
    metrics: MetricsOption = "",
) -> None:
    """Receive scans over DICOM and send results.

    Each [route.TITLE] of the config file defines an AE title that accepts scans: its model,
    permitted senders, and destinations of the results. A 'worker' runs the jobs. SIGHUP reloads the
    file.

    \b
    Exit status:
      0  stopped with SIGTERM or Ctrl-C; with --status: shown, whether or not a
         node is running; with --check: all destinations and sources answered;
         with --test: the series came back
      1  with --check: a destination or source did not answer;
         with --test: a step failed
      2  wrong usage, an invalid config file, a route's model cannot be used,
         or the folder or port is in use
      4  pynetdicom is not installed
    """
    if json and not status:
        raise wrong_value("--json", "it needs --status.")
    with errors_reported(verbose=False):
        from ....pipelines.jobs.queue.location import own_folder, queue_place

        check_installed("pynetdicom", "The node needs", "node")
        place = folder or own_folder() / "node"
        if status:
            _show(place, queue_place(queue), json=json)
            return
        if release is not None:
            _release(place, release)
            return
        files = _certificates(tls_certificate, tls_key, tls_trusted)
        named = named_config(context)

        def read() -> "dict[str, Route]":
            return routes_of(context, named)

        if check:
            raise typer.Exit(_checked(read(), files))
        if test is not None:
            raise typer.Exit(_tested(read(), test, files))
        from ....io.dicom_network.limits import Limits
        from ....pipelines.node.node import NodeSettings
        from ....pipelines.node.routes import parse_syslog
        from ...render.log_file import log_file  # late: it loads logging

        settings = NodeSettings(
            folder=place,
            queue=queue_place(queue),
            address=address,
            port=port,
            limits=Limits(associations=associations),
            most=parsed_size("--inbox-limit", inbox_limit) or 0,
            reserve=parsed_size("--reserve", reserve) or 0,
            certificates=files,
            audit=audit,
            syslog=parse_syslog(audit_syslog) if audit_syslog else None,
        )
        with log_file(checked_file("--log-file", log_to), log_format):
            _serve(settings, read, on_failure, metrics)


def _show(folder: Path, queue: "QueuePlace", *, json: bool) -> None:
    from ....pipelines.node.folder import status_of
    from ...render import node as shown

    found, workers = status_of(folder), _workers(queue)
    if json:
        print_line(shown.status_json(found, workers), sys.stdout)
        return
    for line in shown.status_lines(found, workers, columns_of(sys.stdout)):
        print_line(line, sys.stdout)


def _workers(queue: "QueuePlace") -> int | None:
    """Return the number of living workers, or None if the queue does not answer."""
    from ....pipelines.jobs.queue.queue import open_queue

    if queue.file and not queue.file.exists():
        return 0
    try:
        with open_queue(queue) as jobs:
            return jobs.workers()
    except QueueError:
        return None


def _release(folder: Path, name: str) -> None:
    from ....pipelines.node.folder import release

    released = release(folder, name)
    if not released:
        raise wrong_value(
            "--release", f"no study or route {name} is held; --status lists those that are."
        )
    for study in released:
        print_line(printable(f"released: {study}"), sys.stdout)


def _serve(
    settings: "NodeSettings",
    read: "Callable[[], dict[str, Route]]",
    on_failure: str,
    metrics: str,
) -> None:
    from ....pipelines.node.node import check_routes, open_node

    routes, control = read(), _Control()
    check_routes(routes, settings.certificates)
    hook = FailureHook(on_failure, _COUNTED.values(), _FAILURES, GATHER_SECONDS, _log_trouble)

    def emit(event: "NodeEvent") -> None:
        _log_event(event)
        if counted_as := _COUNTED.get(type(event).__name__):
            hook.count(counted_as)
            if kept:
                kept.count(counted_as)

    with (
        metrics_at(metrics, settings.queue, [settings.folder]) as kept,
        handling_stop_signals(control.handle),
        closing(hook),
        open_node(settings, routes, emit) as at_work,
        service_of_manager(control.post),
    ):
        log(f"listening at {settings.address}:{at_work.port}")
        while (asked := control.asked(STEP_SECONDS)) != "stop":
            if asked == "read":
                try:
                    routes = read()
                    check_routes(routes, settings.certificates)
                    at_work.use(routes)
                    log(f"{counted(len(routes), 'route')} reloaded")
                except (*FOR_THE_USER, OSError) as error:
                    log(f"the routes are unchanged: {as_config_keys(str(error))}", "error")
            at_work.step()
        log("stopping")


class _Control:
    """Handler of SIGTERM and Ctrl-C, which stop the node, and SIGHUP, which reloads the routes."""

    def __init__(self) -> None:
        # A handler may run within any call of the main thread, also within one of an Event, which
        # would wait for its own lock.
        self._queue: SimpleQueue[str | Callable[[], None]] = SimpleQueue()

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Queue the signal: the handler itself."""
        self._queue.put(signal.Signals(number).name)

    def post(self, action: Callable[[], None]) -> None:
        """Have `asked` run an action."""
        self._queue.put(action)

    def asked(self, seconds: float) -> Literal["stop", "read", None]:
        """Return the action of the next signal; None if none arrives within so many seconds."""
        try:
            name = self._queue.get(timeout=seconds)
        except Empty:
            return None
        if not isinstance(name, str):
            name()
            return None
        return "read" if name == "SIGHUP" else "stop"


def _checked(routes: "dict[str, Route]", files: "Certificates | None") -> Exit:
    """Print the model of each route, and which destinations and sources answer."""
    from ....pipelines.node.node import check_destinations, check_routes, check_sources
    from ...render.node import checked

    for title, card in check_routes(routes, files).items():
        line = f"{title}: model {card.source} to {card.target}, found"
        print_line(printable(line), sys.stdout)
    status = Exit.DONE
    for destination, titles, trouble in check_destinations(routes, files):
        print_line(checked(destination, ", ".join(titles), trouble), sys.stdout)
        if trouble:
            status = Exit.SOME_FAILED
    for source, title, trouble in check_sources(routes, files):
        print_line(checked(f"source {source}", title, trouble), sys.stdout)
        if trouble:
            status = Exit.SOME_FAILED
    return status


def _tested(routes: "dict[str, Route]", title: str, files: "Certificates | None") -> Exit:
    """Print the steps of a test of a route's destination."""
    from ....pipelines.node.destination_test import test_destination

    if title not in routes:
        raise wrong_value(
            "--test", f"there is no route {title}; the config file has {', '.join(routes)}."
        )
    for step, trouble in test_destination(routes[title], files):
        print_line(printable(f"{step}: {trouble or 'done'}"), sys.stdout)
        if trouble:
            return Exit.SOME_FAILED
    return Exit.DONE


def _certificates(
    own: Path | None, key: Path | None, trusted: Path | None
) -> "Certificates | None":
    if own is None and key is None and trusted is None:
        return None
    if own is None or key is None or trusted is None:
        raise ConfigError(
            "TLS needs all of setting tls-certificate, setting tls-key and setting tls-trusted."
        )
    from ....io.dicom_network.tls import Certificates

    return Certificates(own, key, trusted)


def _log_event(event: "NodeEvent") -> None:
    from ...render.node import level_of, line_of

    log(line_of(event), level_of(event))


def _log_trouble(text: str) -> None:
    log(as_config_keys(text), "error")
