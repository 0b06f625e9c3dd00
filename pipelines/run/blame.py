"""Which study a dead worker is blamed on, and how often it is tried: in a batch as in the queue.

What a worker had in hand when it died is done again, each study alone on a worker.
"""

TRIES = 3
"""Workers that may die of a study before it is given up; users of the queue say otherwise."""


def is_blamed(in_hand: int) -> bool:
    """Whether a worker died of a study, one of so many in hand; of several nobody can tell."""
    return in_hand == 1
