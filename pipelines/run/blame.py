"""Crash attribution: the study that counts as the cause of a worker's crash, and the number of
tries per study, for batches and the queue.

Studies that a worker had claimed when it died are repeated, each alone on a worker.
"""

TRIES = 3
"""Worker crashes after which a study fails; users of the queue can set another number."""


def is_blamed(in_hand: int) -> bool:
    """Return whether a crash counts against a study: only if it was the only one claimed.

    in_hand: number of studies that the worker had claimed.
    """
    return in_hand == 1
