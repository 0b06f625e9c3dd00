"""A Dask cluster on this machine, in processes of its own."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from support.processes import started

DEADLY = Path(__file__).parent / "deadly_study"
_CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(
        n_workers=int(sys.argv[1]), threads_per_worker=1, memory_limit=0, dashboard_address=':0'
    ) as cluster:
        cluster.adapt(minimum=int(sys.argv[1]), maximum=int(sys.argv[1]))  # replace lost ones
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def dask_workers(folder: Path, count: int, prefix: tuple[str, ...] = ()) -> Generator[str]:
    """Address of a scheduler with this many workers, which die of a study named deadly.nii.

    folder: for its program and log. prefix: words before the command.
    """
    program, log = folder / "cluster.py", folder / "cluster.log"
    program.write_text(_CLUSTER)
    environment = {**os.environ, "PYTHONPATH": str(DEADLY)}
    command = [*prefix, sys.executable, program, str(count)]
    pipe = subprocess.PIPE
    with (
        log.open("w") as shown,
        started(
            command, stdin=pipe, stdout=pipe, stderr=shown, text=True, env=environment
        ) as cluster,
    ):
        assert cluster.stdin is not None
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        assert address.startswith("tcp://"), log.read_text()
        yield address
        cluster.stdin.close()
        cluster.wait()
