"""What is begun on cards before much is loaded."""

import os

import pytest

from cuda_cyclegan.engine import card_startup
from cuda_cyclegan.engine.probe.gpus import VARIABLE, CudaDevice


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
    monkeypatch.setattr(card_startup, "shown_cards", lambda: shown)
    assert card_startup.several_cards(asked) == names


def test_a_card_that_is_seen_alone_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert card_startup.seen_alone("cuda:3") == ("cuda:0", {VARIABLE: "3"})
    assert card_startup.seen_alone("cpu") == ("cpu", {})


def test_a_process_that_learns_of_its_card_late_sees_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "2,GPU-5")
    assert card_startup.see_alone("cpu") == "cpu"
    assert os.environ[VARIABLE] == "2,GPU-5"
    assert card_startup.see_alone("cuda:1") == "cuda:0"
    assert os.environ[VARIABLE] == "GPU-5"


def test_a_card_has_the_same_name_for_all_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uuids = "5d3f8a12-7c1e-4f0b-9a66-0d2b1c3e4f55", "e1b2c3d4-0000-4f0b-9a66-0d2b1c3e4f55"
    cards = [
        CudaDevice(index, "NVIDIA H200", (9, 0), 140 << 30, None, "CUDA 13.0", uuid=uuid)
        for index, uuid in enumerate(uuids)
    ]
    monkeypatch.setattr(card_startup, "usable_cards", lambda: cards)
    assert card_startup.name_on_machine("cuda:1") == "cuda:e1b2c3d4"
    monkeypatch.setattr(card_startup, "usable_cards", list)
    assert card_startup.name_on_machine("cuda:1") == "cuda:1"
    assert card_startup.name_on_machine("cpu") == "cpu"
