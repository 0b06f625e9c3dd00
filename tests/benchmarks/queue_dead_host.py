"""Time until another host reclaims the job of one that died, and what a disconnected one does.

Run in tests/, by a user who may make network namespaces: `python -m benchmarks.queue_dead_host`.
The second host is a worker with a name and a network of its own; its cable is a link to pull. The
figures go into results/queue_dead_host.json.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from support import queue_postgres
from support.batch_world import recorded, scan
from support.queue_world import QueueWorld, children
from support.telling_worker import TELLING_COMMAND

from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE

NAMESPACE, CABLE, PLUG = "queue-host2", "queue-cable", "queue-plug"
ADDRESS, OTHER_ADDRESS = "10.99.77.1", "10.99.77.2"
SLOW_STUDY = (320, 320, 320)
RESULTS = Path(__file__).parent / "results" / "queue_dead_host.json"


@contextmanager
def network() -> Generator[None]:
    _ip(f"netns add {NAMESPACE}")
    try:
        _ip(f"link add {CABLE} type veth peer name {PLUG} netns {NAMESPACE}")
        _ip(f"address add {ADDRESS}/24 dev {CABLE}")
        _ip(f"link set {CABLE} up")
        _ip(f"-n {NAMESPACE} address add {OTHER_ADDRESS}/24 dev {PLUG}")
        _ip(f"-n {NAMESPACE} link set {PLUG} up")
        yield
    finally:
        _ip(f"netns del {NAMESPACE}")


class Host:
    """A `worker` command under a host's name."""

    def __init__(self, world: QueueWorld, name: str, *prefix: str) -> None:
        inside = f'hostname {name}; exec "$@"'
        worker = [*TELLING_COMMAND, "worker"]
        command = [*prefix, "unshare", "--uts", "sh", "-c", inside, "sh", *worker]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, VARIABLE: world.queue},
        )

    def says(self, text: str) -> str:
        assert self.process.stderr
        return next(line for line in self.process.stderr if text in line)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes."""
        workers = children(self.process.pid)
        for process in (self.process.pid, *workers):
            os.kill(process, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.communicate()


def measure(server: queue_postgres.Server, folder: Path, how: str) -> dict[str, Any]:
    """how: "killed", all its processes; "powerless", those and the network; "unplugged"."""
    world = QueueWorld(folder, server.url.replace("/jobs", f"/{how}"))
    scan(world.inputs / "slow.nii", shape=SLOW_STUDY)
    batch = world.submit()
    other = Host(world, "two", "ip", "netns", "exec", NAMESPACE)
    other.says(" started")
    this = Host(world, "one")
    this.says("waiting for jobs")
    try:
        begin = time.monotonic()
        if how != "killed":
            _ip(f"link set {CABLE} down")
        if how == "unplugged":
            other.signal(signal.SIGSTOP)  # else it might be done before the other one begins
        else:
            other.signal(signal.SIGKILL)
        this.says(" started")
        found: dict[str, Any] = {"seconds to takeover": round(time.monotonic() - begin, 1)}
        if how != "killed":
            _ip(f"link set {CABLE} up")
        if how == "unplugged":
            other.signal(signal.SIGCONT)
            found["the lost one, when it is back"] = (
                other.says(" interrupted").split()[4].strip(":,")
            )
        this.says(" translated")
        [job] = world.jobs(batch)
        entries = recorded(world.output)
        written = sum(entry["status"] == "written" for entry in entries)
        return {**found, "state": job["state"], "worker": job["worker"], "times written": written}
    finally:
        this.end()
        other.end()


def main() -> None:
    with network(), queue_postgres.server(ADDRESS) as server:
        found: dict[str, Any] = {"date": f"{date.today()}"}
        for how in ("killed", "powerless", "unplugged"):
            with tempfile.TemporaryDirectory() as folder:
                found[how] = measure(server, Path(folder), how)
            print(how, json.dumps(found[how]), flush=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


if __name__ == "__main__":
    main()
