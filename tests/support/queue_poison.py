"""A worker process that dies when the network begins with a large study."""

import os
import signal
import sys
import threading
from typing import Any

from cuda_cyclegan.pipelines.jobs.events import WorkerSettings
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.worker import work
from cuda_cyclegan.pipelines.study.translator import StudyTranslator

LARGE = 30


def main() -> None:
    """Arguments: the queue, after how many deaths a job is given up, and how many have been read
    when the process dies.
    """
    queue, tries, read_ahead = sys.argv[1:]
    real: Any = StudyTranslator.infer
    prepare: Any = StudyTranslator.prepare
    are_read = threading.Semaphore(0)

    def prepare_and_tell(*arguments: Any) -> Any:
        prepared = prepare(*arguments)
        are_read.release()
        return prepared

    def infer(translator: Any, study: Any, *rest: Any) -> Any:
        if max(study.prepared.plan.layout.extents) > LARGE:
            for _ in range(int(read_ahead)):
                are_read.acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(translator, study, *rest)

    patched: Any = StudyTranslator
    patched.infer, patched.prepare = infer, prepare_and_tell
    settings = WorkerSettings(until_empty=True, tries=int(tries))
    assert work(queue_place(queue), "cpu", settings, lambda _: None) == "empty"


if __name__ == "__main__":
    main()
