"""A node in this process, with a clock of its own, and a worker that is asked to work."""

import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pynetdicom.sop_class import MRImageStorage
from support.batch_world import tiny_model
from support.dicom_network import LIMITS, associate
from support.ports import reserved_port
from support.waiting import eventually

from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.pipelines.jobs.events import WorkerSettings
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.worker import work
from cuda_cyclegan.pipelines.node.events import NodeEvent, Sent
from cuda_cyclegan.pipelines.node.node import DicomNode, NodeSettings, open_node
from cuda_cyclegan.pipelines.node.records import SeriesRecord
from cuda_cyclegan.pipelines.node.routes import Caller, Route
from cuda_cyclegan.pipelines.node.store import NAME
from cuda_cyclegan.pipelines.node.submission import LOOK_SECONDS
from cuda_cyclegan.pipelines.request import Request

Event = TypeVar("Event")
DAY = 86400.0


def associations() -> int:
    """Count the associations that this process serves: each has a thread."""
    return sum(thread.name == "association" for thread in threading.enumerate())


class NodeInProcess:
    """One route, NODE, with a quiet time of 30 s; `destination`: the port of PACS.

    queue: the URL of a server, or "" for a file.
    """

    def __init__(self, folder: Path, queue: str = "", **of_route: Any) -> None:
        self._ports = ExitStack()
        self.destination = self._ports.enter_context(reserved_port())
        self.folder = folder / "node"
        self.place = queue_place(queue or str(folder / "private" / "queue.db"))
        self.route = Route(
            title="NODE",
            request=Request((), tiny_model(folder / "model.safetensors"), Path()),
            scheduling=SchedulingClass("normal"),
            callers=(Caller.parse("SENDER@127.0.0.1"),),
            destination=Peer("PACS", "127.0.0.1", self.destination),
            **of_route,
        )
        self.settings = NodeSettings(self.folder, self.place, port=0, reserve=0, limits=LIMITS)
        self.reported: list[NodeEvent] = []
        self.now = time.time()
        self.node: DicomNode
        self._stack = ExitStack()

    def __enter__(self) -> "NodeInProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._ports.close()

    def start(self) -> None:
        """Open the node, after a stop too; it takes the age of objects from their files."""
        self.now = max(self.now, time.time())
        node = open_node(
            self.settings, {"NODE": self.route}, self.reported.append, lambda: self.now
        )
        self.node = self._stack.enter_context(node)

    def stop(self) -> None:
        """End it in order."""
        self._stack.close()

    def send(self, datasets: Iterable[Any], *syntaxes: str) -> list[int]:
        """The statuses of objects sent on one association. syntaxes: to offer, if not the plain."""
        association = associate(self.node.port, MRImageStorage, syntaxes=syntaxes)
        statuses = [association.send_c_store(one).Status for one in datasets]
        association.release()
        self.wait_until_over()
        return statuses

    def wait_until_over(self) -> None:
        """Wait until the node has noticed that no association is left."""
        eventually(lambda: associations() == 0)

    def queue_up(self) -> None:
        """Let the quiet time pass, and have what is complete queued."""
        self.pass_time(31)

    def translate(self) -> None:
        """Have a worker do all jobs, and the node notice."""
        work(self.place, "cpu", WorkerSettings(until_empty=True), lambda _: None)
        self.pass_time(LOOK_SECONDS)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.node.step()

    def wait_for_sends(self, count: int) -> None:
        """Wait until so many results are sent since the world began."""
        eventually(lambda: self.node.step() or len(self.events(Sent)) >= count)

    def events(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.reported if isinstance(event, kind)]

    def series(self) -> list[SeriesRecord]:
        return [one for record in self.node.store.studies() for one in record.series]

    def states(self) -> list[str]:
        return [one.state for one in self.series()]

    def objects(self) -> list[Path]:
        """Return the objects in the inbox."""
        return sorted(self.folder.glob("inbox/*/*/*"))

    def with_settings(self, **changed: Any) -> None:
        """Start again with other settings."""
        self.stop()
        self.settings = replace(self.settings, **changed)
        self.start()

    def with_route(self, **changed: Any) -> None:
        """Have the route read again with other values."""
        self.route = replace(self.route, **changed)
        self.node.use({"NODE": self.route})

    def query(self, statement: str, *values: object) -> list[Any]:
        """Rows of a statement on the records of the node, which must not run for a change."""
        with closing(sqlite3.connect(self.folder / NAME)) as connection, connection:
            return connection.execute(statement, values).fetchall()
