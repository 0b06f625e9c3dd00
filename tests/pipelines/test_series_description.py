"""Patterns for the SeriesDescription of DICOM results."""

import pytest

from cuda_cyclegan.pipelines.errors import SettingsError
from cuda_cyclegan.pipelines.series_description import LONGEST, DescriptionPattern

WORDS = {"model": "t1-to-ct", "source": "T1", "target": "CT"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sCT {model}", "Synthetic sCT t1-to-ct"),
        ("SYNTHETIC {target} of {source}", "SYNTHETIC CT of T1"),
        ("not synthetic", "Synthetic not synthetic"),
        ("{{x}}", "Synthetic {x}"),
        (" ", "Synthetic"),
    ],
)
def test_a_description_begins_with_the_mark(text: str, expected: str) -> None:
    assert DescriptionPattern.parse(text).filled(WORDS) == expected


def test_long_names_are_shortened_and_literal_text_is_kept() -> None:
    pattern = DescriptionPattern.parse("{model} from {source}, site 7")
    described = pattern.filled({**WORDS, "model": "m" * 90, "source": "T1 " * 30})
    assert len(described) == LONGEST
    assert described.startswith("Synthetic mmm")
    assert described.endswith(", site 7")


def test_the_longest_text_is_that_of_dicom() -> None:
    fits = "Synthetic " + "x" * (LONGEST - 10)
    assert DescriptionPattern.parse(fits).filled(WORDS) == fits
    with pytest.raises(ValueError, match="has 65 characters with the mark Synthetic"):
        DescriptionPattern.parse(fits.removeprefix("Synthetic ") + "x")


@pytest.mark.parametrize("text", ["a\\b", "a\nb", "Schädel", "{patient}", "{model", "{model!r}"])
def test_a_text_that_no_description_can_have_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="of setting series-description"):
        DescriptionPattern.of_setting(text)
