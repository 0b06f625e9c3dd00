"""Planned and allocated bytes: equal, whatever the limit, nothing allocated while arrays pass."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gpu_networks import untrained_network
from support.numerics_models import through
from support.waiting import ENOUGH

from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, window_grid
from cuda_cyclegan.pipelines.study.patches import cover

MIB = 1 << 20
PATCH = (64, 64, 64)
EXTENTS = (160, 100, 120)
NETWORK = untrained_network(build(ResNetSpec(1, 1, width=32, blocks=2)), seed=1)
WINDOW = SlidingWindow(cover(EXTENTS, PATCH, 0.25), "gaussian", "edge")
ARRAY = np.random.default_rng(0).uniform(-1, 1, (1, *EXTENTS)).astype(np.float32)
GRID = window_grid(ARRAY, WINDOW.layout)
COARSE = 96 * MIB
"""Memory that the driver may add: code of kernels, and the rest of the pages that it gives out."""


@dataclass
class Account:
    """Device memory that the engine has asked for."""

    bytes: int = 0
    peak: int = 0


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    """Counts every block by itself, apart from what the generator says it holds."""
    from cuda_cyclegan.engine.cuda.driver import DeviceBuffer

    held = Account()
    enter, leave = DeviceBuffer.__enter__, DeviceBuffer.__exit__

    def entered(buffer: Any) -> Any:
        entered_buffer = enter(buffer)
        held.bytes += buffer.size
        held.peak = max(held.peak, held.bytes)
        return entered_buffer

    def left(buffer: Any, *error: object) -> None:
        held.bytes -= buffer.size
        leave(buffer, *error)

    monkeypatch.setattr(DeviceBuffer, "__enter__", entered)
    monkeypatch.setattr(DeviceBuffer, "__exit__", left)
    return held


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.options import SearchSettings

    cache = tmp_path_factory.mktemp("cache")
    return CudaOptions(cache=cache, search=SearchSettings("quick"))


@pytest.fixture(scope="module")
def translated(options: Any) -> np.ndarray:
    """The array without any limit."""
    with _opened(options) as generator:
        return _through(generator)


def _opened(options: Any, batch: int | None = 1) -> Any:
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator

    return open_cuda_generator(NETWORK, options, PATCH, batch)


def _planned(options: Any, batch: int | None = 1) -> Any:
    from cuda_cyclegan.engine.cuda.patches.patch_generator import planned_patches

    return planned_patches(NETWORK, options, PATCH, batch)


def _through(generator: Any, on_patches: Any = lambda _: None) -> np.ndarray:
    return through(ARRAY, generator, WINDOW, on_patches)


def _error(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(
    ("batch", "precision", "limit"),
    [
        (None, "fp16", None),
        (1, "fp16", None),
        (3, "fp16", None),
        (2, "fp32", None),
        (4, "fp16", 300),
        (4, "fp16", 150),
    ],
)
def test_planned_is_allocated(options: Any, account: Account, batch, precision, limit) -> None:
    from cuda_cyclegan.engine.cuda.driver import Context

    chosen = replace(options, precision=precision, vram_limit=limit and limit * MIB)
    with Context(0) as context:
        with _opened(chosen, batch):
            pass
        plan = _planned(chosen, batch)
        assert plan.program is not None
        assert plan.program.run_seconds is not None
        free = context.memory[0]
        with _opened(chosen, batch) as generator:
            assert generator.memory.bytes == account.bytes == plan.program.bytes
            assert generator.batch == plan.program.batch
            _through(generator)
            assert generator.held == account.bytes == plan.held([GRID])
            assert account.bytes <= free - context.memory[0] <= account.bytes + COARSE
        assert account.bytes == 0


def test_two_arrays_at_once_take_what_was_planned_for_two(options: Any, account: Account) -> None:
    with _opened(options) as generator:
        plan = _planned(options)
        both = threading.Barrier(2)
        met = threading.local()

        def meet(_: int) -> None:
            if not getattr(met, "done", False):
                met.done = True
                both.wait(ENOUGH)

        threads = [threading.Thread(target=_through, args=(generator, meet)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert account.bytes == generator.held == plan.held([GRID] * 3, at_once=2)


def test_nothing_is_allocated_while_arrays_go_through(options: Any, account: Account) -> None:
    from cuda_cyclegan.engine.cuda.driver import Context

    with Context(0) as context, _opened(options) as generator:
        _through(generator)
        free, held = context.memory[0], account.bytes
        seen = set()
        for _ in range(3):
            _through(generator, lambda _: seen.add(context.memory[0]))
        assert seen == {free}
        assert account.bytes == held


def _limits() -> Iterator[int]:
    size = 400
    while size > 8:
        yield size
        size = size * 4 // 5


def test_every_limit_is_kept_or_refused_and_the_result_stays(
    options: Any, account: Account, translated: np.ndarray
) -> None:
    """Limits go down to the smallest that would do, which is then requested exactly."""
    lowest, kept = 0, []
    for limit in _limits():
        chosen = replace(options, vram_limit=limit * MIB)
        account.peak = 0
        try:
            with _opened(chosen, 4) as generator:
                assert _error(_through(generator), translated) < 5e-3
                kept.append((limit, generator.batch, generator.memory.bytes, account.peak))
        except DeviceMemoryError as error:
            [named] = re.findall(r"setting vram-limit of at least (\d+) MiB", str(error))
            lowest = int(named)
            break
        assert account.peak <= limit * MIB
    print(kept, lowest)
    assert [batch for _, batch, _, _ in kept] == sorted((b for _, b, _, _ in kept), reverse=True)
    assert {1, 4} <= {batch for _, batch, _, _ in kept}
    account.peak = 0
    with _opened(replace(options, vram_limit=lowest * MIB), 4) as generator:
        assert _error(_through(generator), translated) < 5e-3
        assert account.peak <= lowest * MIB
    with (
        pytest.raises(DeviceMemoryError),
        _opened(replace(options, vram_limit=(lowest - 1) * MIB), 4),
    ):
        pass


@pytest.mark.parametrize("effort", ["off", "quick"])
def test_a_first_start_keeps_to_the_limit_while_it_tries(
    options: Any, account: Account, translated: np.ndarray, tmp_path: Path, effort: Any
) -> None:
    """Limits go down to the smallest, with nothing that an earlier start has found."""
    from cuda_cyclegan.engine.options import SearchSettings

    with pytest.raises(DeviceMemoryError) as refused, _opened(replace(options, vram_limit=MIB)):
        pass
    [lowest] = re.findall(r"setting vram-limit of at least (\d+) MiB", str(refused.value))
    for limit in (int(lowest), 60, 120):
        account.peak = 0
        fresh = replace(
            options,
            cache=tmp_path / str(limit),
            vram_limit=limit * MIB,
            search=SearchSettings(effort),
        )
        with _opened(fresh, 4) as generator:
            assert _error(_through(generator), translated) < 5e-3
        assert account.peak <= limit * MIB


def test_a_gpu_that_is_partly_taken_is_shared(
    options: Any, account: Account, translated: np.ndarray
) -> None:
    from cuda_cyclegan.engine.cuda.driver import Context, DeviceBuffer

    with Context(0) as context, _opened(options):
        pass  # so that what CUDA itself takes is taken
    with Context(0) as context:
        for left in (400, 200):
            with (
                DeviceBuffer(context.memory[0] - left * MIB),
                _opened(options, 4) as generator,
            ):
                assert generator.held <= left * MIB
                assert _error(_through(generator), translated) < 5e-3
        with (
            DeviceBuffer(context.memory[0] - 80 * MIB),
            pytest.raises(DeviceMemoryError, match="end other programs"),
        ):
            _opened(options).__enter__()
    assert account.bytes == 0
