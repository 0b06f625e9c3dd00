"""A worker process that dies when the network begins with a large study."""

import os
import signal
import sys
import time
from typing import Any

from cuda_cyclegan.pipelines.execution import stages
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.worker.messages import WorkerSettings
from cuda_cyclegan.pipelines.jobs.worker.process import work

LARGE = 30


def main() -> None:
    """Arguments: the queue, and after how many deaths a job is given up."""
    queue, tries = sys.argv[1:]
    real: Any = stages.infer_study

    def infer(study: Any, *rest: Any) -> Any:
        time.sleep(0.3)  # for the next one to be read
        if max(study.prepared.plan.tiling.extents) > LARGE:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(study, *rest)

    stages.infer_study = infer
    settings = WorkerSettings(until_empty=True, tries=int(tries))
    assert work(queue_place(queue), "cpu", settings, lambda _: None) == "empty"


if __name__ == "__main__":
    main()
