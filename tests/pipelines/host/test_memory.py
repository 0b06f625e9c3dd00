"""Peak host memory."""

from mmap import mmap
from pathlib import Path

import pytest

from cuda_cyclegan.engine.benchmark.measurement import Budget
from cuda_cyclegan.engine.devices import choose_device
from cuda_cyclegan.engine.network.architectures import ResNetSpec
from cuda_cyclegan.pipelines.bench.measurement import Bench, Setting, Subject, measure
from cuda_cyclegan.pipelines.host.memory import PeakMeter

MIB = 2**20


def test_the_peak_of_one_study_is_not_the_next_ones() -> None:
    large = PeakMeter()
    # An array may lie in room that earlier tests gave back, and that the process still holds.
    with mmap(-1, 200 * MIB) as block:
        for _ in range(200):
            block.write(b"\1" * MIB)
    first = large.read()
    small = PeakMeter()
    second = small.read()
    assert not first.of_run
    assert first.bytes - second.bytes > 150 * MIB


def test_without_a_mark_to_reset_the_peak_of_the_run_is_reported_as_such(tmp_path: Path) -> None:
    peak = PeakMeter(tmp_path / "no-such-process").read()
    assert peak.of_run
    assert peak.bytes > 10 * MIB


@pytest.mark.process
def test_a_network_that_takes_what_the_heap_kept_needs_memory_nevertheless() -> None:
    setting = Setting(choose_device("cpu"), (48, 48, 48), 1, "fp32")
    bench = Bench(Subject(ResNetSpec(1, 1, 4, 1)), setting, Budget(0.01, layers=False))
    measure(bench)  # loads libraries
    blocks = [bytearray(60_000) for _ in range(2000)]
    last = bytearray(60_000)  # behind it, nothing is given back by itself
    del blocks
    widest_layer = 4 * 48**3 * 4
    assert measure(bench).measured.memory.taken > 2 * widest_layer
    del last
