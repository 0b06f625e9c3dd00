"""A job whose card opens while its studies are looked for."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model
from support.numerics_models import FunctionGenerator
from support.waiting import ENOUGH

from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.generator import PatchGenerator
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.pipelines.early_start import EarlyStart
from cuda_cyclegan.pipelines.request import Request
from cuda_cyclegan.pipelines.results.earlier_results import discover_scans
from cuda_cyclegan.pipelines.run import networks
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.translate import begun_job, run_job


def test_the_network_opens_beside_the_search_and_the_batch_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, opens = list[str](), threading.Event()

    @contextmanager
    def open_generator(*_: object) -> Generator[PatchGenerator]:
        opened.append(threading.current_thread().name)
        opens.set()
        yield FunctionGenerator()

    def discover_once_it_opens(*arguments: object) -> object:
        assert opens.wait(ENOUGH)
        return discover_scans(*arguments)  # type: ignore[arg-type]

    card = Device("cuda", "fp16", ("fp16", "fp32"))
    monkeypatch.setattr("cuda_cyclegan.pipelines.decisions.choose_devices", lambda *_: (card,))
    monkeypatch.setattr(networks, "open_generator", open_generator)
    monkeypatch.setattr("cuda_cyclegan.pipelines.request.discover_scans", discover_once_it_opens)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    inputs = scan(tmp_path / "scans" / "a.nii"), scan(tmp_path / "scans" / "b.nii", 1)
    model = tiny_model(tmp_path / "model.safetensors")
    options = TranslateOptions((16, 16, 16), precision="fp32").resolved()
    request = Request(inputs, model, tmp_path / "results", device="cuda:0", options=options)
    with begun_job(request, EarlyStart(partial(load_model, model))) as job:
        report = run_job(job, lambda _: None)
    assert [row.status for row in report.studies] == ["translated"] * 2
    assert opened == ["opening"]
