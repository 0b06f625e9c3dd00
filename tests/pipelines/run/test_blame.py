"""Whom a death is blamed on."""

from cuda_cyclegan.pipelines.run.blame import is_blamed


def test_a_study_is_blamed_for_deaths_that_it_had_alone() -> None:
    assert is_blamed(1)
    assert not is_blamed(2)
