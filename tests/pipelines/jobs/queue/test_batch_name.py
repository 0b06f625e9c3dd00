"""Names of batches that arriving studies join."""

from datetime import datetime

import pytest

from cuda_cyclegan.pipelines.errors import SettingsError
from cuda_cyclegan.pipelines.jobs.queue.batch_name import BatchPattern

EVENING, MORNING = datetime(2026, 11, 27, 20, 0), datetime(2026, 11, 28, 6, 0)
NEXT_EVENING = datetime(2026, 11, 28, 20, 0)


@pytest.mark.parametrize("text", ["", "intake", "100 %%", "%Y-%m-%d"])
def test_a_night_has_one_batch_across_midnight(text: str) -> None:
    pattern = BatchPattern.parse(text)
    assert pattern.period(EVENING) == pattern.period(MORNING)
    assert pattern.name(EVENING) == pattern.name(MORNING)
    assert pattern.period(MORNING) != pattern.period(NEXT_EVENING)


def test_a_pattern_makes_longer_batches() -> None:
    pattern = BatchPattern.parse("week %V of %G")
    assert pattern.name(EVENING) == "week 48 of 2026"
    assert pattern.period(EVENING) == pattern.period(NEXT_EVENING)


@pytest.mark.parametrize("text", ["%H", "%", "%s"])
def test_a_field_that_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="not a date field"):
        BatchPattern.parse(text)
