"""The GPU's own counter, where it has one."""

import numpy as np
import pytest
from support.network_features import trained

from cuda_cyclegan.engine.benchmark.measurement import Budget
from cuda_cyclegan.engine.network.architectures import ResNetSpec
from cuda_cyclegan.engine.probe.gpus import EnergyMeter, cuda_devices

MOST_WATTS = 1500


def test_a_benchmark_shows_what_the_gpu_consumed() -> None:
    from cuda_cyclegan.engine.benchmark.gpu import measure_on_gpu
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.options import SearchSettings

    [first, *_] = cuda_devices()
    if EnergyMeter([first.bus]).read() is None:
        pytest.skip("this GPU does not count its energy")
    patches = np.random.default_rng(0).uniform(-1, 1, (1, 1, 128, 128, 128)).astype(np.float32)
    measured = measure_on_gpu(
        trained(ResNetSpec(1, 1, 32, 9)),
        CudaOptions(search=SearchSettings("off")),
        1,
        patches,
        Budget(seconds=2.0, layers=False),
        lambda _: None,
    )
    assert measured.energy
    assert 10 < measured.energy.watts < MOST_WATTS
    assert measured.joules_per_patch == measured.energy.joules / measured.latency.runs
