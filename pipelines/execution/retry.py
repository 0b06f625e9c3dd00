"""Which study a dead worker is blamed on, and how often it is tried."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryRule:
    """What a worker had in hand when it died is done again, each study alone on a worker.

    tries: workers that may die over a study before it is held to be the cause. blames_company:
    whether a death counts for each of several studies, of which nobody can tell what it came from.
    """

    tries: int
    blames_company: bool

    def counts(self, in_hand: int) -> bool:
        """Whether a death counts for each of so many studies that the worker had in hand."""
        return in_hand == 1 or self.blames_company

    def gives_up(self, deaths: int) -> bool:
        """Whether a study over which so many workers died is tried no more."""
        return deaths >= self.tries


SHARED_BATCH = RetryRule(tries=2, blames_company=True)
"""Of one command, which shall not be held up for long."""

QUEUE = RetryRule(tries=3, blames_company=False)
"""Where users say how many tries a job has."""
