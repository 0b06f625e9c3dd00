"""`cuda-cyclegan node`: scans that are sent over the network become jobs, and results go on."""

import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ....pipelines.errors import ConfigError, MissingLibraryError
from ....pipelines.option import Effect
from ...errors import FOR_THE_USER, Exit, errors_reported
from ...options.config import named_config
from ...options.queue import QueueOption
from ...options.routes import routes_of
from ...options.values import parsed_size, wrong_value
from ...render.terminal import columns_of, log, print_line
from ...render.text import counted, flagged, printable
from ...signals import stop_signals_heard_by

if TYPE_CHECKING:
    from ....io.dicom_network.tls import Certificates
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
        str, typer.Option(metavar="SIZE", help="Disk space to keep free."), Effect.OPENS
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
        typer.Option("--check", help="Test each destination with C-ECHO, and exit."),
        Effect.HARMLESS,
    ] = False,
) -> None:
    """Receive scans over DICOM and send results.

    Each [route.TITLE] of the config file defines an AE title that accepts scans: its model,
    permitted senders, and destinations of the results. A 'worker' runs the jobs. SIGHUP reloads the
    file.

    \b
    Exit status:
      0  stopped with SIGTERM or Ctrl-C; with --check: all destinations answered
      1  with --check: a destination did not answer
      2  wrong usage, an invalid config file, or the folder or port is in use
      4  pynetdicom is not installed
    """
    if json and not status:
        raise wrong_value("--json", "it needs --status.")
    with errors_reported(verbose=False):
        from ....pipelines.jobs.queue.location import own_folder

        _check_installed()
        place = folder or own_folder() / "node"
        if status:
            _show(place, json=json)
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
        from ....io.dicom_network.limits import Limits
        from ....pipelines.jobs.queue.location import queue_place
        from ....pipelines.node.node import NodeSettings

        settings = NodeSettings(
            folder=place,
            queue=queue_place(queue),
            address=address,
            port=port,
            limits=Limits(associations=associations),
            most=parsed_size("--inbox-limit", inbox_limit) or 0,
            reserve=parsed_size("--reserve", reserve) or 0,
            certificates=files,
        )
        _serve(settings, read)


def _show(folder: Path, *, json: bool) -> None:
    from ....pipelines.node.folder import status_of
    from ...render import node as shown

    found = status_of(folder)
    if json:
        print_line(shown.status_json(found), sys.stdout)
        return
    for line in shown.status_lines(found, columns_of(sys.stdout)):
        print_line(line, sys.stdout)


def _release(folder: Path, name: str) -> None:
    from ....pipelines.node.folder import release

    released = release(folder, name)
    if not released:
        raise wrong_value(
            "--release", f"no study or route {name} is held; --status lists those that are."
        )
    for study in released:
        print_line(printable(f"released: {study}"), sys.stdout)


def _serve(settings: "NodeSettings", read: "Callable[[], dict[str, Route]]") -> None:
    from ....pipelines.node.node import check_routes, open_node

    routes, control = read(), _Control()
    check_routes(routes, settings.certificates)
    with stop_signals_heard_by(control.hear), open_node(settings, routes, _log_event) as at_work:
        log(f"listening at {settings.address}:{at_work.port}")
        while (asked := control.asked(STEP_SECONDS)) != "stop":
            if asked == "read":
                try:
                    routes = read()
                    check_routes(routes, settings.certificates)
                    at_work.use(routes)
                    log(f"{counted(len(routes), 'route')} reloaded")
                except (*FOR_THE_USER, OSError) as error:
                    log(f"the routes are unchanged: {flagged(str(error))}")
            at_work.step()
        log("stopping")


class _Control:
    """Handler of SIGTERM and Ctrl-C, which stop the node, and SIGHUP, which reloads the routes."""

    def __init__(self) -> None:
        # A handler may run within any call of the main thread, also within one of an Event, which
        # would wait for its own lock.
        self._heard: SimpleQueue[str] = SimpleQueue()

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Queue the signal: the handler itself."""
        self._heard.put(signal.Signals(number).name)

    def asked(self, seconds: float) -> Literal["stop", "read", None]:
        """Return the action of the next signal; None if none arrives within so many seconds."""
        try:
            name = self._heard.get(timeout=seconds)
        except Empty:
            return None
        return "read" if name == "SIGHUP" else "stop"


def _checked(routes: "dict[str, Route]", files: "Certificates | None") -> Exit:
    """Send C-ECHO to all destinations and print which answer."""
    from ....pipelines.node.node import check_destinations
    from ...render.node import checked

    status = Exit.DONE
    for destination, titles, trouble in check_destinations(routes, files):
        print_line(checked(destination, ", ".join(titles), trouble), sys.stdout)
        if trouble:
            status = Exit.SOME_FAILED
    return status


def _check_installed() -> None:
    if find_spec("pynetdicom") is None:
        raise MissingLibraryError(
            "The node needs pynetdicom, which is not installed; pip install 'cuda-cyclegan[node]'."
        )


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
    from ...render.node import line_of

    log(line_of(event))
