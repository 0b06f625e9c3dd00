"""A worker process in which one study kills the process when the network begins with it."""

import os
import signal
import sys
import time
from typing import Any

from cuda_cyclegan.pipelines import stations
from cuda_cyclegan.pipelines.job_process import work
from cuda_cyclegan.pipelines.job_talk import WorkerSettings
from cuda_cyclegan.pipelines.queue_place import queue_place

LARGE = 30


def work_with_poison(queue: str, tries: int, seconds: float) -> None:
    """A large study is the poison; seconds: that each study takes."""
    real: Any = stations.infer_study

    def infer(study: Any, *rest: Any) -> Any:
        time.sleep(seconds)
        if max(study.prepared.array.shape) > LARGE:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(study, *rest)

    stations.infer_study = infer
    settings = WorkerSettings(until_empty=True, tries=tries)
    assert work(queue_place(queue), "cpu", settings, print) == "empty"
    sys.exit(0)
