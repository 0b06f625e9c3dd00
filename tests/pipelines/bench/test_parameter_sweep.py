"""The sweep's arithmetic and its thrift, on a device whose times are known."""

from dataclasses import replace
from math import prod

import pytest

from cuda_cyclegan.engine.benchmark.measurement import Budget, Latency, Measured, MemoryUse
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.errors import CudaError, DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec
from cuda_cyclegan.pipelines.bench import parameter_sweep as bench_sweep
from cuda_cyclegan.pipelines.bench.measurement import Bench, BenchOutcome, Setting, Subject
from cuda_cyclegan.pipelines.bench.parameter_sweep import (
    Candidates,
    Scan,
    Tried,
    best,
    candidates,
    sweep,
)

CARD = Device("cuda", "fp16", ("fp16", "bf16", "tf32", "fp32"))
BENCH = Bench(
    Subject(ResNetSpec(1, 1, 4, 1)),
    Setting(CARD, (128, 128, 128), 1, "fp16"),
    Budget(0.1, layers=False),
)
NETWORK, _ = BENCH.subject.load()
ROOM = 5 * 128**3
SPEED = {"fp16": 1e9, "bf16": 1e9, "tf32": 4e8, "fp32": 1e8}


def measured(bench: Bench, _: object) -> BenchOutcome:
    """A card that computes voxels at a rate, has a cost a launch, and little room."""
    setting = bench.setting
    patch = prod(setting.patch)
    if patch > ROOM:
        raise DeviceMemoryError("no room")
    batch = setting.batch
    while batch * patch > ROOM:
        batch //= 2
    seconds = 2e-3 + batch * patch / SPEED[setting.precision]
    found = Measured(
        "a card", batch, patch, 1, *2 * [Latency(seconds, seconds, seconds, 3)], MemoryUse(1, 1)
    )
    return BenchOutcome(found, None)  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def known_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sweep, "measure", measured)


def swept(*patches: int, **given: tuple[int, ...]) -> list[Tried]:
    cubes = tuple((edge, edge, edge) for edge in patches)
    tried = Candidates(cubes, given.get("batches", (1, 2, 4, 8, 16)), ("fp16",))
    return list(sweep(BENCH, NETWORK, tried, Scan()))


def batches_of(rows: list[Tried], edge: int) -> list[int]:
    return [row.setting.batch for row in rows if row.setting.patch[0] == edge]


def test_larger_ones_are_tried_as_long_as_they_help_and_fit() -> None:
    rows = swept(64, 128, 256, 512)
    assert batches_of(rows, 64) == [1, 2, 4, 8, 16]
    assert batches_of(rows, 128) == [1, 2, 4, 8], "the last had no room"
    assert rows[-1].setting.patch == (256, 256, 256)
    assert rows[-1].is_too_large
    assert rows[-1].reason == "no room"


def test_a_batch_that_brings_nothing_ends_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def flat(bench: Bench, network: object) -> BenchOutcome:
        outcome = measured(bench, network)
        seconds = bench.setting.batch * 1e-3
        latency = Latency(seconds, seconds, seconds, 3)
        return replace(outcome, measured=replace(outcome.measured, latency=latency))

    monkeypatch.setattr(bench_sweep, "measure", flat)
    assert batches_of(swept(64), 64) == [1, 2]


def test_waste_is_counted() -> None:
    scan = Scan((128, 128, 200), overlap=0.25)
    tried = Candidates(((128, 128, 128),), (1, 4), ("fp16",))
    one, four = sweep(BENCH, NETWORK, tried, scan)
    assert one.patches == four.patches == 2
    assert one.seconds == pytest.approx(2 * (2e-3 + 128**3 / 1e9))
    assert four.seconds == pytest.approx(2e-3 + 4 * 128**3 / 1e9), "half of its batch is idle"
    assert one.voxels_per_second(scan) == pytest.approx(128 * 128 * 200 / one.seconds)
    assert best([one, four], scan) is one


def test_other_troubles_are_rows_too_but_a_lost_gpu_is_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(bench: Bench, network: object) -> BenchOutcome:
        if bench.setting.patch[0] == 64:
            raise CudaError("cuDNN", "no plan", "use another", is_sticky=bench.setting.batch > 1)
        return measured(bench, network)

    monkeypatch.setattr(bench_sweep, "measure", failing)
    rows = swept(64, 128)
    assert "no plan" in rows[0].reason
    assert rows[1].setting.patch[0] == 128, "a plan that is missing says nothing of larger patches"
    with pytest.raises(CudaError):
        swept(64, batches=(2,))


def test_missing_arguments_are_found() -> None:
    graph, own = NETWORK.graph, (96, 128, 128)
    every = candidates(graph, CARD, own, None, None, longest=128)
    assert every.patches == ((64, 64, 64), (96, 96, 96), own, (128, 128, 128))
    assert every.precisions == ("fp16", "bf16", "tf32")
    given = candidates(graph, CARD, own, 3, "fp32", longest=0)
    assert given == Candidates((own,), (3,), ("fp32",))
    cpu = Device("cpu", "fp32", ("fp32",))
    assert candidates(graph, cpu, own, None, None, longest=0).precisions == ("fp32",)
