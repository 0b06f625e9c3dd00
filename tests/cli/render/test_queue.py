"""Output of `jobs` about batches."""

from cuda_cyclegan.cli.render.queue import batch_lines
from cuda_cyclegan.pipelines.jobs.queue.job import BatchCount


def test_a_queue_without_a_batch_is_called_empty() -> None:
    assert list(batch_lines([], 80))[-1] == "The queue is empty."


def test_states_that_no_job_is_in_have_no_column() -> None:
    first = BatchCount("1", "night run", 1_700_000_000.0, {"done": 3})
    head, *_, row = batch_lines([first], 80)
    assert head.split() == ["batch", "done", "submitted"]
    assert row.split()[:4] == ["1", "night", "run", "3"]
