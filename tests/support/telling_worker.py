"""`cuda-cyclegan worker` whose log tells of the beginning of each job too.

For what kills workers at work, and must know when they are.
"""

import sys
from datetime import datetime

from cuda_cyclegan.cli.app import main
from cuda_cyclegan.cli.commands.queue.worker import JobLog
from cuda_cyclegan.pipelines.jobs.events import JobStarted, WorkerEvent

TELLING_COMMAND = [sys.executable, __file__]

_handle = JobLog.handle


def _hear_and_tell(log: JobLog, device: str, news: WorkerEvent) -> None:
    if isinstance(news, JobStarted):
        moment = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        print(f"{moment} {device}: {news.job} started: {news.study}", file=sys.stderr, flush=True)
    _handle(log, device, news)


if __name__ == "__main__":
    JobLog.handle = _hear_and_tell
    main()
