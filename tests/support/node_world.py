"""A node as a real process, with a worker beside it, and phantoms to send there."""

import json
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.batch_world import tiny_model
from support.dicom_judges import judge
from support.dicom_phantoms import Phantom
from support.ports import reserved_port
from support.queue_world import COMMAND, killed_with_children
from support.waiting import eventually

from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE


def phantom(number: int, slices: int = 8) -> Phantom:
    """A small series of a study of its own."""
    uid = f"1.2.826.0.1.3680043.8.498.{number + 1}"
    return Phantom(
        modality="MR", slices=slices, rows=16, columns=16, study=uid, series=f"{uid}.2", seed=number
    )


@dataclass
class NodeWorld:
    """One route, T1TOT2, whose results go to PACS at `destination`, a port of this machine.

    destination, port: of the node; 0 reserves one. queue: the URL of a server, or "" for a file.
    """

    folder: Path
    destination: int = 0
    route: str = ""
    options: Sequence[str] = ()
    port: int = 0
    queue: str = ""
    _ports: ExitStack = field(default_factory=ExitStack)
    _processes: list["subprocess.Popen[bytes]"] = field(
        default_factory=list["subprocess.Popen[bytes]"]
    )

    def __post_init__(self) -> None:
        self.destination = self.destination or self._ports.enter_context(reserved_port())
        self.port = self.port or self._ports.enter_context(reserved_port())
        self.model = tiny_model(self.folder / "model.safetensors")
        self.log = self.folder / "node.log"
        self.state = self.folder / "node"
        self.queue = self.queue or str(self.folder / "private" / "queue.db")
        self.config = self.folder / "node.toml"
        self.configure(self.route)

    def configure(
        self, more: str = "", callers: str = "MODALITY@127.0.0.1", destination: str = ""
    ) -> None:
        """Write the config file. more: lines of the route. destination: if it is not PACS."""
        self.config.write_text(
            f'queue = "{self.queue}"\n'
            f'[node]\nfolder = "{self.state}"\nport = {self.port}\n'
            f'[route.T1TOT2]\nmodel = "{self.model}"\ncallers = ["{callers}"]\n'
            f'destination = "{destination or f"PACS@127.0.0.1:{self.destination}"}"\n'
            f'quiet = "0.5 s"\n{more}\n'
        )

    def command(self, *words: str) -> list[str]:
        """A command line with the config file."""
        return [*COMMAND, "--config", str(self.config), *words]

    def start(
        self, *command: str, wait: bool = True, prefix: Sequence[str] = ()
    ) -> "subprocess.Popen[bytes]":
        """A command in the background; of a node, wait until it listens."""
        asked = [*prefix, *self.command(*(command or ("node", *self.options)))]
        with self.log.open("ab") as log:
            process = subprocess.Popen(asked, stdout=log, stderr=log, env=self._environment())
        self._processes.append(process)
        if not command and wait:
            eventually(lambda: self._listens() or process.poll() is not None, evidence=self.said)
            assert process.poll() is None, self.said()
        return process

    def worker(self) -> "subprocess.Popen[bytes]":
        """A worker on the CPU."""
        return self.start("worker", "--device", "cpu", "--tries", "1000")

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command to its end."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
        )

    def send(self, files: Iterable[Path], *options: str, title: str = "T1TOT2") -> int:
        """Send files as MODALITY; the exit status of storescu."""
        command = [judge("storescu"), "-aet", "MODALITY", "-aec", title, *options]
        sent = subprocess.run(
            [*command, "127.0.0.1", str(self.port), *map(str, files)],
            capture_output=True,
            check=False,
        )
        return sent.returncode

    def phantom(self, number: int, slices: int = 8) -> list[Path]:
        """The files of a series."""
        return phantom(number, slices).write(self.folder / "sources" / f"{number}-{slices}")

    def status(self) -> dict[str, Any]:
        """Return the output of `node --status --json`."""
        done = self.run("node", "--status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def states(self) -> dict[str, int]:
        """Count the series by state."""
        found = [one["state"] for study in self.status()["studies"] for one in study["series"]]
        return dict(Counter(found))

    def said(self) -> str:
        """The log of all processes."""
        return self.log.read_text("utf-8")

    def wait_for(self, words: str) -> None:
        """Wait until the log has these words."""
        eventually(lambda: words in self.said(), evidence=self.said)

    def close(self) -> None:
        """End all processes at once."""
        for process in self._processes:
            killed_with_children(process)
        self._ports.close()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _environment(self) -> dict[str, str]:
        home = {"XDG_CONFIG_HOME": str(self.folder / "config")}
        return {**{k: v for k, v in os.environ.items() if k != VARIABLE}, **home}
