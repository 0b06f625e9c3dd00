"""Whom a death is blamed on."""

from cuda_cyclegan.pipelines.execution.retry import QUEUE, SHARED_BATCH


def test_a_queue_blames_a_job_for_deaths_that_it_had_alone() -> None:
    assert QUEUE.counts(1)
    assert not QUEUE.counts(2)
    assert [QUEUE.gives_up(deaths) for deaths in range(4)] == [False, False, False, True]


def test_a_command_blames_every_study_and_gives_it_one_more_try() -> None:
    assert SHARED_BATCH.counts(1)
    assert SHARED_BATCH.counts(2)
    assert [SHARED_BATCH.gives_up(deaths) for deaths in range(3)] == [False, False, True]
