"""Gain from several patches per run: time per patch and device memory by batch and patch size.

    PYTHONPATH=tests python tests/benchmarks/batch_sizes.py [--seconds N] [--result FILE.json]

A 9-block ResNet in fp16. Cases come in the order of what they tell; those for
which no time is left are skipped.
"""

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median

from support.gpu_networks import untrained_network

from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.options import SearchSettings

RESULT = Path(__file__).parent / "results" / "batch_sizes.json"
CASES = (
    *product((32,), (128, 96, 64), (1, 2, 4)),
    *product((32,), (64,), (8,)),
    *product((64,), (128, 64, 96), (1, 2)),
    *product((64,), (64,), (4,)),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--effort", default="full")
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    end = time.perf_counter() + asked.seconds
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for width, edge, batch in CASES:
            if time.perf_counter() > end:
                break
            network = untrained_network(build(ResNetSpec(1, 1, width, 9)), 0)
            options = CudaOptions(cache=Path(folder), search=SearchSettings(asked.effort))
            begin = time.perf_counter()
            with open_cuda_generator(network, options, (edge, edge, edge), batch) as generator:
                opened = time.perf_counter() - begin
                run = 1e3 * median(generator.times(30))
                row = {
                    "width": width,
                    "edge": edge,
                    "batch": generator.batch,
                    "ms_a_run": round(run, 4),
                    "ms_a_patch": round(run / generator.batch, 4),
                    "mib": round(generator.memory.bytes / 2**20, 1),
                    "seconds_to_open": round(opened, 2),
                }
            print(row, flush=True)
            rows.append(row)
            card = generator.device
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": card,
        "effort": asked.effort,
        "rows": rows,
    }
    asked.result.write_text(json.dumps(content, indent=1) + "\n")


main()
