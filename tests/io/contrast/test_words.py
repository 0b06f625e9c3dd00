"""The table of words: complete for the schema of BIDS, without a word of two meanings."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import bidsschematools.schema as _schema

from cuda_cyclegan.io.contrast.words import CONTRASTS, DERIVED, ENTITIES, SUFFIXES, TABLE

PAGE = Path(__file__).parents[3] / "docs" / "contrasts.md"
schema: Any = _schema


def test_every_suffix_and_entity_of_the_schema_is_known() -> None:
    objects = schema.load_schema().objects
    suffixes = {each.value for each in objects.suffixes.values()}
    assert suffixes - SUFFIXES.keys() - {"events"} == set()
    assert {each.name for each in objects.entities.values()} - ENTITIES == set()


def test_no_word_stands_twice() -> None:
    words = [
        word for part in (CONTRASTS, DERIVED) for each in part.values() for word in each.split()
    ]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert all(TABLE[word][0] in ("contrast", "derived") for word in words)


def test_the_page_on_contrasts_shows_every_word() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", PAGE.read_text(), re.MULTILINE))
    for kind, words in {**CONTRASTS, **DERIVED}.items():
        assert rows[kind].split(", ") == words.split(), kind
