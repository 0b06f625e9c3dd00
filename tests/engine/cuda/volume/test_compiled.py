"""Steps and tactics of a volume are the same at every memory limit; the GPU's clock is a table."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.cudnn_stand_in import cudnn_where_there_is_none
from support.described_gpus import H200
from support.gpu_networks import random_network
from support.gpu_on_cpu.numpy_kernels import NumPyKernels

from cuda_cyclegan.engine.compiler.blocks import grid_of
from cuda_cyclegan.engine.compiler.kernels.plain import of_one_patch, plain_counterpart
from cuda_cyclegan.engine.compiler.lowered import Lowered
from cuda_cyclegan.engine.compiler.program.memory import WORKSPACE_BYTES, layer_blocks
from cuda_cyclegan.engine.cuda.tuning.cache import TuningCache
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.options import SearchSettings

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.open_gpu import OpenGpu
    from cuda_cyclegan.engine.cuda.tuning import bench, layer_check, tactics, tuner
    from cuda_cyclegan.engine.cuda.tuning.bench import TrialBench
    from cuda_cyclegan.engine.cuda.tuning.convolution_check import TacticVerdict
    from cuda_cyclegan.engine.cuda.volume.compiled import compiled_blocks, memory_of

PLANS = {"slow and lean": (0, 30.0), "fast and greedy": (WORKSPACE_BYTES, 10.0)}
"""Workspace and microseconds of cuDNN's plans."""


class Plans:
    """The same plans for every convolution."""

    count = len(PLANS)

    def __init__(self, *_: object, **__: object) -> None: ...

    def name(self, index: int) -> str:
        return [*PLANS][index]

    def build(self, index: int) -> int:
        return PLANS[self.name(index)][0]

    def run(self, index: int, *_: object) -> None:
        raise NotImplementedError(index)


class RightAlways:
    """A check that every tactic passes."""

    def __init__(self, *_: object) -> None: ...

    def verdict(self, *_: object) -> TacticVerdict:
        return TacticVerdict(None, 0.0)

    def unsteady(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Patches of each trial of a custom kernel; nothing runs, but memory is counted."""
    found: list[int] = []

    def tried_in_memory(step: Any, kernels: Any, stream: Any, room: int, *_: Any) -> None:
        trial = plain_counterpart(of_one_patch(step))
        with bench.open_bench(kernels, stream, layer_blocks(trial, H200), room):
            found.append(trial.shape.batch)

    def time(_bench: TrialBench, queue: Any, _best: float) -> float:
        return PLANS[[*PLANS][queue.args[0]]][1]

    buffer = SimpleNamespace(address=0)
    monkeypatch.setattr(bench, "DeviceBuffer", lambda _size: nullcontext(buffer))
    monkeypatch.setattr(TrialBench, "time", time)
    monkeypatch.setattr(tactics, "ConvolutionPlans", Plans)
    monkeypatch.setattr(tuner, "ConvolutionCheck", RightAlways)
    monkeypatch.setattr(layer_check, "wrong_step", tried_in_memory)
    return found


def test_no_limit_changes_steps_or_tactics(tried: list[int]) -> None:
    network = random_network(build(ResNetSpec(1, 1, 32, 1)), 0)
    grid = grid_of((48, 72, 40), network.graph.stride)

    context: Any = SimpleNamespace(properties=H200)
    stream: Any = SimpleNamespace(fill=lambda *_: None)
    gpu = OpenGpu(context, stream, None, NumPyKernels())  # type: ignore[arg-type]

    def compiled(room: int) -> tuple[Lowered, dict[Any, str]]:
        one = tuner.Tuner(gpu, TuningCache(None, {}), room, SearchSettings())
        made = compiled_blocks(
            network, gpu, one, grid, lambda lowered: memory_of(lowered, grid, network.graph, room)
        )
        return made.lowered, {shape: tactic.name for shape, tactic in made.tactics.items()}

    lowered, names = compiled(1 << 40)
    assert set(names.values()) == {"fast and greedy"}
    assert tried
    with pytest.raises(DeviceMemoryError) as refused:
        compiled(1 << 20)
    least = refused.value.wanted
    assert least is not None
    layers = len(tried)
    for room in (2 * least, least):
        again, same = compiled(room)
        assert (again.steps, again.layout, same) == (lowered.steps, lowered.layout, names)
    assert len(tried) == 3 * layers
    with pytest.raises(DeviceMemoryError):
        compiled(least - 1)
