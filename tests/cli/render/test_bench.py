"""Table of layers of `bench`."""

from cuda_cyclegan.cli.render.bench import layers
from cuda_cyclegan.engine.benchmark.measurement import Latency, LayerTime, Measured, MemoryUse

LATENCY = Latency(0.003, 0.003, 0.003, 10)


def test_a_stored_name_of_a_custom_kernel_is_shown_in_plain_words() -> None:
    times = (
        LayerTime("first", "conv 7x7x7", "custom kernel", 0.001, 1000, 1000),
        LayerTime("second", "conv 3x3x3", "custom kernel, 4 rows, 32 columns", 0.001, 1000, 1000),
        LayerTime("third", "conv 1x1x1", "eng62_k2=1", 0.001, 1000, 1000),
    )
    measured = Measured("a GPU", 1, 1, 3000, LATENCY, LATENCY, MemoryUse(None, 1), times)
    rows = [line for line in layers(measured, None) if "conv" in line]
    assert [row.rpartition("  ")[2] for row in rows] == [
        "custom kernel",
        "custom kernel, 4 rows, 32 columns",
        "eng62",
    ]
