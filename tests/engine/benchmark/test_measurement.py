"""Figures of a measured network."""

from cuda_cyclegan.engine.benchmark.measurement import Latency, Measured, MemoryUse
from cuda_cyclegan.engine.probe.gpus import Energy


def test_figures_are_for_a_patch_and_not_for_a_run() -> None:
    run = Latency(median=0.5, p5=0.4, p95=0.6, runs=10)
    energy = Energy(joules=80.0, seconds=5.0)
    measured = Measured("a GPU", 4, 8**3, 4_000_000, run, run, MemoryUse(None, 0), energy=energy)
    assert measured.joules_per_patch == 2.0
    assert measured.patches_per_second == 8.0
    assert measured.voxels_per_second == 8.0 * 8**3
