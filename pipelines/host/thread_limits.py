"""Detection of refused threads and processes, however a library reports them."""

import errno

NO_MORE_THREADS = (
    "No more threads or processes may be started here; raise the limit of this user (ulimit -u), "
    "container (--pids-limit) or service (TasksMax), or end other programs of this user."
)

_SAID = ("can't start new thread", "pthread_create failed", "thread constructor failed")
"""Messages of CPython, ONNX Runtime and the standard library of C++."""


def is_out_of_threads(error: BaseException) -> bool:
    """Return whether an error was caused by a limit on threads or processes.

    Rule out a lack of memory first.
    """
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN and error.filename is None  # raised by fork
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
