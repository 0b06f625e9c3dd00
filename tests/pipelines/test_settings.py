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
    "keep_private": True,
    "nan_to": 0.0,
}


def test_the_fingerprint_is_pinned() -> None:
    # Another value makes every result of every user due again: raise METHOD instead, on purpose.
    expected = "f7f6a388e4573d4591fc6b15c20e124499f7bb9d67c26df8d356a83448ff8455"
    assert SETTINGS.sha256() == expected


@pytest.mark.parametrize("name", [field.name for field in fields(TranslateSettings)])
def test_every_field_changes_the_fingerprint(name: str) -> None:
    assert replace(SETTINGS, **{name: OTHERS[name]}).sha256() != SETTINGS.sha256()
