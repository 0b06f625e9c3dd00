"""The fingerprint of the settings."""

from dataclasses import fields, replace

import pytest

from cuda_cyclegan.pipelines.settings import TranslateSettings

SETTINGS = TranslateSettings((128, 128, 128))
OTHERS = {
    "patch": (128, 128, 64),
    "overlap": 0.5,
    "blend": "constant",
    "precision": "fp16",
    "volume_index": 0,
    "allow_uneven": True,
}


def test_the_fingerprint_is_pinned() -> None:
    # Another value makes every result of every user due again: raise METHOD instead, on purpose.
    expected = "a17ae96529d3d14bdc2ea609c64cb5689e4b3dbf652748c9d6e4480b78bf3e7b"
    assert SETTINGS.sha256() == expected


@pytest.mark.parametrize("name", [field.name for field in fields(TranslateSettings)])
def test_every_field_changes_the_fingerprint(name: str) -> None:
    assert replace(SETTINGS, **{name: OTHERS[name]}).sha256() != SETTINGS.sha256()
