"""Stored values become records, or a refusal that names the field."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.engine.decoding import FieldError, Tagged, decode, decode_known, encode, parse


class Disc(Tagged, frozen=True, tag="disc"):
    radius: float


class Box(Tagged, frozen=True, tag="box"):
    sides: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    shape: Disc | Box
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    place: Path
    parts: tuple[Part, ...]
    colour: Literal["red", "green"] = "red"
    weights: Mapping[str, float] | None = None
    spare: Part | None = None


BOX = {"kind": "box", "sides": [1, 2]}
VALUE = {"place": "a/\udcff", "parts": [{"shape": BOX}, {"shape": {"kind": "disc", "radius": 3}}]}
RECORD = Whole(Path("a/\udcff"), (Part(Box((1, 2))), Part(Disc(3.0))))


def test_values_become_records_and_values_again() -> None:
    assert decode(Whole, VALUE) == decode_known(Whole, VALUE) == RECORD
    assert decode_known(Whole, encode(RECORD)) == RECORD


@pytest.mark.parametrize(
    ("changed", "path", "reason"),
    [
        ({"place": 1}, "place", "must be text"),
        ({"place": None}, "place", "must be text"),
        ({"parts": {}}, "parts", "must be a list, not an object"),
        ({"parts": [{}]}, "parts[0].shape", "is missing"),
        ({"parts": [{"shape": {}}]}, "parts[0].shape.kind", "is missing"),
        ({"parts": [{"shape": {"kind": "cone"}}]}, "parts[0].shape.kind", "one of box, disc"),
        ({"parts": [{"shape": {**BOX, "x": 1}}]}, "parts[0].shape.x", "is not known"),
        ({"parts": [{"shape": {**BOX, "sides": [1]}}]}, "parts[0].shape.sides", "of length 2"),
        (
            {"parts": [{"shape": {**BOX, "sides": [1, True]}}]},
            "parts[0].shape.sides[1]",
            "must be an integer, not true or false",
        ),
        (
            {"parts": [{"shape": {**BOX, "sides": [1, 2.0]}}]},
            "parts[0].shape.sides[1]",
            "must be an integer, not a decimal number",
        ),
        ({"parts": [{"shape": BOX, "note": 1}]}, "parts[0].note", "must be text or null"),
        ({"colour": "blue"}, "colour", "must be one of green, red"),
        ({"weights": {"a": None}}, "weights[...]", "must be a number, not null"),
        ({"weights": {"a": 10**400}}, "weights[...]", "must be a finite number"),
    ],
)
def test_a_wrong_field_is_named(changed: dict[str, object], path: str, reason: str) -> None:
    for strictly in (decode, decode_known):
        with pytest.raises(FieldError) as caught:
            strictly(Whole, {**VALUE, **changed})
        assert caught.value.path == path
        assert reason in caught.value.reason


def test_a_value_that_is_no_record_at_all_is_refused() -> None:
    with pytest.raises(FieldError, match="it must be an object, not a list"):
        decode(Whole, [])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({**VALUE, "x": 1}, "x"),
        ({**VALUE, "parts": [{"shape": BOX, "x": 1}]}, "parts[0].x"),
        ({**VALUE, "spare": {"shape": BOX, "x": 1}}, "spare.x"),
    ],
)
def test_fields_of_the_future_are_skipped_or_named(value: object, path: str) -> None:
    decode(Whole, value)
    with pytest.raises(FieldError) as caught:
        decode_known(Whole, value)
    assert (caught.value.path, caught.value.reason) == (path, "is not known to this version")


def test_the_name_of_a_field_does_not_flood_a_message() -> None:
    with pytest.raises(FieldError) as caught:
        decode_known(Whole, {**VALUE, "\n" * 1000: 1})
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": 1, "a": 2}', b"\xff", "1" * 9999])
def test_text_that_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(FieldError, match="is not valid JSON"):
        parse(text)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_for_numbers_are_refused_where_that_is_asked_for(word: str) -> None:
    assert isinstance(parse(word), float)
    with pytest.raises(FieldError, match="is not valid JSON"):
        parse(word, finite=True)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    )
)
def test_no_value_fails_in_another_way(value: object) -> None:
    for kind in (Whole, Part, Disc, dict[str, float]):
        for strictly in (decode, decode_known):
            with suppress(FieldError):
                strictly(kind, value)
