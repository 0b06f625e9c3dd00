"""What is begun on cards before much is loaded."""

import os

import pytest

from cuda_cyclegan.engine import beforehand
from cuda_cyclegan.engine.probe.visible_cards import VARIABLE


@pytest.mark.parametrize(
    ("asked", "shown", "names"),
    [
        ("cuda:2,0,2", 0, ("cuda:2", "cuda:0")),
        ("cuda:1", 2, ()),
        ("cuda", 3, ("cuda:0", "cuda:1", "cuda:2")),
        ("cuda", 1, ()),
        ("auto", 3, ()),
        ("cpu", 3, ()),
    ],
)
def test_several_cards_are_known_by_their_names(
    asked: str, shown: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beforehand, "shown_cards", lambda: shown)
    assert beforehand.several_cards(asked) == names


def test_a_card_that_is_seen_alone_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert beforehand.seen_alone("cuda:3") == ("cuda:0", {VARIABLE: "3"})
    assert beforehand.seen_alone("cpu") == ("cpu", {})


def test_a_process_that_learns_of_its_card_late_sees_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "2,GPU-5")
    assert beforehand.see_alone("cpu") == "cpu"
    assert os.environ[VARIABLE] == "2,GPU-5"
    assert beforehand.see_alone("cuda:1") == "cuda:0"
    assert os.environ[VARIABLE] == "GPU-5"
