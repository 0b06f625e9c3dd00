"""Threads and processes that the system refuses to start, however a library says so."""

import errno

NO_MORE_THREADS = (
    "No more threads or processes may be started here; raise the limit of this user (ulimit -u), "
    "container (--pids-limit) or service (TasksMax), or end other programs of this user."
)

_SAID = ("can't start new thread", "pthread_create failed", "thread constructor failed")
"""By CPython, ONNX Runtime and the standard library of C++."""


def is_out_of_threads(error: BaseException) -> bool:
    """Whether an error comes of a limit on threads or processes; memory must not be short."""
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN and error.filename is None  # as fork says it
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
