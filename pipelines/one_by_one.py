"""Studies one after another, for what is learnt or compared of each and stored of none."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ..io.volume import Study
from .report.report import Failure, failure_of
from .stopwatch import Stopwatch

Made = TypeVar("Made")


def one_by_one(
    studies: Sequence[Study],
    work: Callable[[Study, Stopwatch], Made],
    tell: Callable[[int, int], None],
) -> Iterator[tuple[str, Made | Failure]]:
    """Name after name with what came of the study, or why nothing did.

    work: counts its stages. tell: is told how many of all studies are done.
    """
    for done, study in enumerate(studies):
        tell(done, len(studies))
        name, watch = str(study.name), Stopwatch(str(study.name))
        if study.obstacle:
            yield name, Failure(study.obstacle.kind, study.obstacle.reason, None)
            continue
        try:
            made: Made | Failure = work(study, watch)
        except Exception as error:  # as in a batch, a study's trouble is its own
            made = failure_of(error, watch.stage)
        yield name, made
