"""A model that is read beside what its asker does meanwhile."""

import threading
from pathlib import Path

import pytest
from support.model_cards import model_bytes

from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model import model_file as model
from cuda_cyclegan.engine.model.early_model import early_model
from cuda_cyclegan.engine.model.model_file import load_model

PATIENCE = 30.0


def test_it_is_what_a_later_reading_would_give(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_bytes())
    read_model = early_model(path)
    assert read_model().sha256 == load_model(path).sha256
    assert read_model() is read_model()


def test_it_is_read_before_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_bytes())
    begun = threading.Event()
    decode = model.decode_model

    def decoded(data: bytes) -> model.Model:
        begun.set()
        return decode(data)

    monkeypatch.setattr(model, "decode_model", decoded)
    read_model = early_model(path)
    assert begun.wait(PATIENCE)
    assert read_model().card.name


def test_a_file_that_is_no_model_is_told_where_it_is_asked_for(tmp_path: Path) -> None:
    read_model = early_model(tmp_path / "none")
    with pytest.raises(ModelFileError, match="does not exist"):
        read_model()
