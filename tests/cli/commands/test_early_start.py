"""Work that a batch on GPUs starts before its libraries are loaded."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine import startup
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.pipelines.run import spare_workers


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Names of devices that something is begun for, and of models that are being read."""
    asked: list[object] = []
    begin_to_read = startup.early_model

    @contextmanager
    def begin(devices: object, model: Path | None = None) -> Generator[None]:
        asked.append(devices if model is None else (devices, model.name))
        yield

    def read(path: Path) -> Callable[[], Model]:
        asked.append(path.name)
        return begin_to_read(path)

    monkeypatch.setattr(startup, "early_gpu_context", begin)
    monkeypatch.setattr(spare_workers, "spare_workers", begin)
    monkeypatch.setattr(startup, "early_model", read)
    return asked


@pytest.mark.parametrize(
    ("device", "more", "expected"),
    [
        ("1", [], ["cuda:1", "none"]),
        ("auto", [], ["auto", "none"]),
        ("cuda:0,2", [], [(("cuda:0", "cuda:2"), "none"), "none"]),
        ("cuda:0", ["--dry-run"], []),
        ("cuda:0", ["--cycle-check", "back.safetensors"], []),
        ("cuda:0", ["--output", "there"], []),  # where nothing may be left to do
        ("cuda:0", ["--output", "there", "--overwrite"], ["cuda:0", "none"]),
    ],
)
def test_one_card_begins_with_its_context_several_with_their_workers_and_all_with_the_model(
    tmp_path: Path,
    begun: list[object],
    device: str,
    more: list[str],
    expected: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    command = ["translate", str(tmp_path), "--model", str(tmp_path / "none"), "--output", "out"]
    assert CliRunner().invoke(app, [*command, "--device", device, *more]).exit_code == 2
    assert begun == expected
