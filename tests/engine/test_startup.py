"""Work that begins before much is loaded."""

import os
import threading
from pathlib import Path

import pytest
from support.model_cards import model_bytes
from support.waiting import ENOUGH

from cuda_cyclegan.engine import startup
from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model import model_file
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.probe.gpus import VARIABLE, CudaDevice
from cuda_cyclegan.engine.startup import early_model


@pytest.mark.parametrize(
    ("asked", "shown", "names"),
    [
        ("cuda:2,0,2", 0, ("cuda:2", "cuda:0", "cuda:2")),
        ("cuda:1", 2, ()),
        ("cuda", 3, ("cuda:0", "cuda:1", "cuda:2")),
        ("cuda", 1, ()),
        ("auto", 3, ()),
        ("cpu", 3, ()),
    ],
)
def test_several_gpus_are_known_by_their_names(
    asked: str, shown: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "visible_gpu_count", lambda: shown)
    assert startup.several_gpus(asked) == names


def test_a_gpu_that_is_seen_alone_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert startup.isolated_device("cuda:3") == ("cuda:0", {VARIABLE: "3"})
    assert startup.isolated_device("cpu") == ("cpu", {})


def test_a_process_that_learns_of_its_gpu_late_sees_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "2,GPU-5")
    assert startup.isolate_device("cpu") == "cpu"
    assert os.environ[VARIABLE] == "2,GPU-5"
    assert startup.isolate_device("cuda:1") == "cuda:0"
    assert os.environ[VARIABLE] == "GPU-5"


def test_a_gpu_has_the_same_name_for_all_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uuids = "5d3f8a12-7c1e-4f0b-9a66-0d2b1c3e4f55", "e1b2c3d4-0000-4f0b-9a66-0d2b1c3e4f55"
    cards = [
        CudaDevice(index, "NVIDIA H200", (9, 0), 140 << 30, None, "CUDA 13.0", uuid=uuid)
        for index, uuid in enumerate(uuids)
    ]
    monkeypatch.setattr(startup, "usable_gpus", lambda: cards)
    assert startup.name_on_machine("cuda:1") == "cuda:e1b2c3d4"
    monkeypatch.setattr(startup, "usable_gpus", list)
    assert startup.name_on_machine("cuda:1") == "cuda:1"
    assert startup.name_on_machine("cpu") == "cpu"


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
    decode = model_file.decode_model

    def decoded(data: bytes) -> model_file.Model:
        begun.set()
        return decode(data)

    monkeypatch.setattr(model_file, "decode_model", decoded)
    read_model = early_model(path)
    assert begun.wait(ENOUGH)
    assert read_model().card.name


def test_a_file_that_is_no_model_is_reported_where_it_is_asked_for(tmp_path: Path) -> None:
    read_model = early_model(tmp_path / "none")
    with pytest.raises(ModelFileError, match="does not exist"):
        read_model()
