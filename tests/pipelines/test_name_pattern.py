"""Patterns for names of results: what they give, and what is refused when they are read."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from cuda_cyclegan.pipelines.errors import SettingsError
from cuda_cyclegan.pipelines.name_pattern import FIELDS, NamePattern, in_a_name, pattern_of

WORDS = {"stem": "sub-01_T1w", "suffix": "T1w", "source": "T1", "target": "T2", "model": "m"}


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("{stem}{ext}", "sub-01_T1w"),
        ("{stem}_{target}synth{ext}", "sub-01_T1w_T2synth"),
        ("{stem}_{target}synth", "sub-01_T1w_T2synth"),
        ("{source}-to-{target}_{stem}", "T1-to-T2_sub-01_T1w"),
        ("{model}{channel}_{suffix}", "m_T1w"),
        ("a{{b}}", "a{b}"),
    ],
)
def test_fields_become_words(pattern: str, name: str) -> None:
    assert NamePattern.parse(pattern).name(WORDS) == name


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("{stm}", "unknown field {stm}"),
        ("{}", "unknown field {}"),
        ("{stem:>8}", "unknown field {stem}"),
        ("{stem!r}", "unknown field {stem}"),
        ("{stem.upper}", "unknown field {stem.upper}"),
        ("{stem", "brace"),
        ("stem}", "brace"),
        ("a/{stem}", "path separator"),
        ("..\\{stem}", "path separator"),
        ("{stem}\n", "cannot be printed"),
        ("{stem}\0", "cannot be printed"),
        ("{ext}{stem}", "{ext} before its end"),
        ("{stem}{ext}x", "{ext} before its end"),
        ("{stem}.nii.gz", "ends in an extension"),
        ("{stem}.NRRD", "ends in an extension"),
        ("", "empty name"),
        ("{ext}", "empty name"),
        ("{channel}{suffix}{ext}", "empty name"),
        (".{stem}", "begins with a dot"),
    ],
)
def test_pattern_that_names_no_result_is_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        NamePattern.parse(pattern)
    with pytest.raises(SettingsError, match="of setting result-name"):
        pattern_of(pattern)


_PARTS = st.sampled_from([*(f"{{{field}}}" for field in FIELDS), "a", "_", ".", "/", "{", "}", " "])


@settings(max_examples=examples(300))
@given(st.lists(_PARTS, max_size=6).map("".join))
def test_a_pattern_that_is_taken_gives_one_name_in_its_folder(pattern: str) -> None:
    try:
        parsed = NamePattern.parse(pattern)
    except ValueError:
        return
    name = parsed.name(dict.fromkeys(FIELDS, "x"))
    assert name
    assert "/" not in name


@pytest.mark.parametrize(
    ("text", "word"),
    [("T1/T2", "T1-T2"), ("CT, bone", "CT-bone"), ("../x", "x"), ("Größe", "Größe"), ("/", "")],
)
def test_words_of_a_model_hold_no_separators(text: str, word: str) -> None:
    assert in_a_name(text) == word
