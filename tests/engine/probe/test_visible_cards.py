"""By which name a process may be shown one card of another's."""

import pytest

from cuda_cyclegan.engine.probe.visible_cards import VARIABLE, visible_name


@pytest.mark.parametrize(
    ("variable", "index", "name"),
    [
        (None, 0, "0"),
        (None, 7, "7"),
        ("2,5", 1, "5"),
        ("GPU-a, MIG-b", 1, "MIG-b"),
        ("2,5", 2, "-1"),
        ("", 0, ""),
        ("2,2", 1, "-1"),
    ],
)
def test_a_card_is_named_as_this_process_counts(
    variable: str | None, index: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    assert visible_name(index) == name
